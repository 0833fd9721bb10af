package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	unitLabel = "zone1"
	unitA     = "unit-a"
	unitB     = "unit-b"

	// near1, near2 and far are the nodes with the endpoints: two in the unit of all nodes that faults befall, one in
	// another. Their kube-proxies have no wrapper.
	near1 = "near1"
	near2 = "near2"
	far   = "far"

	// namespace is that of all objects.
	namespace = "faults"

	// writeDelay is the --state-write-delay of all wrappers.
	writeDelay = time.Second
	// atOnce is how many faults are under way at the same time. They wait for most of their time, but two cores must
	// suffice for the kube-proxies.
	atOnce = "8"
)

var (
	shared *cluster.Cluster
	// echo is the Service of the traffic.
	echo *corev1.Service
	// wrapperBin is the wrapper's path.
	wrapperBin string
)

func TestMain(m *testing.M) {
	flag.Parse()
	parallel := false
	flag.Visit(func(f *flag.Flag) { parallel = parallel || f.Name == "test.parallel" })
	if !parallel {
		flag.Set("test.parallel", atOnce)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "faults: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("these tests make network namespaces: run them as root")
	}
	components, err := program("COMPONENTS_BIN", "components")
	if err != nil {
		return 1, err
	}
	if wrapperBin, err = program("WRAPPER_BIN", "application-grid-wrapper"); err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	node := func(name, unit string) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, Labels: map[string]string{unitLabel: unit}, Direct: true}
	}
	shared, err = cluster.Start(ctx, cluster.Options{
		Components:  components,
		Wrapper:     wrapperBin,
		WrapperArgs: []string{"--state-write-delay=" + writeDelay.String()},
		Dir:         os.Getenv("E2E_DIR"), // to keep the logs
		Nodes:       []cluster.NodeSpec{node(near1, unitA), node(near2, unitA), node(far, unitB)},
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.Stop()) }()
	if err := prepare(ctx); err != nil {
		return 1, err
	}
	finished := make(chan struct{})
	go func() {
		select {
		case <-finished:
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "faults: interrupted")
			shared.Stop() // the program ends with an error anyway
			os.Exit(1)
		}
	}()
	code = m.Run()
	close(finished)
	results.print(os.Stdout)
	select {
	case err = <-shared.Failed():
	default:
	}
	return code, err
}

// prepare makes the namespace and the Service of the traffic.
func prepare(ctx context.Context) error {
	client := shared.Client()
	_, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	for { // without it pods are refused
		if _, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err == nil {
			break
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(between):
		}
	}
	echo, err = createService(ctx, "echo")
	return err
}

// createService creates a Service of the closed loop with an endpoint on each of the three nodes.
func createService(ctx context.Context, name string) (*corev1.Service, error) {
	for _, node := range []string{near1, near2, far} {
		if err := workload.CreatePod(ctx, shared.Client(), namespace, podName(name, node), name, node); err != nil {
			return nil, err
		}
	}
	return workload.CreateService(ctx, shared.Client(), namespace, name, workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
}

// deleteService deletes what createService created. What fails to be deleted goes with the cluster.
func deleteService(name string) {
	client := shared.Client().CoreV1()
	for _, node := range []string{near1, near2, far} {
		client.Pods(namespace).Delete(context.Background(), podName(name, node), metav1.DeleteOptions{})
	}
	client.Services(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
}

func podName(service, node string) string { return service + "-" + node }

// program is the path in the environment variable, or the one that `make build` writes.
func program(variable, name string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join("..", "..", "bin", name)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("there is no %s at %s: run `make build cluster` first, or name it in %s", name, path, variable)
	}
	return path, nil
}
