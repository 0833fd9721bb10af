package dnshosts

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

var demoService = types.NamespacedName{Namespace: "default", Name: "demo-svc"}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// world is a cluster's state for tests of the rule: the pods of one grid demo in site east, with one Service.
type world struct {
	labels   map[string]string
	services map[types.NamespacedName]string
	slices   []*Slice
}

func newWorld() *world {
	w := &world{
		labels:   map[string]string{"zone1": "east", "kubernetes.io/hostname": "node0"},
		services: map[types.NamespacedName]string{demoService: "zone1"},
		slices:   []*Slice{{Namespace: "default", Service: "demo-svc"}},
	}
	w.addPods("demo-east", "10.0.0.1", "10.0.0.2", "10.0.0.3")
	return w
}

// addPods adds pods of a set to the first slice.
func (w *world) addPods(set string, addresses ...string) {
	for i, address := range addresses {
		w.slices[0].Endpoints = append(w.slices[0].Endpoints, Endpoint{
			Pod: set + "-" + strconv.Itoa(i), Addresses: []netip.Addr{addr(address)},
		})
	}
}

// onlyPods makes these the only pods.
func (w *world) onlyPods(set string, addresses ...string) {
	w.slices[0].Endpoints = nil
	w.addPods(set, addresses...)
}

func (w *world) view() *View {
	v := &View{NodeLabels: w.labels, Services: w.services, Slices: make(map[types.NamespacedName]*Slice)}
	for i, slice := range w.slices {
		v.Slices[types.NamespacedName{Namespace: slice.Namespace, Name: strconv.Itoa(i)}] = slice
	}
	return v
}

const demoLines = `10.0.0.1 demo-0.demo-svc.default.svc.cluster.local
10.0.0.2 demo-1.demo-svc.default.svc.cluster.local
10.0.0.3 demo-2.demo-svc.default.svc.cluster.local`

// recordCases are what is different in a world, and the lines that follow from it.
type recordCases map[string]struct {
	change func(*world)
	want   string
}

func (cases recordCases) run(t *testing.T) {
	t.Helper()
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			got := linesOf(w.view().Records(testDomain))
			if strings.Join(got, "\n") != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), test.want)
			}
		})
	}
}

