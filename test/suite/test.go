package suite

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/freeport"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// Test is a test with a cluster. The fixtures of packages embed it.
type Test struct {
	*testing.T
	// Cluster is what the test's nodes are of.
	Cluster *cluster.Cluster
	// Patience is how long a change may take to get where it should, and the pause between two looks.
	Patience await.Patience
}

// NewTest is a test on this cluster, in which a change may take so long, with a pause between two looks.
func NewTest(t *testing.T, c *cluster.Cluster, within, between time.Duration) Test {
	t.Helper()
	return Test{T: t, Cluster: c, Patience: await.Patience{Within: within, Between: between}}
}

// Dynamic is a client of any kind of objects.
func Dynamic(tb testing.TB, config *rest.Config) dynamic.Interface {
	tb.Helper()
	client, err := dynamic.NewForConfig(config)
	Must(tb, err)
	return client
}

// Must ends the test if there is an error.
func (t *Test) Must(err error) {
	t.Helper()
	Must(t.T, err)
}

// Must ends a test if there is an error.
func Must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// Binary is Program, of a test that ends without it.
func Binary(tb testing.TB, name string) string {
	tb.Helper()
	path, err := Program(name)
	Must(tb, err)
	return path
}

// Repository is Root, of a test that ends without it.
func Repository(tb testing.TB) string {
	tb.Helper()
	root, err := Root()
	Must(tb, err)
	return root
}

// Step runs a part of the test, which fails with it. It reports whether the part passed.
func (t *Test) Step(name string, do func()) bool {
	t.Helper()
	whole := t.T
	defer func() { t.T = whole }()
	return whole.Run(name, func(part *testing.T) {
		t.T = part
		do()
	})
}

// Eventually asks until there is no error, and logs and returns how long that took.
func (t *Test) Eventually(what string, ask func() error) time.Duration {
	t.Helper()
	took := t.Patience.Until(t.T, what, ask)
	t.Logf("%-60s %dms", what, took.Milliseconds())
	return took
}

// Node is a node of the cluster.
func (t *Test) Node(name string) *cluster.Node {
	t.Helper()
	node, err := t.Cluster.Node(name)
	t.Must(err)
	return node
}

// AddNode adds a node to the cluster, until the test ends. The test may remove it before.
func (t *Test) AddNode(spec cluster.NodeSpec) *cluster.Node {
	t.Helper()
	return t.AddNodes(spec)[0]
}

// AddNodes is AddNode for many, which wait for the control plane at the same time.
func (t *Test) AddNodes(specs ...cluster.NodeSpec) []*cluster.Node {
	t.Helper()
	nodes, failures := make([]*cluster.Node, len(specs)), make([]error, len(specs))
	var group sync.WaitGroup
	for i, spec := range specs {
		group.Go(func() { nodes[i], failures[i] = t.Cluster.AddNode(t.Context(), spec) })
		t.Cleanup(func() {
			if _, err := t.Cluster.Node(spec.Name); err != nil {
				return
			}
			if err := t.Cluster.RemoveNode(context.Background(), spec.Name); err != nil {
				t.Errorf("removing the node: %v", err)
			}
		})
	}
	group.Wait()
	t.Must(errors.Join(failures...))
	return nodes
}

// Says waits until a page of the node's wrapper is answered with 200, and has all the parts.
func (t *Test) Says(node *cluster.Node, path string, parts ...string) {
	t.Helper()
	t.Answers(node, node.WrapperURL()+path, http.StatusOK, parts...)
}

// Answers waits until a URL is answered on the node with this status, 0 for any, and has all the parts.
func (t *Test) Answers(node workload.Source, url string, status int, parts ...string) {
	t.Helper()
	t.Eventually(fmt.Sprintf("%s: %s is %d and says %q", node.Name(), url, status, parts), func() error {
		reply, err := node.Get(t.Context(), url)
		if err != nil {
			return err
		}
		if status != 0 && reply.Status != status {
			return fmt.Errorf("it is %d, and says %s", reply.Status, reply.Body)
		}
		for _, part := range parts {
			if !strings.Contains(reply.Body, part) {
				return fmt.Errorf("%q is not in %s", part, reply.Body)
			}
		}
		return nil
	})
}

