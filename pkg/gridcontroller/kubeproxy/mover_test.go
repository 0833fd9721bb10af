package kubeproxy

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestKubeProxyMoves: a node gets the label that moves kube-proxy once its wrapper is ready, keeps it when the wrapper
// is not ready any more, and loses it with the label of edge nodes.
func TestKubeProxyMoves(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
	wrapper := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "w",
		Labels: map[string]string{"app": wrapperApp}}, Spec: corev1.PodSpec{NodeName: "n"}}
	other := wrapper.DeepCopy()
	other.Name, other.Spec.NodeName = "other", "other"
	ready := corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	other.Status = ready
	api := fake.NewClientBuilder().WithObjects(node, wrapper, other).WithStatusSubresource(&corev1.Pod{}).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string {
			return []string{o.(*corev1.Pod).Spec.NodeName}
		}).Build()
	r := &mover{cache: api, server: api, writer: api}
	step := func(name, edge string, status corev1.PodStatus, want string, waits bool) {
		t.Helper()
		wrapper.Status, wrapper.ResourceVersion = status, ""
		if err := api.Status().Update(t.Context(), wrapper); err != nil {
			t.Fatal(err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		delete(node.Labels, v1.LabelEdgeNode)
		if edge != "" {
			node.Labels[v1.LabelEdgeNode] = edge
		}
		if err := api.Update(t.Context(), node); err != nil {
			t.Fatal(err)
		}
		result, err := r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(node)})
		if err != nil || (result.RequeueAfter > 0) != waits {
			t.Errorf("%s: got %v, %v", name, result, err)
		}
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
			t.Fatal(err)
		}
		if got := node.Labels[v1.LabelKubeProxy]; got != want || node.Labels["zone"] != "a" {
			t.Errorf("%s: the labels are %v", name, node.Labels)
		}
	}
	step("no edge node", "", ready, "", false)
	step("its wrapper is not ready", "true", corev1.PodStatus{}, "", true)
	step("its wrapper is ready", "true", ready, "edge", false)
	step("it is not ready any more", "true", corev1.PodStatus{}, "edge", false)
	step("the wrapper is a unit of systemd now", "systemd", corev1.PodStatus{}, "edge", false)
	step("it is a pod again, and not ready yet", "true", corev1.PodStatus{}, "edge", false)
	step("no edge node any more", "", ready, "", false)
	step("its wrapper is a unit of systemd", "systemd", corev1.PodStatus{}, "edge", false)
	step("all is static", "static", ready, "", false)
	gone := reconcile.Request{NamespacedName: client.ObjectKey{Name: "gone"}}
	if _, err := r.Reconcile(t.Context(), gone); err != nil {
		t.Error(err)
	}
}
