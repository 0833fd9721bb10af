package facts

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestSite: the nodes that have the same value of any key in use, as labels and Services change.
func TestSite(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	node := func(name, zone, rack string) *wire.Object {
		labels := map[string]string{}
		if zone != "" {
			labels["zone"] = zone
		}
		if rack != "" {
			labels["rack"] = rack
		}
		return wiretest.NodeWith(name, labels)
	}
	expect := func(what, want, selectors string) {
		t.Helper()
		var names []string
		for _, n := range f.Site() {
			names = append(names, n.Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
		if got := strings.Join(f.SiteSelectors(), " "); got != selectors {
			t.Errorf("%s: got the selectors %q, want %q", what, got, selectors)
		}
	}
	expect("nothing is known", "", "")
	f.Input(InputNodes).Replace([]*wire.Object{
		node("n0", "a", "r1"), node("n1", "a", ""), node("n2", "b", "r1"), node("n3", "", ""),
	})
	f.Input(InputServices).Replace(nil)
	f.Input(InputEndpointSlices).Replace(nil)
	expect("no Service is governed", "n0", "")
	f.Input(InputServices).Apply(wiretest.Service("s", `["zone","*"]`))
	expect("one key", "n0 n1", "zone=a")
	f.Input(InputServices).Apply(wiretest.Service("t", `["rack"]`))
	expect("two keys", "n0 n1 n2", "rack=r1 zone=a")
	f.Input(InputNodes).Apply(node("n1", "b", ""))
	f.Input(InputNodes).Apply(node("n3", "a", ""))
	expect("relabelled", "n0 n2 n3", "rack=r1 zone=a")
	f.Input(InputNodes).Apply(node("n0", "", "r1"))
	expect("without a key", "n0 n2", "rack=r1")
	f.Input(InputNodes).Remove("", "n0")
	expect("unknown", "", "")
}

// TestInternalIPs: those of neighbours are the listed ones, and those of this node what its own Node object says.
func TestInternalIPs(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	f.Input(InputNodes).Replace([]*wire.Object{
		wiretest.Node("n0", "a"), wiretest.Node("n1", "a"), wiretest.Node("n2", "a"),
	})
	f.Input(InputServices).Replace([]*wire.Object{wiretest.Service("s", `["zone"]`)})
	f.Input(InputNode).Replace([]*wire.Object{wiretest.Object(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n0"},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "n0"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"},
		}},
	})})
	for range 2 {
		f.UpdateNotes(func(n *Notes) {
			n.InternalIPs = map[string][]netip.Addr{
				"n0": {netip.MustParseAddr("10.9.9.9")}, "n1": {netip.MustParseAddr("10.0.0.2")},
			}
		})
	}
	site := f.Site()
	slices.SortFunc(site, func(a, b SiteNode) int { return strings.Compare(a.Name, b.Name) })
	if got := fmt.Sprint(site); got != "[{n0 [10.0.0.1 fd00::1] true} {n1 [10.0.0.2] false} {n2 [] false}]" {
		t.Errorf("got %s", got)
	}
	if got := f.reader().NoteChanges(); got != 1 {
		t.Errorf("%d changes of the notes", got)
	}
	if got := f.ClusterUID(); got != "" {
		t.Errorf("the cluster is %q", got)
	}
	f.Input(InputServices).Apply(wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "u"},
	}))
	if got := f.ClusterUID(); got != "u" {
		t.Errorf("the cluster is %q", got)
	}
}

// TestNodeReady: only the condition Ready with the status True counts.
func TestNodeReady(t *testing.T) {
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) corev1.Node {
		return corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: kind, Status: status},
		}}}
	}
	for name, test := range map[string]struct {
		node corev1.Node
		want bool
	}{
		"ready":     {condition(corev1.NodeReady, corev1.ConditionTrue), true},
		"not ready": {condition(corev1.NodeReady, corev1.ConditionFalse), false},
		"unknown":   {condition(corev1.NodeReady, corev1.ConditionUnknown), false},
		"other":     {condition(corev1.NodeMemoryPressure, corev1.ConditionTrue), false},
		"none":      {corev1.Node{}, false},
	} {
		f := New(Options{NodeName: "n0"})
		test.node.Name = "n0"
		f.Input(InputNode).Apply(wiretest.Object(&test.node))
		if got, _ := f.NodeReady(); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
	f := New(Options{NodeName: "n0"})
	f.Input(InputNode).Apply(&wire.Object{Name: "n0", Body: []byte{0x1a, 0xff}})
	if ready, _ := f.NodeReady(); ready {
		t.Error("a malformed node is ready")
	}
}

// TestPodsOn: of several nodes, whose endpoints are in the same slice.
func TestPodsOn(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	f.Input(InputServices).Replace([]*wire.Object{
		wiretest.Service("governed", `["zone"]`), wiretest.Service("open", `[]`),
	})
	f.Input(InputEndpointSlices).Replace([]*wire.Object{
		wiretest.Slice("governed", "governed", "n0", "n1", "n2", "n3", "n4"),
		wiretest.Slice("open", "open", "n3", "n2"),
	})
	got := f.PodsOn("n1", "n2", "n3", "n9")
	for node, want := range map[string]string{
		"n1": "governed-1+", "n2": "governed-2+ open-1", "n3": "governed-3+ open-0", "n9": "",
	} {
		var pods []string
		for pod, known := range got[node] {
			name := pod.Name
			if known.Governed {
				name += "+"
			}
			pods = append(pods, name)
		}
		slices.Sort(pods)
		if got := strings.Join(pods, " "); got != want {
			t.Errorf("node %s: got %q, want %q", node, got, want)
		}
	}
	if len(got) != 4 {
		t.Errorf("got %v", got)
	}
}
