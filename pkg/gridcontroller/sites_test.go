package gridcontroller

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

func TestSites(t *testing.T) {
	f := newFixture(t)
	node := func(labels map[string]string) *nodeState { return &nodeState{labels: labels} }
	f.note("n1", node(map[string]string{"zone1": "east"}))
	f.note("n2", node(map[string]string{"zone1": "", "rack": "r1"}))
	expect := func(key string, want ...string) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(sitesOf(f.reconcilers["ServiceGrid"].nodes, key))); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", key, got, want)
		}
	}
	expect("zone1", "", "east") // an empty value is a value
	expect("rack", "r1")
	// changes expects that a new state of a node changes what sites depend on, or does not.
	changes := func(want bool, name string, state *nodeState) {
		t.Helper()
		before, err := f.reconcilers["ServiceGrid"].nodes.Get(name)
		if err != nil {
			before = &corev1.Node{}
		}
		f.note(name, state)
		if got := changesSites(before, state.node(name)); got != want {
			t.Errorf("%s %v: got %t, want %t", name, state, got, want)
		}
	}
	changes(true, "n3", node(map[string]string{"zone1": "east"}))
	changes(true, "n1", node(map[string]string{"zone1": "east", "other": "x"}))
	changes(false, "n1", node(map[string]string{"zone1": "east", "other": "x"}))
	changes(true, "n1", node(map[string]string{"zone1": "west"}))
	expect("zone1", "", "east", "west")
	changes(true, "n2", node(map[string]string{"zone1": "north"}))
	changes(true, "n3", nil)
	expect("zone1", "north", "west")
	expect("rack")
	changes(true, "n6", node(map[string]string{"rack": ""}))
	changes(true, "n6", node(nil))
	expect("other")
	changes(true, "n5", node(map[string]string{"rack": "r"}))
	changes(true, "n5", node(map[string]string{"rack": "r", "size": "big"}))

	// A site is silent when its last node is.
	lost := func(site string) *nodeState {
		return &nodeState{labels: map[string]string{"zone1": site}, lost: true}
	}
	silent := func(want string) {
		t.Helper()
		sites := sitesOf(f.reconcilers["ServiceGrid"].nodes, "zone1")
		names := slices.DeleteFunc(slices.Sorted(maps.Keys(sites)), func(site string) bool {
			return !sites[site].allSilent()
		})
		if got := fmt.Sprint(names); got != want {
			t.Errorf("silent: got %s, want %s", got, want)
		}
	}
	changes(true, "n4", node(map[string]string{"zone1": "west"}))
	changes(true, "n4", lost("west"))
	silent("[]")
	changes(true, "n1", lost("west"))
	silent("[west]")
	changes(false, "n1", lost("west"))
	changes(true, "n1", lost("north"))
	changes(true, "n4", node(map[string]string{"zone1": "west"}))
	silent("[]")
	changes(true, "n2", nil)
	silent("[north]")
	changes(true, "n1", nil)
	silent("[]")
}

// TestKeysOfTheDay: whoever may edit grids may ask for any key, and for another one each second. None is remembered.
func TestKeysOfTheDay(t *testing.T) {
	f, grid := demo(t, in("east"))
	f.pass(grid)
	r := f.reconcilers["DeploymentGrid"]
	before := liveheap.Size()
	const keys, each = 20000, 32
	for i := range keys {
		edited := grid.DeepCopy()
		edited.Spec.GridUniqKey = fmt.Sprintf("%d.example.org/zone", i)
		r.newPass(edited, gridchild.NewOwner(r.GridKind, edited), newMemory(edited))
	}
	if grown := liveheap.Size() - before; grown > keys*each {
		t.Errorf("%d keys have left %d bytes", keys, grown)
	}
	runtime.KeepAlive(r)
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
		small, err := stripNode(node)
		if err != nil {
			t.Fatal(err)
		}
		kept := small.(*corev1.Node)
		if got, _ := isSilent(kept); got != lost || kept.Labels["a"] != "b" || len(kept.Annotations) > 0 ||
			len(kept.Status.Conditions) > 1 {
			t.Errorf("%s: got %t of %+v", status, got, kept)
		}
	}
}
