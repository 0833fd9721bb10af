package view_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

func explain(t *testing.T, s *storagetest.Node, service, asNode string) *view.Explanation {
	t.Helper()
	e, err := s.Explain(inNS(service), asNode)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestExplain(t *testing.T) {
	s := syncedStore(t, storagetest.Options{})
	s.NodeLabels().Apply(wiretest.Node("node-x", ""))
	for name, keys := range map[string]string{
		"free": "", "strict": `["zone"]`, "ordered": `["zone","*"]`, "broken": `zone`, "lacking": `["rack"]`,
		"two": `["rack","zone"]`,
	} {
		s.Services().Apply(wiretest.Service(name, keys))
		s.EndpointSlices().Apply(wiretest.Slice(name+"-1", name, "node-a2", "node-b1", "", "elsewhere"))
	}
	s.EndpointSlices().Apply(wiretest.Slice("ordered-1", "ordered", "node-b1"))
	s.Services().Apply(wiretest.Service("empty", `["zone"]`))
	tests := []struct {
		service, asNode string
		kept, hidden    int
		// says are the first reasons.
		says []string
	}{
		{"free", "", 4, 0, []string{"the Service has no topologyKeys", "the Service has no topologyKeys"}},
		{
			"strict", "", 1, 3,
			[]string{
				"node node-a2 has zone=a too", "node node-b1 has zone=b, not a", "it names no node",
				"node elsewhere is not known",
			},
		},
		{"strict", "node-b2", 1, 3, []string{"node node-a2 has zone=a, not b", "node node-b1 has zone=b too"}},
		{"ordered", "", 1, 0, []string{`"*": no ready endpoint matches a key before it`}},
		{"broken", "", 0, 4, []string{
			"the annotation topologyKeys does not parse: not a JSON array of label keys, such as " +
				`["kubernetes.io/hostname"]: invalid character 'z' looking for beginning of value`,
		}},
		{"lacking", "", 0, 4, []string{"node node-a1 has no label rack"}},
		{"two", "", 1, 3, []string{"node node-a2 has zone=a too", "node node-b1 has zone=b, not a"}},
		{"two", "node-x", 0, 4, []string{"no ready endpoint shares a value of rack, zone with node node-x"}},
		{"empty", "", 0, 0, nil},
	}
	for _, test := range tests {
		e := explain(t, s, test.service, test.asNode)
		if e.Kept != test.kept || e.Hidden != test.hidden {
			t.Errorf("%s as %q: %d kept, %d hidden: %+v", test.service, test.asNode, e.Kept, e.Hidden, e)
		}
		for i, want := range test.says {
			if i >= len(e.Endpoints) || e.Endpoints[i].Reason != want {
				t.Errorf("%s as %q: endpoint %d does not say %q: %+v", test.service, test.asNode, i, want, e.Endpoints)
			}
		}
	}
	for value, want := range map[string]string{
		"openyurt.io/nodepool": "node node-a1 has no label apps.openyurt.io/nodepool",
		"zone":                 "the annotation openyurt.io/topologyKeys does not parse: not one of",
	} {
		s.Services().Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "free", UID: "free",
			Annotations: map[string]string{"openyurt.io/topologyKeys": value},
		}}))
		if e := explain(t, s, "free", ""); e.Annotation != "openyurt.io/topologyKeys" || e.Kept != 0 ||
			!strings.Contains(e.Endpoints[0].Reason, want) {
			t.Errorf("openyurt.io/topologyKeys=%s: got %+v", value, e)
		}
	}
	if e := explain(t, s, "two", ""); e.DecidingKey != "zone" || e.Site["zone"] != "a" || len(e.Site) != 1 ||
		e.Node != "node-a1" {
		t.Errorf("got %+v", e)
	}
	s.SetDoubted(facts.Dead, map[string]struct{}{"node-a2": {}})
	if e := explain(t, s, "strict", ""); e.Kept != 1 ||
		!strings.Contains(e.Endpoints[0].Reason, "calls node node-a2 dead, but no other endpoint is ready") {
		t.Errorf("got %+v", e)
	}
	if _, err := s.Explain(inNS("nothing"), ""); !errors.Is(err, view.ErrNoService) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Explain(inNS("free"), "nowhere"); !errors.Is(err, view.ErrNoNode) {
		t.Errorf("got %v", err)
	}
	if _, err := newStore().Explain(inNS("free"),
		""); !errors.Is(err, served.ErrNotReady) {
		t.Errorf("got %v", err)
	}
}

