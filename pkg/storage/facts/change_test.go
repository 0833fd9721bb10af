package facts

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/topology"
)

// lastChange is a Watcher that keeps the last Change.
type lastChange struct{ Change }

func (l *lastChange) FactsChanged(_ Reader, c *Change) { l.Change = *c }

// TestChangesCountsWhatTouches: each kind of change counts, and a step without any does not.
func TestChangesCountsWhatTouches(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	nodes, services, endpoints := f.Input(InputNodes), f.Input(InputServices), f.Input(InputEndpointSlices)
	for _, step := range []struct {
		what    string
		run     func()
		touches bool
	}{
		{"nothing", f.Touch, false},
		{"a Namespace", func() { f.Input(InputNamespaces).Apply(wiretest.NodeWith("ns", nil)) }, true},
		{"a node", func() { nodes.Apply(wiretest.Node("n1", "a")) }, true},
		{"the same node", func() { nodes.Apply(wiretest.Node("n1", "a")) }, false},
		{"a node without labels", func() { nodes.Apply(wiretest.NodeWith("n2", nil)) }, true},
		{"a node dies", func() { f.SetDoubted(Dead, map[string]struct{}{"n2": {}}) }, true},
		{"the same node is dead", func() { f.SetDoubted(Dead, map[string]struct{}{"n2": {}}) }, false},
		{"it lives again", func() { f.SetDoubted(Dead, nil) }, true},
		{"a slice of no Service", func() { endpoints.Apply(wiretest.Slice("none", "", "n1")) }, true},
		{"the same slice", func() { endpoints.Apply(wiretest.Slice("none", "", "n1")) }, false},
		{"a Service", func() { services.Apply(wiretest.Service("s", `["zone","*"]`)) }, true},
		{"a slice", func() { endpoints.Apply(wiretest.Slice("s-1", "s", "n1")) }, true},
		{"a node with an endpoint moves", func() { nodes.Apply(wiretest.Node("n1", "b")) }, true},
	} {
		before := f.Changes()
		step.run()
		if after := f.Changes(); after > before != step.touches || after < before {
			t.Errorf("%s: from %d to %d", step.what, before, after)
		}
	}
}

// TestRelabelledNodeTouchesWhatItDecides: the endpoints of a Service with several keys are counted by the labels of
// their nodes, and those of a Service with one key are not.
func TestRelabelledNodeTouchesWhatItDecides(t *testing.T) {
	for keys, governed := range map[string]int{`["zone"]`: 0, `["zone","*"]`: 1} {
		f := New(Options{NodeName: "n0"})
		var last lastChange
		f.Attach(&last, func(Reader) {})
		f.Input(InputNodes).Apply(wiretest.Node("n1", "a"))
		f.Input(InputServices).Apply(wiretest.Service("s", keys))
		f.Input(InputEndpointSlices).Apply(wiretest.Slice("s-1", "s", "n1"))
		f.Input(InputNodes).Apply(wiretest.Node("n1", "b"))
		if len(last.Rejudged) != governed || len(last.Relabelled) != 1 {
			t.Errorf("keys %s: %d Services and %d nodes are touched", keys, len(last.Rejudged), len(last.Relabelled))
		}
	}
}

// TestTraitsTouchWhatTheyDecide: whether endpoints are suspected depends on the traits of their Service. Without a
// suspicion they decide nothing about the objects.
func TestTraitsTouchWhatTheyDecide(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	var last lastChange
	f.Attach(&last, func(Reader) {})
	service := wiretest.ServiceOf("s", "")
	expect := func(what string, policy corev1.ServiceInternalTrafficPolicy, objects int) {
		t.Helper()
		service.Spec.InternalTrafficPolicy = &policy
		service.Generation++
		f.Input(InputServices).Apply(wiretest.Object(service))
		if len(last.EndpointSets) != objects || len(last.Plain) != 1 {
			t.Errorf("%s: %d objects and %d Services are touched", what, len(last.EndpointSets), len(last.Plain))
		}
	}
	expect("a new Service", corev1.ServiceInternalTrafficPolicyCluster, 0)
	f.Input(InputEndpointSlices).Apply(wiretest.Slice("s-1", "s", "n1", "n2"))
	expect("nothing is suspected", corev1.ServiceInternalTrafficPolicyLocal, 0)
	f.SetDoubted(Silent, map[string]struct{}{"n1": {}})
	expect("a node is silent", corev1.ServiceInternalTrafficPolicyCluster, 1)
	expect("the traits stay", corev1.ServiceInternalTrafficPolicyCluster, 0)
}

// TestNothingReadableIsCalledUnreadable, whatever happens to it.
func TestNothingReadableIsCalledUnreadable(t *testing.T) {
	f := New(Options{NodeName: "node-a1", Logger: funcr.New(func(_, args string) {
		if strings.Contains(args, "cannot be read any more") {
			t.Error(args)
		}
	}, funcr.Options{})})
	churn(f)
	f.SetDoubted(Silent, map[string]struct{}{"node-b1": {}})
	f.PodsOn("node-b1")
	churn(f)
}

