package dnshosts

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/wire"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// world is a cluster's state for tests of the rule: one grid demo in unit east, with one Service and three pods.
type world struct {
	labels   map[string]string
	sets     []*Set
	services map[key]Service
	grids    map[key]Grid
	gone     map[types.UID]bool
	pods     []*Pod
	unknown  map[string]bool // sets whose pods are not known
}

func newWorld() *world {
	w := &world{
		labels:   map[string]string{"zone1": "east", "kubernetes.io/hostname": "node0"},
		services: map[key]Service{{"default", "demo-svc"}: {KeyLabel: "zone1"}},
		grids:    map[key]Grid{{"default", "demo"}: {UID: "grid-uid"}},
		gone:     map[types.UID]bool{},
		unknown:  map[string]bool{},
	}
	w.sets = []*Set{unitSet("demo", "zone1", "east", 3)}
	w.addPods(w.sets[0], "10.0.0.1", "10.0.0.2", "10.0.0.3")
	return w
}

// unitSet is the set that the controller makes.
func unitSet(grid, keyName, unit string, replicas int32) *Set {
	return &Set{
		Namespace: "default", Name: grid + "-" + unit, UID: types.UID(grid + "-" + unit + "-uid"), Owner: grid,
		OwnerUID:  "grid-uid",
		GridLabel: grid, KeyLabel: v1.KeyLabelValue(keyName), ServiceName: "demo-svc",
		NodeSelector: map[string]string{keyName: unit}, Replicas: replicas,
	}
}

func (w *world) addPods(set *Set, addresses ...string) {
	for i, address := range addresses {
		w.pods = append(w.pods, &Pod{
			Namespace: set.Namespace, Name: set.Name + "-" + string(rune('0'+i)), OwnerUID: set.UID,
			Addresses: []netip.Addr{addr(address)},
		})
	}
}

func (w *world) view() *View {
	return &View{
		NodeLabels: w.labels, Sets: w.sets,
		Service: func(namespace, name string) *Service {
			if s, ok := w.services[key{namespace, name}]; ok {
				return &s
			}
			return nil
		},
		Grid: func(namespace, name string) *Grid {
			if g, ok := w.grids[key{namespace, name}]; ok {
				return &g
			}
			return nil
		},
		GridGone: func(uid types.UID) bool { return w.gone[uid] },
		// All pods of all sets: what a set's own are is not to depend on what was asked for.
		Pods: func(set *Set) ([]*Pod, bool) { return w.pods, !w.unknown[set.Name] },
	}
}

const demoLines = `10.0.0.1 demo-0.demo-svc.default.svc.cluster.local
10.0.0.2 demo-1.demo-svc.default.svc.cluster.local
10.0.0.3 demo-2.demo-svc.default.svc.cluster.local`

