package e2e

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/workload"
)

func TestEndpointReadiness(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", siteLabel)
	f.ExpectReach("all ready", service, siteLocal)

	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.ExpectReach("a1's pod is unready", service, siteLocal.with(reach{"a1": "a2", "a2": "a2"}))
	f.setReady("echo", "a2", corev1.ConditionFalse)
	f.ExpectReach("site-a has none, and gets none of site-b", service, siteLocal.with(reach{"a1": "", "a2": ""}))
	f.setReady("echo", "a1", corev1.ConditionTrue)
	f.ExpectReach("a1's pod is ready again", service, siteLocal.with(reach{"a1": "a1", "a2": "a1"}))
	f.setReady("echo", "a2", corev1.ConditionTrue)
	f.ExpectReach("all ready again", service, siteLocal)
}

func TestScale(t *testing.T) {
	f := newFixture(t)
	f.Must(workload.In(f.client, f.namespace).CreateDeployment(f.ctx, "echo", 1, map[string]string{siteLabel: siteA}))
	service := f.service("echo", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	onlyA := nowhere.with(reach{"a1": "a1 a2", "a2": "a1 a2"})

	f.expectPods("one pod, in site-a", service, 1)
	f.Must(workload.In(f.client, f.namespace).Scale(f.ctx, "echo", 6))
	f.expectPods("scaled up", service, 6)
	f.ExpectReach("scaled up, on both nodes of site-a only", service, onlyA)
	f.Must(workload.In(f.client, f.namespace).Scale(f.ctx, "echo", 2))
	f.expectPods("scaled down", service, 2)
	f.Must(workload.In(f.client, f.namespace).Scale(f.ctx, "echo", 0))
	f.ExpectReach("scaled to none", service, nowhere)
	f.Must(workload.In(f.client, f.namespace).Scale(f.ctx, "echo", 4))
	f.expectPods("and up from none", service, 4)
}

// expectPods waits until this many pods answer the nodes of site-a, and none those of site-b.
func (f *fixture) expectPods(what string, service *corev1.Service, pods int) {
	f.Helper()
	f.Eventually(what, func() error {
		for _, node := range shared.Nodes() {
			expected := pods
			if node.Spec.Labels[siteLabel] != siteA {
				expected = 0
			}
			if answered := workload.ReachPods(f.ctx, node, service, workload.Tries*2); len(answered) != expected {
				return fmt.Errorf("from %s: want %d pods, got %v", node.Spec.Name, expected, answered)
			}
		}
		return nil
	})
}

func TestNodeRelabelled(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", siteLabel)
	f.ExpectReach("two sites of two nodes", service, siteLocal)

	f.relabel("a2", siteB)
	f.ExpectReach("a2 moved to site-b", service,
		reach{"a1": "a1", "a2": "a2 b1 b2", "b1": "a2 b1 b2", "b2": "a2 b1 b2"})
	f.relabel("b1", siteA)
	f.ExpectReach("b1 moved to site-a", service, reach{"a1": "a1 b1", "a2": "a2 b2", "b1": "a1 b1", "b2": "a2 b2"})
	f.relabel("a2", "")
	f.ExpectReach("a2 is in no site", service, reach{"a1": "a1 b1", "a2": "", "b1": "a1 b1", "b2": "b2"})
	f.relabel("a2", siteA)
	f.relabel("b1", siteB)
	f.ExpectReach("both are back", service, siteLocal)
}

func TestAnnotationComesAndGoes(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo")
	f.ExpectReach("without the annotation", service, everywhere)
	f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo", siteLabel))
	f.ExpectReach("annotated", service, siteLocal)
	f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo", corev1.LabelHostname))
	f.ExpectReach("annotated with another key", service, reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "echo"))
	f.ExpectReach("the annotation is gone", service, everywhere)
}

func TestKeysInOrder(t *testing.T) {
	f := newFixture(t)
	service := f.daemonSet("echo", corev1.LabelHostname, siteLabel, "*")
	f.ExpectReach("the own node first", service, reach{"a1": "a1", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.setReady("echo", "a1", corev1.ConditionFalse)
	f.ExpectReach("then the own site", service, reach{"a1": "a2", "a2": "a2", "b1": "b1", "b2": "b2"})
	f.setReady("echo", "a2", corev1.ConditionFalse)
	f.ExpectReach("then anyone", service, reach{"a1": "b1 b2", "a2": "b1 b2", "b1": "b1", "b2": "b2"})
}