// TestEndpointsWithoutANode are on no node, not on one without a name.
func TestEndpointsWithoutANode(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	f.Input(InputEndpointSlices).Apply(wiretest.Slice("s-1", "s", "", "n1"))
	f.Read(func(in Reader) {
		if unnamed, named := in.NodeObjectsOf(""), in.NodeObjectsOf("n1"); len(unnamed) != 0 || len(named) != 1 {
			t.Errorf("%d objects are on no node, %d on n1", len(unnamed), len(named))
		}
	})
}

// TestPodOfAnEndpoint: it is in the namespace that its reference names, and without one in that of the object. Services
// whose endpoint of it is not ready are named.
func TestPodOfAnEndpoint(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	f.Input(InputServices).Apply(wiretest.Service("s", ""))
	slice := wiretest.SliceOf("s-1", "s", "n1", "n1!", "n1")
	slice.Endpoints[0].TargetRef.Namespace = ""
	slice.Endpoints[2].TargetRef.Namespace = "other"
	f.Input(InputEndpointSlices).Apply(wiretest.Object(slice))
	known := f.PodsOn("n1")["n1"]
	for pod, idle := range map[PodKey]string{
		{Namespace: "ns", Name: "s-0", UID: "uid-0"}: "", {Namespace: "ns", Name: "s-1", UID: "uid-1"}: "s",
		{Namespace: "other", Name: "s-2", UID: "uid-2"}: "",
	} {
		if of, found := known[pod]; !found || strings.Join(of.Idle, " ") != idle {
			t.Errorf("pod %v: %+v, found %t", pod, of, found)
		}
	}
	if len(known) != 3 {
		t.Errorf("got %v", known)
	}
}

// TestChoices: there is one for each list of ports that an object has.
func TestChoices(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	f.Input(InputNodes).Apply(wiretest.Node("n1", "a"))
	f.Input(InputServices).Apply(wiretest.Service("s", `["zone","*"]`))
	for _, port := range []string{"http", "https"} {
		slice := wiretest.SliceOf("s-"+port, "s", "n1")
		slice.Ports = []discoveryv1.EndpointPort{{Name: &port, Port: ptr.To[int32](80)}}
		f.Input(InputEndpointSlices).Apply(wiretest.Object(slice))
	}
	name := types.NamespacedName{Namespace: "ns", Name: "s"}
	choices := func() (choices []Choice) {
		f.Read(func(in Reader) {
			choices = in.Service(name).Choices(served.EndpointSlices, topology.Labels{"zone": "a"})
		})
		return choices
	}
	two, again := choices(), choices()
	if len(two) != 2 || !two[0].Equal(again[0]) || two[0].Equal(two[1]) {
		t.Errorf("got %+v, and then %+v", two, again)
	}
	f.Input(InputEndpointSlices).Remove("ns", "s-http")
	if one := choices(); len(one) != 1 || !one[0].Equal(two[1]) {
		t.Errorf("without one of them: %+v, before %+v", one, two)
	}
}

// TestForgottenAddresses: the addresses of a removed node are dropped, which is a change of the notes if it had any.
func TestForgottenAddresses(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	one, two := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	f.UpdateNotes(func(n *Notes) { n.Addresses = map[netip.Addr]string{one: "n1", two: "n2"} })
	for _, step := range []struct {
		node  string
		noted uint64
		left  int
	}{{"n3", 1, 2}, {"n1", 2, 1}, {"n1", 2, 1}} {
		f.Input(InputNodes).Apply(wiretest.Node(step.node, "a"))
		f.Input(InputNodes).Remove("", step.node)
		if noted, left := f.reader().NoteChanges(), f.Notes().Addresses; noted != step.noted || len(left) != step.left {
			t.Errorf("%s is removed: %d changes of the notes, left are %v", step.node, noted, left)
		}
	}
}

// TestShareMark: until a step of a share arrives, it is that of the Snapshot.
func TestShareMark(t *testing.T) {
	f := New(Options{NodeName: "n0"})
	if mark := f.ShareMark(); mark != nil {
		t.Errorf("without a share: %q", mark)
	}
	f.Restore(&Snapshot{ShareMark: []byte("1")})
	if mark := string(f.ShareMark()); mark != "1" {
		t.Errorf("restored: %q", mark)
	}
	if f.ApplyShare(ShareStep{Base: []byte("0"), Mark: []byte("1")}) == nil {
		t.Error("a step after another state is applied")
	}
	err := f.ApplyShare(ShareStep{Base: []byte("1"), Mark: []byte("2"),
		Drops: func(string, types.NamespacedName) bool { return false }})
	if mark := string(f.ShareMark()); err != nil || mark != "2" {
		t.Errorf("after a step: %q, %v", mark, err)
	}
}