// TestNamesOfSets: which grid and which pod of the own site a pod's name stands for.
func TestNamesOfSets(t *testing.T) {
	alternative := v1.StatefulSetGridKind.AlternativeChildName
	recordCases{
		"as the controllers make it": {func(*world) {}, demoLines},
		"pods of another site":       {func(w *world) { w.addPods("demo-west", "10.1.0.1") }, demoLines},

		// The defects of SuperEdge's daemon.
		"the site's name is within the grid's": {func(w *world) {
			// east-db in site east: searching for "-east" made db-east-0 of it.
			w.onlyPods("east-db-east", "10.0.0.1", "10.0.0.2")
		}, "10.0.0.1 east-db-0.demo-svc.default.svc.cluster.local\n10.0.0.2 " +
			"east-db-1.demo-svc.default.svc.cluster.local"},
		"the site's name is the grid's": {
			func(w *world) { w.onlyPods("east-east", "10.0.0.1") },
			"10.0.0.1 east-0.demo-svc.default.svc.cluster.local",
		},
		"another grid's name ends like this one's": {func(w *world) {
			// An unanchored expression for demo took the lines of my-demo with it.
			w.onlyPods("my-demo-east", "10.0.0.9")
		}, "10.0.0.9 my-demo-0.demo-svc.default.svc.cluster.local"},
		"characters that mean something to regular expressions": {func(w *world) {
			w.onlyPods(alternative("a.b", "east"), "10.0.1.1")
			w.addPods("axb-east", "10.0.1.2")
		}, "10.0.1.1 a.b-0.demo-svc.default.svc.cluster.local\n10.0.1.2 axb-0.demo-svc.default.svc.cluster.local"},
		"a site whose name no set can have": {func(w *world) {
			w.labels["zone1"] = "East_1"
			w.onlyPods(alternative("demo", "East_1"), "10.0.0.1")
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local"},
		"the alternative name of another site": {
			func(w *world) { w.onlyPods(alternative("demo", "west"), "10.0.0.1") }, "",
		},
		"a site's name that is cut": {func(w *world) {
			w.labels["zone1"] = strings.Repeat("east-", 10) + "1"
			w.onlyPods(alternative("demo", w.labels["zone1"]), "10.0.0.1")
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local"},
		"a set whose plain name another grid's set has": {func(w *world) {
			// demo-x of site east, and demo of site x-east: the one that came second has its alternative name.
			w.onlyPods("demo-x-east", "10.1.0.1")
			w.addPods(alternative("demo-x", "east"), "10.0.0.1")
			slices.Reverse(w.slices[0].Endpoints)
		}, "10.0.0.1 demo-x-0.demo-svc.default.svc.cluster.local"},
		"pods of names that are none": {func(w *world) {
			for i, name := range []string{"demo-east-00", "demo-east-+1", "demo-east-"} {
				w.slices[0].Endpoints[i].Pod = name
			}
		}, ""},
		"a pod named like another set's": {
			func(w *world) { w.slices[0].Endpoints[0].Pod = "demo-east-x-0" }, lines(demoLines, 1, 2),
		},
		"a pod without a grid in its name": {
			func(w *world) { w.slices[0].Endpoints[0].Pod = "-east-0" }, lines(demoLines, 1, 2),
		},
	}.run(t)
}

// TestRecords: what slices, Services and this node's labels make of the same names.
func TestRecords(t *testing.T) {
	recordCases{
		"two addresses of a pod": {func(w *world) {
			w.slices[0].Endpoints[1].Addresses = []netip.Addr{addr("fd00::2"), addr("10.0.0.2")}
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local\n10.0.0.2 demo-1.demo-svc.default.svc.cluster.local\n" +
			"fd00::2 demo-1.demo-svc.default.svc.cluster.local\n10.0.0.3 demo-2.demo-svc.default.svc.cluster.local"},
		"slices of both families": {func(w *world) {
			w.slices = append([]*Slice{{Namespace: "default", Service: "demo-svc", Endpoints: []Endpoint{
				{Pod: "demo-east-0", Addresses: []netip.Addr{addr("fd00::1")}},
			}}}, w.slices...)
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local\nfd00::1 demo-0.demo-svc.default.svc.cluster.local\n" +
			lines(demoLines, 1, 2)},
		"an endpoint that moves from slice to slice": {func(w *world) {
			w.slices = append(w.slices, &Slice{
				Namespace: "default", Service: "demo-svc", Endpoints: w.slices[0].Endpoints[:1],
			})
		}, demoLines},

		"this node is in no site":       {func(w *world) { delete(w.labels, "zone1") }, ""},
		"this node is in the site \"\"": {func(w *world) { w.labels["zone1"] = "" }, ""},
		"this node is in another site":  {func(w *world) { w.labels["zone1"] = "west" }, ""},
		"no Service":                    {func(w *world) { clear(w.services) }, ""},
		"the Service has another key": {
			func(w *world) { w.services[demoService] = "zone2" }, "",
		},
		"the Service is being deleted": {
			func(w *world) { w.services[demoService] = "" },
			"",
		},
		"the Service is in another namespace": {func(w *world) {
			clear(w.services)
			w.services[types.NamespacedName{Namespace: "other", Name: "demo-svc"}] = "zone1"
		}, ""},
		"a key with a slash": {func(w *world) {
			w.labels["topology.kubernetes.io/zone"] = "east"
			delete(w.labels, "zone1")
			w.services[demoService] = "topology.kubernetes.io/zone"
		}, demoLines},
		"two keys with one label": {func(w *world) {
			w.labels = map[string]string{"a/b": "east", "a_b": "west"}
			w.services[demoService] = "a/b"
			w.addPods("demo-west", "10.1.0.1")
		}, demoLines},

		"a pod without an address": {
			func(w *world) { w.slices[0].Endpoints[2].Addresses = nil }, lines(demoLines, 0, 1),
		},
	}.run(t)
}

// lines are some of the lines of text.
func lines(text string, which ...int) string {
	all := strings.Split(text, "\n")
	var some []string
	for _, i := range which {
		some = append(some, all[i])
	}
	return strings.Join(some, "\n")
}

// TestEndingPodsGiveWay: a pod that is ending takes no name from another one, whichever of the set's two names it has.
func TestEndingPodsGiveWay(t *testing.T) {
	alternative := v1.StatefulSetGridKind.AlternativeChildName("demo", "east") + "-0"
	for _, ending := range []string{alternative, "demo-east-0"} {
		w := newWorld()
		w.slices[0].Endpoints = []Endpoint{
			{alternative, []netip.Addr{addr("10.0.0.1")}}, {"demo-east-0", []netip.Addr{addr("10.0.0.1")}},
		}
		for range 2 {
			for i, e := range w.slices[0].Endpoints {
				if e.Pod == ending {
					w.slices[0].Endpoints[i].Addresses = nil
				}
			}
			if got := linesOf(w.view().Records(testDomain)); len(got) != 1 {
				t.Errorf("%s is ending: %q", ending, got)
			}
			slices.Reverse(w.slices[0].Endpoints)
		}
		w.slices[0].Endpoints = []Endpoint{{Pod: ending}}
		if got := w.view().Records(testDomain); len(got) != 1 || len(linesOf(got)) > 0 {
			t.Errorf("only %s is there, and ending: its name is not known to have no address: %q", ending, got)
		}
	}
}

// TestUnreadableObjectStays: an object of a list that cannot be read stays as it was known.
func TestUnreadableObjectStays(t *testing.T) {
	var err error
	objects := table[string]{
		keep: func(*wire.Object) (string, error) { return "kept", err }, change: func(change func()) { change() },
	}
	node := wiretest.Node("node0", "east")
	objects.Replace([]*wire.Object{node})
	err = errors.New("it cannot be read")
	objects.Replace([]*wire.Object{node, wiretest.Node("node1", "east")})
	if len(objects.objects) != 1 || objects.objects[node.Key()] != "kept" {
		t.Errorf("of the objects is known: %v", objects.objects)
	}
}

// TestRecordsAreSorted: whatever the order of what is known, the file is the same.
func TestRecordsAreSorted(t *testing.T) {
	w := newWorld()
	w.addPods("a-east", "10.0.2.1", "10.0.2.2", "10.0.2.3")
	w.slices = append(w.slices, &Slice{Namespace: "default", Service: "demo-svc"})
	want := linesOf(w.view().Records(testDomain))
	slices.Reverse(w.slices[0].Endpoints)
	slices.Reverse(w.slices)
	got := linesOf(w.view().Records(testDomain))
	if !slices.Equal(got, want) || len(got) != 6 {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestClusterDomain: the domain is not a constant.
func TestClusterDomain(t *testing.T) {
	got := linesOf(newWorld().view().Records("k8s.example.org"))
	if want := "10.0.0.1 demo-0.demo-svc.default.svc.k8s.example.org"; len(got) != 3 || got[0] != want {
		t.Errorf("got %q, want %q first", got, want)
	}
}

// keptOf is what is kept of an object as it comes from the API server.
func keptOf[T any](t *testing.T, keep func(*wire.Object) (T, error), typed interface{ Marshal() ([]byte, error) }) T {
	t.Helper()
	message, err := typed.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	o, err := wire.ParseObject(message)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := keep(o)
	if err != nil {
		t.Fatal(err)
	}
	return kept
}

// TestWhichEndpointsCount: of a slice, which may lack anything, the pods that name the Service as their subdomain, with
// their addresses unless they are ending.
func TestWhichEndpointsCount(t *testing.T) {
	pod := func(name string) *corev1.ObjectReference {
		return &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: name}
	}
	endpoint := func(name string, change func(*discoveryv1.Endpoint)) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Hostname: &name, TargetRef: pod(name), Addresses: []string{"10.0.0.1"}}
		change(&e)
		return e
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "demo-svc-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "demo-svc"},
		},
		Endpoints: []discoveryv1.Endpoint{
			endpoint("demo-east-0", func(*discoveryv1.Endpoint) {}),
			endpoint("demo-east-1", func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) }),
			endpoint("demo-east-2", func(e *discoveryv1.Endpoint) { e.Conditions.Terminating = new(true) }),
			endpoint("demo-east-3", func(e *discoveryv1.Endpoint) { e.Hostname = nil }),
			endpoint("demo-east-4", func(e *discoveryv1.Endpoint) { e.Hostname = new("other") }),
			endpoint("demo-east-5", func(e *discoveryv1.Endpoint) { e.TargetRef = nil }),
			endpoint("demo-east-6", func(e *discoveryv1.Endpoint) { e.TargetRef.Kind = "ExternalWorkload" }),
			endpoint("demo-east-7", func(e *discoveryv1.Endpoint) { e.TargetRef.Namespace = "other" }),
			endpoint("demo-east-8", func(e *discoveryv1.Endpoint) {
				e.Addresses = []string{"10.0.0.8", "nonsense", "10.0.0.8", "fd00::8"}
				e.Conditions.Terminating = new(false)
			}),
		},
	}
	got := keptOf(t, sliceOf, slice)
	want := &Slice{Namespace: "default", Service: "demo-svc", Endpoints: []Endpoint{
		{"demo-east-0", []netip.Addr{addr("10.0.0.1")}}, {"demo-east-1", []netip.Addr{addr("10.0.0.1")}},
		{"demo-east-2", nil},
		{"demo-east-8", []netip.Addr{addr("10.0.0.8"), addr("fd00::8")}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	empty := keptOf(t, sliceOf, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "empty"}})
	if len(empty.Endpoints) > 0 {
		t.Errorf("an empty slice: %+v", empty)
	}
}

// TestKeyOf: a Service's label has the key, or the annotation does. One that is being deleted has no names.
func TestKeyOf(t *testing.T) {
	now := metav1.Now()
	labels := map[string]string{v1.LabelGridUniqKey: "a_b"}
	for want, m := range map[string]metav1.ObjectMeta{
		"a_b": {Name: "s", Labels: labels},
		"a/b": {Name: "s", Labels: labels, Annotations: map[string]string{v1.AnnotationGridUniqKey: "a/b"}},
		"":    {Name: "s", Labels: labels, DeletionTimestamp: &now},
	} {
		if got := keptOf(t, keyOf, &metav1.PartialObjectMetadata{ObjectMeta: m}); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestUpdate: while the upstream is away a name gets another address, stays, or goes if its pod is known not to have it
// any more.
func TestUpdate(t *testing.T) {
	got := update([]string{
		"10.0.0.1 db-0.s", "10.0.0.2 db-1.s", "10.0.0.3 db-2.s", "fd00::3 db-2.s", "10.0.0.4 db-3.s",
	}, map[string][]string{
		"db-0.s": {"10.0.0.4 db-0.s"}, "db-2.s": {"10.0.0.8 db-2.s", "fd00::8 db-2.s"}, "db-3.s": nil,
		"db-9.s": {"10.0.0.9 db-9.s"},
	})
	want := []string{"10.0.0.4 db-0.s", "10.0.0.2 db-1.s", "10.0.0.8 db-2.s", "fd00::8 db-2.s"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// dbOn is the wrapper of node0, with a Service of the set db-east, whose pods are on these nodes.
func dbOn(nodes ...string) *storagetest.Node {
	n := storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true})
	n.NodeLabels().Replace([]*wire.Object{wiretest.Node("node0", "east"), wiretest.Node("node1", "east")})
	n.Services().Replace([]*wire.Object{wiretest.Service("db-svc", `["zone"]`)})
	slice := wiretest.SliceOf("db-svc-1", "db-svc", nodes...)
	for i := range slice.Endpoints {
		pod := fmt.Sprint("db-east-", i)
		slice.Endpoints[i].TargetRef.Name, slice.Endpoints[i].Hostname = pod, &pod
	}
	n.EndpointSlices().Replace([]*wire.Object{wiretest.Object(slice)})
	return n
}

// shownOf is which pods' ordinals a wrapper of dbOn has its node use, and what it shows of names.
func shownOf(t *testing.T, n *storagetest.Node) (used []int, view View) {
	t.Helper()
	shown, err := n.History.Get(served.EndpointSlices, types.NamespacedName{Namespace: "ns", Name: "db-svc-1"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	typed, err := shown.Decode()
	if err != nil {
		t.Fatal(err)
	}
	slice := typed.(*discoveryv1.EndpointSlice)
	for _, e := range slice.Endpoints {
		if *e.Conditions.Ready || *e.Conditions.Serving {
			ordinal, err := strconv.Atoi(strings.TrimPrefix(e.TargetRef.Name, "db-east-"))
			if err != nil {
				t.Fatal(err)
			}
			used = append(used, ordinal)
		}
	}
	return used, View{
		NodeLabels: map[string]string{"zone": "east"},
		Slices:     map[types.NamespacedName]*Slice{{}: keptOf(t, sliceOf, slice)},
		Services:   map[types.NamespacedName]string{{Namespace: "ns", Name: "db-svc"}: "zone"},
	}
}

// TestNamesLeadToTheirPods: no doubt about a pod takes its name, although its Service uses better pods: no other pod
// answers to that name.
func TestNamesLeadToTheirPods(t *testing.T) {
	n := dbOn("node0", "node1", "node1")
	expectUsed := func(want ...int) {
		t.Helper()
		got, v := shownOf(t, n)
		if !slices.Equal(got, want) {
			t.Errorf("the pods %v are used, want %v", got, want)
		}
		if lines := linesOf(v.Records("cluster.local")); !slices.Equal(lines, []string{
			"10.0.0.0 db-0.db-svc.ns.svc.cluster.local", "10.0.0.1 db-1.db-svc.ns.svc.cluster.local",
			"10.0.0.2 db-2.db-svc.ns.svc.cluster.local",
		}) {
			t.Errorf("the pods %v are used, and the names are %q", want, lines)
		}
	}
	expectUsed(0, 1, 2)
	for _, doubt := range []facts.Doubt{facts.Dead, facts.Silent, facts.Unanswering} {
		n.SetDoubted(doubt, map[string]struct{}{"node1": {}})
		expectUsed(0)
		n.SetDoubted(doubt, nil)
		expectUsed(0, 1, 2)
	}
	pods := map[facts.PodKey]facts.LivePod{
		{Namespace: "ns", Name: "db-east-0", UID: "uid-0"}: {
			Addresses: []netip.Addr{addr("10.0.0.0")}, Serving: true, Suspected: true,
		},
	}
	n.SetLivePods("node0", &facts.LivePods{Pods: pods})
	expectUsed(1, 2)
}

// TestNameOfAPodThatEnded: while the API server is away a node does not run a pod any more. Its name stays until the
// node runs another pod at its address, which is one of an ordinary Service, or of none.
func TestNameOfAPodThatEnded(t *testing.T) {
	n := dbOn("node0", "node0")
	const db0, db1 = "10.0.0.0 db-0.db-svc.ns.svc.cluster.local", "10.0.0.1 db-1.db-svc.ns.svc.cluster.local"
	pods := map[facts.PodKey]facts.LivePod{
		{Namespace: "ns", Name: "db-east-1", UID: "uid-1"}: {Addresses: []netip.Addr{addr("10.0.0.1")}, Serving: true},
	}
	expect := func(when string, want ...string) {
		t.Helper()
		n.SetLivePods("node0", &facts.LivePods{Pods: maps.Clone(pods)})
		used, v := shownOf(t, n)
		if !slices.Equal(used, []int{1}) {
			t.Errorf("%s: the first pod does not run, and %v are used", when, used)
		}
		if got := update([]string{db0, db1}, v.Records("cluster.local")); !slices.Equal(got, want) {
			t.Errorf("%s: the file has %q", when, got)
		}
	}
	expect("nobody has its address", db0, db1)
	pods[facts.PodKey{Namespace: "ns", Name: "web"}] = facts.LivePod{Addresses: []netip.Addr{addr("10.0.0.9")}}
	expect("another pod starts", db0, db1)
	pods[facts.PodKey{Namespace: "ns", Name: "other"}] = facts.LivePod{Addresses: []netip.Addr{addr("10.0.0.0")}}
	expect("another pod has its address", db1)
}