func TestRecords(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*world)
		want   string
	}{
		"as the controller makes it": {func(*world) {}, demoLines},
		"a set of another unit": {func(w *world) {
			other := unitSet("demo", "zone1", "west", 1)
			w.sets = append(w.sets, other)
			w.addPods(other, "10.1.0.1")
		}, demoLines},

		// The defects of SuperEdge's daemon.
		"the unit's name is within the grid's": {func(w *world) {
			// east-db in unit east: searching for "-east" made db-east-0 of it.
			set := unitSet("east-db", "zone1", "east", 2)
			w.grids[key{"default", "east-db"}] = Grid{UID: "grid-uid"}
			w.sets, w.pods = []*Set{set}, nil
			w.addPods(set, "10.0.0.1", "10.0.0.2")
		}, "10.0.0.1 east-db-0.demo-svc.default.svc.cluster.local\n10.0.0.2 " +
			"east-db-1.demo-svc.default.svc.cluster.local"},
		"the unit's name is the grid's": {func(w *world) {
			set := unitSet("east", "zone1", "east", 1)
			w.grids[key{"default", "east"}] = Grid{UID: "grid-uid"}
			w.sets, w.pods = []*Set{set}, nil
			w.addPods(set, "10.0.0.1")
		}, "10.0.0.1 east-0.demo-svc.default.svc.cluster.local"},
		"another grid's name ends like this one's": {func(w *world) {
			// An unanchored expression for demo took the lines of my-demo with it.
			set := unitSet("my-demo", "zone1", "east", 1)
			w.grids[key{"default", "my-demo"}] = Grid{UID: "grid-uid"}
			w.sets = append(w.sets, set)
			w.addPods(set, "10.0.0.9")
			w.sets[0].Terminating = true
		}, "10.0.0.9 my-demo-0.demo-svc.default.svc.cluster.local"},
		"characters that mean something to regular expressions": {func(w *world) {
			for _, grid := range []string{"a.b", "axb"} {
				set := unitSet(grid, "zone1", "east", 1)
				w.grids[key{"default", grid}] = Grid{UID: "grid-uid"}
				w.sets = append(w.sets, set)
				w.addPods(set, map[string]string{"a.b": "10.0.1.1", "axb": "10.0.1.2"}[grid])
			}
			w.sets = w.sets[1:]
		}, "10.0.1.1 a.b-0.demo-svc.default.svc.cluster.local\n10.0.1.2 axb-0.demo-svc.default.svc.cluster.local"},
		"a name of another kind, for the unit's is none": {func(w *world) {
			set := unitSet("demo", "zone1", "east", 1)
			set.Name, set.UnitLabel = "demo-e-ast-0123abcd", "east"
			w.sets, w.pods = []*Set{set}, nil
			w.addPods(set, "10.0.0.1")
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local"},
		"the label of another unit": {func(w *world) { w.sets[0].UnitLabel = "west" }, ""},
		"no owner":                  {func(w *world) { w.sets[0].Owner, w.sets[0].OwnerUID = "", "" }, ""},
		"two addresses of a pod": {func(w *world) {
			w.pods[1].Addresses = []netip.Addr{addr("fd00::2"), addr("10.0.0.2")}
		}, "10.0.0.1 demo-0.demo-svc.default.svc.cluster.local\n10.0.0.2 demo-1.demo-svc.default.svc.cluster.local\n" +
			"fd00::2 demo-1.demo-svc.default.svc.cluster.local\n10.0.0.3 demo-2.demo-svc.default.svc.cluster.local"},

		// Which sets count.
		"the grid is not there": {func(w *world) { clear(w.grids) }, demoLines},
		"the grid has gone":     {func(w *world) { clear(w.grids); w.gone["grid-uid"] = true }, ""},
		"the grid is being deleted": {
			func(w *world) { w.grids[key{"default", "demo"}] = Grid{UID: "grid-uid", Terminating: true} }, "",
		},
		"another grid of the name": {
			func(w *world) { w.grids[key{"default", "demo"}] = Grid{UID: "another"} }, "",
		},
		"the grid's label is another's": {func(w *world) { w.sets[0].GridLabel = "other" }, ""},
		"the key's label is another's":  {func(w *world) { w.sets[0].KeyLabel = "zone2" }, ""},
		"no serviceName":                {func(w *world) { w.sets[0].ServiceName = "" }, ""},
		"the set is being deleted":      {func(w *world) { w.sets[0].Terminating = true }, ""},
		"the selector is of another unit": {
			func(w *world) { w.sets[0].NodeSelector = map[string]string{"zone1": "west"} }, "",
		},
		"the name is not {grid}-{unit}": {func(w *world) { w.sets[0].Name = "demo-easter" }, ""},
		"this node is in no unit":       {func(w *world) { delete(w.labels, "zone1") }, ""},
		"this node is in the unit \"\"": {func(w *world) { w.labels["zone1"] = "" }, ""},
		"this node is in another unit":  {func(w *world) { w.labels["zone1"] = "west" }, ""},
		"no Service":                    {func(w *world) { clear(w.services) }, ""},
		"the Service has another key": {
			func(w *world) { w.services[key{"default", "demo-svc"}] = Service{KeyLabel: "zone2"} }, "",
		},
		"the Service is being deleted": {
			func(w *world) { w.services[key{"default", "demo-svc"}] = Service{KeyLabel: "zone1", Terminating: true} },
			"",
		},
		"the Service is in another namespace": {func(w *world) {
			clear(w.services)
			w.services[key{"other", "demo-svc"}] = Service{KeyLabel: "zone1"}
		}, ""},
		"a key with a slash": {func(w *world) {
			w.labels["topology.kubernetes.io/zone"] = "east"
			w.sets[0].KeyLabel, w.sets[0].Key = "topology.kubernetes.io_zone", "topology.kubernetes.io/zone"
			w.sets[0].NodeSelector = map[string]string{"topology.kubernetes.io/zone": "east"}
			w.services[key{"default", "demo-svc"}] = Service{KeyLabel: "topology.kubernetes.io_zone"}
		}, demoLines},
		"two keys with one label": {func(w *world) {
			w.labels = map[string]string{"a/b": "east", "a_b": "west"}
			w.sets[0].KeyLabel, w.sets[0].Key = "a_b", "a/b"
			w.sets[0].NodeSelector = map[string]string{"a/b": "east"}
			w.services[key{"default", "demo-svc"}] = Service{KeyLabel: "a_b"}
		}, demoLines},

		// Which pods count.
		"a pod of another incarnation": {func(w *world) { w.pods[0].OwnerUID = "before" }, lines(demoLines, 1, 2)},
		"a pod that ends":              {func(w *world) { w.pods[1].Ended = true }, lines(demoLines, 0, 2)},
		"a pod without an address":     {func(w *world) { w.pods[2].Addresses = nil }, lines(demoLines, 0, 1)},
		"a pod beyond the replicas":    {func(w *world) { w.sets[0].Replicas = 1 }, lines(demoLines, 0)},
		"no replicas":                  {func(w *world) { w.sets[0].Replicas = 0 }, ""},
		"ordinals that begin later": {
			func(w *world) { w.sets[0].Start, w.sets[0].Replicas = 1, 2 }, lines(demoLines, 1, 2),
		},
		"a pod in another namespace": {func(w *world) { w.pods[0].Namespace = "other" }, lines(demoLines, 1, 2)},
		"a pod of a name that is none": {func(w *world) {
			for i, name := range []string{"demo-east-00", "demo-east-+1", "demo-east-"} {
				w.pods[i].Name = name
			}
		}, ""},
		"a pod named like another set's": {func(w *world) { w.pods[0].Name = "demo-east-x-0" }, lines(demoLines, 1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			test.change(w)
			got, pending := w.view().Records(testDomain, nil)
			if strings.Join(got, "\n") != test.want || pending != 0 {
				t.Errorf("got, with %d pending:\n%s\nwant:\n%s", pending, strings.Join(got, "\n"), test.want)
			}
		})
	}
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

// TestRecordsAreSorted: whatever the order of what is known, the file is the same.
func TestRecordsAreSorted(t *testing.T) {
	w := newWorld()
	other := unitSet("a", "zone1", "east", 3)
	w.grids[key{"default", "a"}] = Grid{UID: "grid-uid"}
	w.sets = append(w.sets, other)
	w.addPods(other, "10.0.2.1", "10.0.2.2", "10.0.2.3")
	want, _ := w.view().Records(testDomain, nil)
	slices.Reverse(w.sets)
	slices.Reverse(w.pods)
	got, _ := w.view().Records(testDomain, nil)
	if !slices.Equal(got, want) || len(got) != 6 {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// TestUnknownPodsKeepLines: a set whose pods are not known yet keeps exactly its own lines of the file.
func TestUnknownPodsKeepLines(t *testing.T) {
	w := newWorld()
	w.unknown["demo-east"] = true
	present := []string{
		"10.9.9.9 demo-0.demo-svc.default.svc.cluster.local", "fd00::9 demo-0.demo-svc.default.svc.cluster.local",
		"10.9.9.8 my-demo-0.demo-svc.default.svc.cluster.local", "10.9.9.7 demo-0.demo-svc.other.svc.cluster.local",
		"10.9.9.6 demo-0.other-svc.default.svc.cluster.local", "garbage",
	}
	got, pending := w.view().Records(testDomain, present)
	if want := present[:2]; !slices.Equal(got, want) || pending != 1 {
		t.Errorf("got %q, %d pending; want %q, 1", got, pending, want)
	}
	clear(w.services)
	if got, _ := w.view().Records(testDomain, present); len(got) != 0 {
		t.Errorf("a set that does not count keeps %q", got)
	}
}

// TestClusterDomain: the domain is not a constant.
func TestClusterDomain(t *testing.T) {
	got, _ := newWorld().view().Records("k8s.example.org", nil)
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

// TestKeptObjects: what is kept of the API's objects, which may lack anything.
func TestKeptObjects(t *testing.T) {
	yes := true
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo-east", UID: "u"}}
	if kept := keptOf(t, setOf, set); kept.Owner != "" || kept.Replicas != 1 || kept.Start != 0 {
		t.Errorf("an empty set: %+v", kept)
	}
	set.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "superedge.io/v1", Kind: "StatefulSetGrid", Name: "demo", UID: "g"},
	}
	if kept := keptOf(t, setOf, set); kept.Owner != "" {
		t.Errorf("an owner that is not the controller: %+v", kept)
	}
	set.OwnerReferences[0].Controller = &yes
	if kept := keptOf(t, setOf, set); kept.Owner != "demo" || kept.OwnerUID != "g" {
		t.Errorf("the controlling grid: %+v", kept)
	}
	set.OwnerReferences[0].APIVersion = "example.org/v1"
	if kept := keptOf(t, setOf, set); kept.Owner != "" {
		t.Errorf("a grid of another group: %+v", kept)
	}

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pod.Status.PodIP, pod.Status.PodIPs = "10.0.0.1", []corev1.PodIP{
		{IP: "10.0.0.1"}, {IP: "fd00::1"}, {IP: "nonsense"},
	}
	if kept := keptOf(t, podOf, pod); len(kept.Addresses) != 2 || kept.OwnerUID != "" || kept.Ended {
		t.Errorf("addresses: %+v", kept)
	}
	pod.Status.Phase = corev1.PodFailed
	if kept := keptOf(t, podOf, pod); !kept.Ended {
		t.Errorf("a failed pod: %+v", kept)
	}
}

func TestSetEqual(t *testing.T) {
	a := unitSet("demo", "zone1", "east", 3)
	b := *a
	b.NodeSelector = maps.Clone(a.NodeSelector)
	if !a.equal(&b) {
		t.Error("equal sets differ")
	}
	b.NodeSelector["x"] = "y"
	if a.equal(&b) {
		t.Error("another selector is not noticed")
	}
	b = *a
	b.Replicas++
	if a.equal(&b) {
		t.Error("another number of replicas is not noticed")
	}
}
