//go:build demo

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/daemon"
	"k8s.io/kubernetes/pkg/controller/deployment"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	"k8s.io/kubernetes/pkg/controller/replicaset"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/controller/statefulset"
)

// workers is how many objects a controller works on at once: that of kube-controller-manager for most.
const workers = 5

// runControllerManager runs, of the controllers of kube-controller-manager, those that the demonstration needs and
// invites to try. The whole program has 200 packages more to compile, those of volumes above all. It has the flags
// --kubeconfig and --secure-port, and ignores the others.
func runControllerManager() int {
	flags := pflag.NewFlagSet(os.Args[0], pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	kubeconfig := flags.String("kubeconfig", "", "how the API server is reached")
	port := flags.Int("secure-port", 0, "where /healthz is served")
	err := flags.Parse(os.Args[1:])
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		err = controllers(ctx, *kubeconfig, *port)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kube-controller-manager:", err)
		return 1
	}
	return 0
}

// controllers runs until ctx is done.
func controllers(ctx context.Context, kubeconfig string, port int) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 200, 400
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client of metadata: %w", err)
	}
	shared := informers.NewSharedInformerFactory(client, 0)
	running, err := workloads(ctx, client, shared)
	if err != nil {
		return err
	}
	namespaces := namespace.NewNamespaceController(ctx, client, objects,
		client.Discovery().ServerPreferredNamespacedResources,
		shared.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	running = append(running, func(ctx context.Context) { namespaces.Run(ctx, workers) })

	metadataInformers := metadatainformer.NewSharedInformerFactory(objects, 0)
	started := make(chan struct{})
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery()))
	collector, err := garbagecollector.NewGarbageCollector(ctx, client, objects, mapper,
		garbagecollector.DefaultIgnoredResources(),
		informerfactory.NewInformerFactory(shared, metadataInformers), started)
	if err != nil {
		return fmt.Errorf("making the garbage collector: %w", err)
	}
	const refresh = 30 * time.Second
	running = append(running,
		func(ctx context.Context) { collector.Run(ctx, workers, refresh) },
		func(ctx context.Context) { collector.Sync(ctx, client.Discovery(), refresh) })

	shared.Start(ctx.Done())
	metadataInformers.Start(ctx.Done())
	close(started)
	for _, run := range running {
		go run(ctx)
	}
	return serveHealth(ctx, port)
}

// workloads makes the controllers of workloads, their endpoints, and the nodes that they are on.
func workloads(ctx context.Context, client kubernetes.Interface,
	shared informers.SharedInformerFactory) ([]func(context.Context), error) {
	core, apps := shared.Core().V1(), shared.Apps().V1()
	deployments, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), core.Pods(),
		client)
	if err != nil {
		return nil, fmt.Errorf("making the controller of Deployments: %w", err)
	}
	daemonSets, err := daemon.NewDaemonSetsController(ctx, apps.DaemonSets(), apps.ControllerRevisions(), core.Pods(),
		core.Nodes(), client,
		flowcontrol.NewBackOff(time.Second, 15*time.Minute))
	if err != nil {
		return nil, fmt.Errorf("making the controller of DaemonSets: %w", err)
	}
	accounts, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), core.ServiceAccounts(),
		core.Namespaces(), client,
		serviceaccount.DefaultServiceAccountsControllerOptions())
	if err != nil {
		return nil, fmt.Errorf("making the controller of ServiceAccounts: %w", err)
	}
	// Periods and rates are the defaults of kube-controller-manager.
	nodes, err := nodelifecycle.NewNodeLifecycleController(ctx, shared.Coordination().V1().Leases(), core.Pods(),
		core.Nodes(), apps.DaemonSets(), client,
		5*time.Second, time.Minute, 50*time.Second, 0.1, 0.01, 50, 0.55)
	if err != nil {
		return nil, fmt.Errorf("making the controller of nodes: %w", err)
	}
	replicaSets := replicaset.NewReplicaSetController(ctx, apps.ReplicaSets(), core.Pods(), client,
		replicaset.BurstReplicas)
	statefulSets := statefulset.NewStatefulSetController(ctx, core.Pods(), apps.StatefulSets(),
		core.PersistentVolumeClaims(), apps.ControllerRevisions(), client)
	slices := endpointslice.NewController(ctx, core.Pods(), core.Services(), core.Nodes(),
		shared.Discovery().V1().EndpointSlices(), 100, client, 0)
	return []func(context.Context){
		func(ctx context.Context) { deployments.Run(ctx, workers) },
		func(ctx context.Context) { daemonSets.Run(ctx, workers) },
		func(ctx context.Context) { accounts.Run(ctx, 1) },
		nodes.Run,
		func(ctx context.Context) { replicaSets.Run(ctx, workers) },
		func(ctx context.Context) { statefulSets.Run(ctx, workers) },
		func(ctx context.Context) { slices.Run(ctx, workers) },
	}, nil
}

// serveHealth answers /healthz on the loopback until ctx is done.
func serveHealth(ctx context.Context, port int) error {
	certificate, key, err := cert.GenerateSelfSignedCertKey("localhost", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return fmt.Errorf("making a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return fmt.Errorf("loading the certificate: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	server := &http.Server{
		Addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), Handler: mux, ReadHeaderTimeout: 10 * time.Second,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	if err := server.ListenAndServeTLS("", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}
