package check

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestAlone: what nodes with lite-apiserver say of themselves.
func TestAlone(t *testing.T) {
	for name, test := range map[string]struct {
		status  corev1.ConditionStatus
		ago     time.Duration
		unready bool
		want    []string
	}{
		"all would start": {corev1.ConditionTrue, 10 * time.Minute, false, nil},
		"some would not": {corev1.ConditionFalse, 10 * time.Minute, false,
			[]string{"warning StartsAlone Node edge0: shop/till: why"}},
		"not heard of": {corev1.ConditionTrue, time.Hour, false,
			[]string{"warning StartsAlone Node edge0: its lite-apiserver has said nothing for 1h0m0s"}},
		"away": {corev1.ConditionTrue, time.Hour, true,
			[]string{"unknown Wrapper", "unknown Daemon"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			node := get[*corev1.Node](c, "Node /edge0")
			if test.unready {
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
			}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: v1.NodeStartsAlone,
				Status: test.status, Message: "shop/till: why", LastHeartbeatTime: metav1.NewTime(now.Add(-test.ago))})
			expect(t, After(t.Context(), c.source()), test.want)
		})
	}
}
