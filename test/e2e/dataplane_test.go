package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/workload"
)

func TestClosedLoop(t *testing.T) {
	f := newFixture(t)
	governed := f.daemonSet("governed", unitLabel)
	open := f.daemonSet("open")
	f.expectReach("a governed Service reaches the own unit", governed, closedLoop)
	f.expectReach("another Service reaches all", open, everywhere)
}

func TestEndpointReadiness(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", unitLabel)
	f.expectReach("all ready", service, closedLoop)

	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.expectReach("a1's pod is unready", service, closedLoop.with(reach{"a1": "a2", "a2": "a2"}))
	f.setReady("echo", "a2", corev1.ConditionFalse)
	f.expectReach("unit-a has none, and gets none of unit-b", service, closedLoop.with(reach{"a1": "", "a2": ""}))
	f.setReady("echo", "a1", corev1.ConditionTrue)
	f.expectReach("a1's pod is ready again", service, closedLoop.with(reach{"a1": "a1", "a2": "a1"}))
	f.setReady("echo", "a2", corev1.ConditionTrue)
	f.expectReach("all ready again", service, closedLoop)
}

func TestScale(t *testing.T) {
	f := newFixture(t)
	f.Must(workload.CreateDeployment(f.ctx, f.client, f.namespace, "echo", 1, map[string]string{unitLabel: unitA}))
	service := f.service("echo", workload.ServiceOptions{TopologyKeys: []string{unitLabel}})
	onlyA := nowhere.with(reach{"a1": "a1 a2", "a2": "a1 a2"})

	f.expectPods("one pod, in unit-a", service, 1)
	f.Must(workload.Scale(f.ctx, f.client, f.namespace, "echo", 6))
	f.expectPods("scaled up", service, 6)
	f.expectReach("scaled up, on both nodes of unit-a only", service, onlyA)
	f.Must(workload.Scale(f.ctx, f.client, f.namespace, "echo", 2))
	f.expectPods("scaled down", service, 2)
	f.Must(workload.Scale(f.ctx, f.client, f.namespace, "echo", 0))
	f.expectReach("scaled to none", service, nowhere)
	f.Must(workload.Scale(f.ctx, f.client, f.namespace, "echo", 4))
	f.expectPods("and up from none", service, 4)
}

// expectPods waits until this many pods answer the nodes of unit-a, and none those of unit-b.
func (f *fixture) expectPods(what string, service *corev1.Service, pods int) {
	f.Helper()
	f.Eventually(what, func() error {
		for _, node := range shared.Nodes() {
			expected := pods
			if node.Spec.Labels[unitLabel] != unitA {
				expected = 0
			}
			if answered := workload.ReachPods(f.ctx, node, service, tries*2); len(answered) != expected {
				return fmt.Errorf("from %s: want %d pods, got %v", node.Spec.Name, expected, answered)
			}
		}
		return nil
	})
}

func TestNodeRelabelled(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", unitLabel)
	f.expectReach("two units of two nodes", service, closedLoop)

	f.relabel("a2", unitB)
	f.expectReach("a2 moved to unit-b", service,
		reach{"a1": "a1", "a2": "a2 b1 b2", "b1": "a2 b1 b2", "b2": "a2 b1 b2"})
	f.relabel("b1", unitA)
	f.expectReach("b1 moved to unit-a", service, reach{"a1": "a1 b1", "a2": "a2 b2", "b1": "a1 b1", "b2": "a2 b2"})
	f.relabel("a2", "")
	f.expectReach("a2 is in no unit", service, reach{"a1": "a1 b1", "a2": "", "b1": "a1 b1", "b2": "b2"})
	f.relabel("a2", unitA)
	f.relabel("b1", unitB)
	f.expectReach("both are back", service, closedLoop)
}

func TestAnnotationComesAndGoes(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo")
	f.expectReach("without the annotation", service, everywhere)
	f.Must(workload.SetTopologyKeys(f.ctx, f.client, f.namespace, "echo", unitLabel))
	f.expectReach("annotated", service, closedLoop)
	f.Must(workload.SetTopologyKeys(f.ctx, f.client, f.namespace, "echo", corev1.LabelHostname))
	f.expectReach("annotated with another key", service, reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.Must(workload.SetTopologyKeys(f.ctx, f.client, f.namespace, "echo"))
	f.expectReach("the annotation is gone", service, everywhere)
}

func TestKeysInOrder(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", corev1.LabelHostname, unitLabel, "*")
	f.expectReach("the own node first", service, reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.expectReach("then the own unit", service, reach{"a1": "a2", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.setReady("echo", "a2", corev1.ConditionFalse)
	f.expectReach("then anyone", service, reach{"a1": "b1 b2", "a2": "b1 b2", "b1": "b1", "b2": "b2"})
}
