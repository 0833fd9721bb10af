package grid

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestTolerateUnreachable: of a node that the API server calls unreachable, the pods of a grid with
// spec.tolerateUnreachable are not evicted, by the real controllers; those of another grid are.
// The pods have no toleration with a time, although kube-apiserver adds such to pods that have none.
func TestTolerateUnreachable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	node := f.node("east")
	f.apply(strings.Replace(deploymentGrid("staying"), "gridUniqKey: KEY,",
		"gridUniqKey: KEY, tolerateUnreachable: true,", 1))
	const atOnce = `{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 0}`
	f.apply(strings.Replace(deploymentGrid("leaving"), "containers:", "tolerations: ["+atOnce+"], containers:", 1))
	f.expectReady("DeploymentGrid", "staying", 1)
	f.expectReady("DeploymentGrid", "leaving", 1)
	uids := func(grid string) []types.UID {
		var all []types.UID
		for _, pod := range f.pods(grid) {
			all = append(all, pod.UID)
		}
		slices.Sort(all)
		return all
	}
	staying, leaving := uids("staying"), uids("leaving")
	if len(staying) == 0 || len(leaving) == 0 {
		t.Fatalf("there are no pods: %v, %v", staying, leaving)
	}
	for _, pod := range f.pods("staying") {
		for _, taint := range []string{corev1.TaintNodeUnreachable, corev1.TaintNodeNotReady} {
			found := slices.DeleteFunc(slices.Clone(pod.Spec.Tolerations), func(t corev1.Toleration) bool {
				return t.Key != taint
			})
			if len(found) != 1 || found[0].TolerationSeconds != nil || found[0].Effect != corev1.TaintEffectNoExecute {
				t.Errorf("pod %s tolerates %s as %+v", pod.Name, taint, found)
			}
		}
	}

	taint := func(taints string) {
		_, err := f.client.CoreV1().Nodes().Patch(f.ctx, node, types.MergePatchType,
			[]byte(`{"spec":{"taints":`+taints+`}}`), metav1.PatchOptions{})
		f.Must(err)
	}
	f.Eventually("pods without the toleration are evicted", func() error {
		// Again and again: the node controller, which hears of the node, takes it away every 5 s.
		taint(fmt.Sprintf(`[{"key":%q,"effect":"NoExecute"}]`, corev1.TaintNodeUnreachable))
		for _, uid := range uids("leaving") {
			if slices.Contains(leaving, uid) {
				return fmt.Errorf("pod %s is still there", uid)
			}
		}
		return nil
	})
	f.stays("the others are not", 3*time.Second, func() error {
		if now := uids("staying"); !slices.Equal(now, staying) {
			return fmt.Errorf("there were %v, there are %v", staying, now)
		}
		return nil
	})
	taint("null")
	f.expectReady("DeploymentGrid", "leaving", 1)
}
