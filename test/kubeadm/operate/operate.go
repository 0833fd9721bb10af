// Package operate has what tests need that follow pages on a cluster of test/kubeadm, while its nodes ask a Service.
package operate

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/docs/page"
	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

// SiteLabel is the label that makes sites, as in the pages.
const SiteLabel = "zone1"

var (
	// Everybody is who may answer a node without a wrapper: all nodes of the cluster.
	Everybody = []string{"cloud0", "node0", "node1"}
	// Patience is for what kubelets and controllers do on a busy machine.
	Patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}
)

// Group is the cluster of all tests of a package.
type Group struct {
	*kubeadm.Cluster
	// Programs is the directory with what `make kubeadm-programs` builds, Images the one with the archives of the
	// product's images.
	Programs, Images string
}

// Main starts the cluster, runs the tests, and ends the program.
func (g *Group) Main(m *testing.M, start func(context.Context, kubeadm.Options) (*kubeadm.Cluster, error)) {
	code, err := g.run(m, start)
	if err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func (g *Group) run(m *testing.M, start func(context.Context, kubeadm.Options) (*kubeadm.Cluster, error)) (code int,
	err error) {
	if err := suite.Privileged(); err != nil {
		return 1, err
	}
	root, err := suite.Root()
	if err != nil {
		return 1, err
	}
	if g.Programs = os.Getenv("BIN"); g.Programs == "" {
		g.Programs = filepath.Join(root, "bin")
	}
	g.Images = filepath.Join(root, "dist", "images")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	g.Cluster, err = start(ctx, kubeadm.Options{
		Bin: g.Programs, Program: filepath.Join(g.Programs, "kubeadm-cluster"), Nodes: Everybody,
		Progress: func(what string, took time.Duration) { fmt.Printf("  %5.1f s  %s\n", took.Seconds(), what) },
	})
	if err != nil {
		return 1, err
	}
	defer context.AfterFunc(ctx, func() {
		_ = g.Stop() // the program ends with an error anyway
		os.Exit(1)
	})()
	defer func() {
		if os.Getenv("KEEP") != "" && code != 0 {
			fmt.Printf("KEEP: the cluster is there until Ctrl-C: KUBECONFIG=%s\n", g.Kubeconfig())
			<-ctx.Done()
		}
		if stopErr := g.Stop(); err == nil {
			err = stopErr
		}
	}()
	return m.Run(), nil
}

// Operator follows pages. Nodes ask his Service meanwhile, from step to step.
type Operator struct {
	*page.Reader
	Client  kubernetes.Interface
	Service *corev1.Service

	group     *Group
	streaming context.Context //nolint:containedctx // it is what ends the streams
	streams   map[string]*stream
}

// stream are the requests of one node.
type stream struct {
	traffic *workload.Traffic
	since   time.Time
}

// Operator opens a page.
func (g *Group) Operator(t *testing.T, name string) *Operator {
	t.Helper()
	path := t.TempDir()
	suite.Must(t, os.WriteFile(filepath.Join(path, "kubectl"), //nolint:gosec // a program
		fmt.Appendf(nil, "#!/bin/sh\nexec '%s/components' kubectl \"$@\"\n", g.Programs), 0o755))
	suite.Must(t, os.Symlink(filepath.Join(g.Programs, "kubectl-grid"), filepath.Join(path, "kubectl-grid")))
	return &Operator{Client: g.Client(), group: g, streaming: t.Context(), streams: map[string]*stream{},
		Reader: page.Open(suite.Test{T: t, Patience: Patience}, name, "KUBECONFIG="+g.Kubeconfig(),
			"PATH="+path+":"+os.Getenv("PATH"))}
}

// StartEcho runs an echo pod on every node, real containers with addresses of the CNI, and makes their Service closed:
// it is the one that is asked.
func (o *Operator) StartEcho() {
	o.Helper()
	set := kubeadm.EchoDaemonSet()
	_, err := o.Client.AppsV1().DaemonSets(set.Namespace).Create(o.Context(), set, metav1.CreateOptions{})
	o.Must(err)
	o.Service = o.CreateService("echo", SiteLabel)
}

// CreateService makes a Service of the echo pods.
func (o *Operator) CreateService(name string, keys ...string) *corev1.Service {
	o.Helper()
	service, err := workload.In(o.Client, metav1.NamespaceDefault).CreateService(o.Context(), name,
		workload.ServiceOptions{Workload: "echo", TopologyKeys: keys})
	o.Must(err)
	return service
}

// Expect waits until requests from the node are answered by exactly these nodes; from then on, until the next Expect,
// Widen or Pause of the node, a request that is lost or answered by another one fails the test.
func (o *Operator) Expect(node string, by ...string) {
	o.Helper()
	o.Pause(node)
	begin := time.Now()
	for {
		seen := o.Reached(node, o.Service, 30) // often enough to meet each of three
		if slices.Equal(seen, by) {
			break
		}
		if time.Since(begin) > Patience.Within {
			o.Shell("kubectl get nodes --show-labels; kubectl get pods -A -o wide; kubectl get endpointslices -A; " +
				"kubectl -n kube-system get daemonsets")
			o.Fatalf("%s is answered by %v, and not by %v", node, seen, by)
		}
	}
	o.Logf("%s is answered by %v after %.1f s", node, by, time.Since(begin).Seconds())
	o.Widen(node, by...)
}

// Widen goes on with the requests of the node, which these nodes may answer from now on: it is about to change.
func (o *Operator) Widen(node string, by ...string) {
	o.Helper()
	o.Pause(node)
	traffic := workload.StartTraffic(o.streaming, workload.URL(o.Service), 10*time.Millisecond)
	traffic.From(o.group.Node(node), by)
	o.streams[node] = &stream{traffic, time.Now()}
}

// Pause ends the node's requests, and reports what was lost.
func (o *Operator) Pause(node string) {
	o.Helper()
	stream := o.streams[node]
	if stream == nil {
		return
	}
	delete(o.streams, node)
	tried, failed := stream.traffic.End()
	o.Logf("%s: %d requests in %.1f s, %d lost or answered by a foreign site", node, tried,
		time.Since(stream.since).Seconds(), len(failed))
	if len(failed) > 0 {
		o.Errorf("%s, of %d requests:\n%s", node, tried, strings.Join(failed[:min(len(failed), 20)], "\n"))
	}
	if tried == 0 && time.Since(stream.since) > time.Second {
		o.Errorf("%s made no request", node)
	}
}

// Reached are the nodes that answer requests to a Service from a node, in order; "nobody" for one without an answer.
func (o *Operator) Reached(node string, service *corev1.Service, tries int) []string {
	reached := map[string]bool{}
	for range tries {
		attempt, cancel := context.WithTimeout(o.Context(), time.Second)
		answer, err := workload.Ask(attempt, o.group.Node(node), workload.URL(service))
		cancel()
		if err != nil {
			answer.Node = "nobody"
			time.Sleep(20 * time.Millisecond)
		}
		reached[answer.Node] = true
	}
	return slices.Sorted(maps.Keys(reached))
}

// Asking is the operator with another Service that is asked.
func (o *Operator) Asking(service *corev1.Service) *Operator {
	other := *o
	other.Service, other.streams = service, map[string]*stream{}
	return &other
}

// Import gives all nodes the images that are installed on nodes.
func (o *Operator) Import() {
	o.Helper()
	for _, node := range Everybody {
		for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
			"statefulset-grid-daemon"} {
			o.Must(o.group.Node(node).Import(o.Context(), filepath.Join(o.group.Images, name+".tar")))
		}
	}
}

// PowerOn gives a node power and link after a cut, and waits until it reaches its own site, and the cloud everybody.
func (o *Operator) PowerOn(node *kubeadm.Node) {
	o.Helper()
	begin := time.Now()
	o.Must(node.PowerOn())
	o.Expect(node.Name(), node.Name())
	o.Logf("%s reaches its own site %.1f s after power and link came back", node.Name(), time.Since(begin).Seconds())
	o.Expect("cloud0", Everybody...)
}
