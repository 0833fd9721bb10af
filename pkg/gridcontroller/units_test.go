package gridcontroller

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUnits(t *testing.T) {
	u := newUnits()
	node := func(labels map[string]string) *nodeState { return &nodeState{labels: labels} }
	u.note("n1", node(map[string]string{"zone1": "east"}))
	u.note("n2", node(map[string]string{"zone1": "", "rack": "r1"}))
	expect := func(key string, want ...string) {
		t.Helper()
		if got := u.of(key); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	expect("zone1", "east")
	expect("rack", "r1")
	changes := func(want string, name string, state *nodeState) {
		t.Helper()
		got := u.note(name, state)
		slices.Sort(got)
		if fmt.Sprint(got) != want {
			t.Errorf("%s %v: got %v, want %s", name, state, got, want)
		}
	}
	changes("[]", "n3", node(map[string]string{"zone1": "east"})) // one more node in a unit is nothing to a grid
	changes("[]", "n1", node(map[string]string{"zone1": "east", "other": "x"}))
	changes("[zone1]", "n1", node(map[string]string{"zone1": "west"}))
	expect("zone1", "east", "west")
	changes("[rack zone1]", "n2", node(map[string]string{"zone1": "north"}))
	changes("[zone1]", "n3", nil)
	expect("zone1", "north", "west")
	expect("rack")
	expect("other")

	// A unit is unreachable when its last node is.
	lost := func(unit string) *nodeState {
		return &nodeState{labels: map[string]string{"zone1": unit}, lost: true}
	}
	unreachable := func(want string) {
		t.Helper()
		if got := fmt.Sprint(slices.Sorted(maps.Keys(u.unreachable("zone1")))); got != want {
			t.Errorf("unreachable: got %s, want %s", got, want)
		}
	}
	changes("[]", "n4", node(map[string]string{"zone1": "west"}))
	changes("[]", "n4", lost("west"))
	unreachable("[]")
	changes("[zone1]", "n1", lost("west"))
	unreachable("[west]")
	changes("[]", "n1", lost("west"))
	changes("[]", "n1", lost("north"))
	changes("[zone1]", "n4", node(map[string]string{"zone1": "west"}))
	unreachable("[]")
	changes("[zone1]", "n2", nil)
	unreachable("[north]")
	changes("[zone1]", "n1", nil)
	unreachable("[]")
}

func TestNodeState(t *testing.T) {
	for status, lost := range map[corev1.ConditionStatus]bool{
		"": false, corev1.ConditionTrue: false, corev1.ConditionFalse: false, corev1.ConditionUnknown: true,
	} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{
				Name: "n", Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"large": "x"},
			},
		}
		if status != "" {
			node.Status.Conditions = []corev1.NodeCondition{
				{Type: corev1.NodeDiskPressure, Status: corev1.ConditionUnknown},
				{Type: corev1.NodeReady, Status: status},
			}
		}
		small, err := onlyState(node)
		if err != nil {
			t.Fatal(err)
		}
		kept := small.(*corev1.Node)
		if s := stateOf(kept); s.lost != lost || s.labels["a"] != "b" || len(kept.Annotations) > 0 ||
			len(kept.Status.Conditions) > 1 {
			t.Errorf("%s: got %+v of %+v", status, s, kept)
		}
	}
}