// TestExplanationIsWhatIsShown: it is computed by itself, and must not tell another story than the view.
func TestExplanationIsWhatIsShown(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 2))
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	nodes := []string{"node-a1", "node-a2", "node-b1", "node-b2", "elsewhere", ""}
	for round := range 300 {
		s := newStore()
		c := cloud{
			facts.InputNode: nil,
			facts.InputServices: {
				wiretest.Service("svc", pick("", `["zone"]`, `["rack","zone"]`, `["zone","*"]`, `bad`)),
			},
		}
		for _, name := range nodes[:4] {
			c[facts.InputNodes] = append(c[facts.InputNodes], wiretest.Node(name, pick("a", "b")))
		}
		ports := map[string]int{}
		for i := range 1 + random.IntN(3) {
			var on []string
			for range random.IntN(4) {
				on = append(on, pick(nodes...)+pick("", "", "!"))
			}
			slice := wiretest.SliceOf(fmt.Sprint("svc-", i), "svc", on...)
			for j := range slice.Endpoints {
				if !*slice.Endpoints[j].Conditions.Ready && random.IntN(2) == 0 {
					slice.Endpoints[j].Conditions = discoveryv1.EndpointConditions{
						Ready: new(false), Terminating: new(true),
					}
				}
			}
			for _, name := range []string{"web", "admin"} {
				if random.IntN(2) == 0 {
					slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(name), Port: new(int32(80))})
				}
			}
			ports[slice.Name] = len(slice.Ports)
			c[facts.InputEndpointSlices] = append(c[facts.InputEndpointSlices], wiretest.Object(slice))
		}
		c.fill(s, inputsOf)
		s.SetDoubted(facts.Dead, map[string]struct{}{pick(nodes...): {}})
		s.SetDoubted(facts.Silent, map[string]struct{}{pick(nodes...): {}})

		// As seen from here, and from another node that is asked itself.
		for _, as := range []string{"node-a1", "node-a2"} {
			there := storagetest.New(storagetest.Options{NodeName: as, KeepKubernetesEndpoint: true})
			c.fill(there, inputsOf)
			there.SetDoubted(facts.Dead, s.Doubted(facts.Dead))
			there.SetDoubted(facts.Silent, s.Doubted(facts.Silent))
			var told, shown []string
			e := explain(t, s, "svc", as)
			for _, x := range e.Endpoints {
				if x.Kept {
					told = append(told, x.Slice+" "+x.Addresses[0]+" "+x.Node)
				}
			}
			objects, _, err := there.History.List(served.EndpointSlices, "ns", 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				typed, err := o.Decode()
				if err != nil {
					t.Fatal(err)
				}
				slice := typed.(*discoveryv1.EndpointSlice)
				for _, x := range slice.Endpoints {
					shown = append(shown, o.Name+" "+x.Addresses[0]+" "+*x.NodeName)
				}
				left := 0
				for _, note := range e.Notes {
					if strings.HasPrefix(note, o.Name+" is shown without port ") {
						left++
					}
				}
				if upstream := ports[o.Name]; upstream-len(slice.Ports) != left {
					t.Fatalf("seed %d round %d as %s: %s has %d of %d ports, told is %q", seed, round, as, o.Name,
						len(slice.Ports), upstream, e.Notes)
				}
			}
			if fmt.Sprint(told) != fmt.Sprint(shown) {
				t.Fatalf("seed %d round %d as %s: told %q, shown %q", seed, round, as, told, shown)
			}
		}
	}
}

// TestExplanationOfASnapshot says that it is one.
func TestExplanationOfASnapshot(t *testing.T) {
	before := newStore()
	smallCloud().fill(before, inputsOf)
	e := explain(t, restored(t, before), "strict", "")
	if len(e.Notes) != 1 || !strings.Contains(e.Notes[0], "snapshot of "+time.Unix(1, 0).UTC().Format("2006")) ||
		e.Kept != 2 {
		t.Errorf("got %+v", e)
	}
}
