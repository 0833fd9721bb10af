package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
)

// wavesGrid is what is rolled out: a pod in every site, the first ten sites one by one, then a quarter at a time.
const wavesGrid = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: bench}
spec:
  gridUniqKey: ` + siteLabel + `
  template:
    replicas: 1
    selector: {matchLabels: {app: x}}
    template:
      metadata: {labels: {app: x}}
      spec: {containers: [{name: c, image: "registry.example.com/team/service:v1"}]}
  rollout:
    waves:
    - {name: canary, sites: {names: ["site-0000*"]}, maxUnavailable: 1}
    - {name: rest, maxUnavailable: 25%}
`

// measureRollout changes a template of all sites in two waves. kube-controller-manager and kube-scheduler are real, and
// kwok plays the kubelets.
func measureRollout(ctx context.Context, o options) error {
	return withGridBench(ctx, o, "one DeploymentGrid, a pod in every site; kube-apiserver, kube-controller-manager, kube-scheduler, kwok and the controller",
		// What a control plane of this size has: with the defaults it would write 20 times a second.
		cluster.Options{ControllerManagerArgs: []string{"--kube-api-qps=500", "--kube-api-burst=1000"}},
		(*gridBench).install, (*gridBench).rollOut)
}

// install makes the nodes and the grid, and waits until there is a ready pod in every site. A grid that is created gets
// no waves: its rollout is complete once all sites were ready.
func (b *gridBench) install(ctx context.Context) error {
	if err := b.createNodes(ctx, liveNode); err != nil {
		return err
	}
	return b.change(ctx, "grid created: a ready pod in every site", b.sites, func() error {
		if err := b.createGrid(ctx, wavesGrid); err != nil {
			return err
		}
		return b.await(ctx, "ready everywhere", func(status map[string]any) bool {
			return status["readySites"] == int64(b.sites)
		})
	}, ofDeployments)
}

// liveNode completes a node that kwok keeps alive.
func liveNode(node *corev1.Node, i int) {
	now := metav1.Now()
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Annotations = map[string]string{cluster.KwokAnnotation: "fake"}
	node.Status.Phase, node.Status.Capacity, node.Status.Allocatable = corev1.NodeRunning, resources, resources
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
		LastHeartbeatTime: now, LastTransitionTime: now}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)}}
}

// rollOut changes the image, and counts what the controller writes until every site has it.
func (b *gridBench) rollOut(ctx context.Context) error {
	return b.change(ctx, "image changed, in two waves (10 sites one by one, then a quarter at a time): complete", b.sites, func() error {
		changed, err := b.grids("DeploymentGrid").Patch(ctx, "bench", types.JSONPatchType,
			[]byte(`[{"op":"replace","path":"/spec/template/template/spec/containers/0/image","value":"registry.example.com/team/service:v2"}]`), metav1.PatchOptions{})
		if err != nil {
			return err
		}
		return b.await(ctx, "rolled out", func(status map[string]any) bool {
			phase, _, _ := unstructured.NestedString(status, "rollout", "phase")
			return phase == "Complete" && status["observedGeneration"] == changed.GetGeneration()
		})
	}, ofDeployments)
}

// await waits until the grid's status is so. state says in an error what it is not.
func (b *gridBench) await(ctx context.Context, state string, is func(status map[string]any) bool) error {
	ctx, cancel := context.WithTimeout(ctx, gridDeadline)
	defer cancel()
	return await.NoError(ctx, 100*time.Millisecond, func(ctx context.Context) error {
		grid, err := b.grids("DeploymentGrid").Get(ctx, "bench", metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("reading the grid: %w", err)
		}
		status, _, err := unstructured.NestedMap(grid.Object, "status")
		if err == nil && !is(status) {
			err = fmt.Errorf("the grid is not %s: %d sites are ready, and the rollout is %v", state, status["readySites"],
				status["rollout"])
		}
		return err
	})
}
