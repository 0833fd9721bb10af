package e2e

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	// deadline is how long a change may take to get where it should. A kube-proxy whose wrapper was away again and
	// again within two minutes, as some tests have it, pauses for up to 60 s between its attempts (client-go: 30 s, and
	// up to as much again at random).
	deadline = 90 * time.Second
	// between is the pause between two looks.
	between = 20 * time.Millisecond
)

// fixture is a namespace of the shared cluster, with what most tests need.
type fixture struct {
	suite.Test
	ctx       context.Context
	client    kubernetes.Interface
	namespace string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return &fixture{Test: suite.NewTest(t, shared, deadline, between), ctx: t.Context(), client: shared.Client(),
		namespace: suite.Namespace(t, shared, "e2e-")}
}

// daemonSet creates an echo pod on every node and a Service for them.
func (f *fixture) daemonSet(name string, keys ...string) *corev1.Service {
	f.Helper()
	f.Must(workload.In(f.client, f.namespace).CreateDaemonSet(f.ctx, name))
	return f.service(name, workload.ServiceOptions{TopologyKeys: keys})
}

func (f *fixture) service(name string, options workload.ServiceOptions) *corev1.Service {
	f.Helper()
	service, err := workload.In(f.client, f.namespace).CreateService(f.ctx, name, options)
	f.Must(err)
	return service
}

// podsOn returns the names of the workload's pods on a node.
func (f *fixture) podsOn(name, node string) []string {
	f.Helper()
	names, err := workload.In(f.client, f.namespace).PodsOn(f.ctx, name, node)
	f.Must(err)
	return names
}

// setReady sets the condition Ready of the workload's pods on a node.
func (f *fixture) setReady(name, node string, status corev1.ConditionStatus) {
	f.Helper()
	f.Must(workload.In(f.client, f.namespace).SetReadyOn(f.ctx, name, node, status))
}

// relabel moves a node to another site, or out of all if site is empty. The cleanup moves it back.
func (f *fixture) relabel(name, site string) {
	f.Helper()
	node := f.Node(name)
	f.Cleanup(func() {
		if err := shared.RelabelNode(context.Background(), name, siteLabel, node.Spec.Labels[siteLabel]); err != nil {
			f.Errorf("moving %s back: %v", name, err)
		}
	})
	f.Must(shared.RelabelNode(f.ctx, name, siteLabel, site))
}

// reach is whom the nodes should reach: for every node the nodes that answer it, separated by spaces; empty
// for nobody.
type reach map[string]string

var (
	siteLocal  = reach{"a1": "a1 a2", "a2": "a1 a2", "b1": "b1 b2", "b2": "b1 b2"}
	everywhere = reach{"a1": "a1 a2 b1 b2", "a2": "a1 a2 b1 b2", "b1": "a1 a2 b1 b2", "b2": "a1 a2 b1 b2"}
	nowhere    = reach{"a1": "", "a2": "", "b1": "", "b2": ""}
)

// with is a copy with the nodes of other replaced.
func (r reach) with(other reach) reach {
	result := maps.Clone(r)
	maps.Copy(result, other)
	return result
}

// eachNode calls act for every node at the same time and fails the test if one fails.
func (f *fixture) eachNode(act func(*cluster.Node) error) {
	f.Helper()
	var group sync.WaitGroup
	for _, node := range shared.Nodes() {
		group.Go(func() {
			if err := act(node); err != nil {
				f.Errorf("node %s: %v", node.Spec.Name, err)
			}
		})
	}
	group.Wait()
	if f.Failed() {
		f.FailNow()
	}
}