// ExpectReach waits until every node reaches exactly the nodes that it should by a Service, as AwaitReach has them, and
// logs how long it took.
func (t *Test) ExpectReach(what string, service *corev1.Service, expected map[string]string) {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), t.Patience.Within)
	defer cancel()
	var mu sync.Mutex
	var wrong, took []string
	var group sync.WaitGroup
	for name, want := range expected {
		node := t.Node(name)
		group.Go(func() {
			err := workload.AwaitReach(ctx, node, service, want, workload.Tries)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, fmt.Sprintf("%s %dms", name, time.Since(begin).Milliseconds()))
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("(%s, %s) %v", node.Spec.ProxyMode, node.Spec.Protocol, err))
			}
		})
	}
	group.Wait()
	if len(wrong) > 0 {
		t.Fatalf("%s: not within %s: %s", what, t.Patience.Within, strings.Join(wrong, "; "))
	}
	slices.Sort(took)
	t.Logf("%-52s %s", what, strings.Join(took, "  "))
}

// Identities are the UIDs of what must survive when another controller takes over a namespace: pods, workloads with
// their history, Services with their addresses, and these resources.
func (t *Test) Identities(client dynamic.Interface, in string, more ...schema.GroupVersionResource) map[string]string {
	t.Helper()
	identities := map[string]string{}
	for _, resource := range append([]schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "services"},
		{Group: "apps", Version: "v1", Resource: "replicasets"},
		{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "apps", Version: "v1", Resource: "statefulsets"},
	}, more...) {
		list, err := client.Resource(resource).Namespace(in).List(t.Context(), metav1.ListOptions{})
		t.Must(err)
		for _, item := range list.Items {
			if by := metav1.GetControllerOf(&item); by != nil && strings.HasSuffix(by.Kind, "Grid") &&
				resource.Resource == "controllerrevisions" {
				continue // a grid's own history, which SuperEdge does not have
			}
			address, _, _ := unstructured.NestedString(item.Object, "spec", "clusterIP")
			identities[resource.Resource+"/"+item.GetName()] = string(item.GetUID()) + " " + address
		}
	}
	return identities
}

// Kept waits until what the nodes see now is in the snapshots of their wrappers, which write one this time after a
// change, or later if that is large or the machine is busy. For a revision that changes nothing in it, such as that
// after a restart, they write none: after ten times as long there is nothing to write.
func (t *Test) Kept(writeDelay time.Duration, nodes ...*cluster.Node) {
	t.Helper()
	time.Sleep(3 * writeDelay) // one of what changes without a revision, such as the neighbours, is begun by then
	for _, node := range nodes {
		client, err := kubernetes.NewForConfig(node.WrapperConfig(cluster.RoleKubeProxy))
		t.Must(err)
		list, err := client.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{})
		t.Must(err)
		seen, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
		t.Must(err)
		begin := time.Now()
		t.Eventually("there is a snapshot of "+node.Name(), func() error {
			kept, err := snapshot.Read(node.StateDir)
			switch {
			case err != nil:
				return err
			case kept == nil:
				return errors.New("there is none")
			case kept.Revision < seen && time.Since(begin) < 10*writeDelay:
				return fmt.Errorf("it is of the revision %d, not %d", kept.Revision, seen)
			}
			return nil
		})
	}
}

// Is returns a question to wait for, which is answered by an error unless a value is the one that is wanted.
func Is[T comparable](want T, get func() T) func() error {
	return func() error {
		if got := get(); got != want {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	}
}

// Path makes a directory with what a user has on the PATH: kubectl and its plugin, and these programs.
func Path(tb testing.TB, programs ...string) string {
	tb.Helper()
	dir := tb.TempDir()
	for _, name := range append([]string{"kubectl-grid"}, programs...) {
		Must(tb, os.Symlink(Binary(tb, name), filepath.Join(dir, name)))
	}
	kubectl := fmt.Sprintf("#!/bin/sh\nexec '%s' kubectl \"$@\"\n", Binary(tb, "components"))
	Must(tb, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(kubectl), 0o755)) //nolint:gosec // to be run
	return dir
}

// FreePort is a port of 127.0.0.1 on which nothing listens.
func FreePort(tb testing.TB) int {
	tb.Helper()
	port, err := freeport.Find(tb.Context())
	Must(tb, err)
	return port
}
