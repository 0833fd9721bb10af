package gridview

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// previewNodes are two nodes in east, one in west, and one in no site.
var previewNodes = map[string]topology.Labels{
	"e1": {"site": "east", corev1.LabelTopologyZone: "z1"}, "e2": {"site": "east", corev1.LabelTopologyZone: "z1"},
	"w1": {"site": "west", corev1.LabelTopologyZone: "z2"}, "cloud": {},
}

// endpointsOn is a slice of Service s with an endpoint on each of these nodes: "e1", "e1!" for one that is not ready,
// "e1>z1" for one with a hint for zone z1, "" for one on no node.
func endpointsOn(nodes ...string) *discoveryv1.EndpointSlice {
	s := wiretest.SliceOf("s-1", "s")
	for i, node := range nodes {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}}
		node, zone, hinted := strings.Cut(node, ">")
		if hinted {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
		name, unready := strings.CutSuffix(node, "!")
		if unready {
			e.Conditions.Ready = ptr.To(false)
		}
		if name != "" {
			e.NodeName = ptr.To(name)
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func previewService(change func(*corev1.Service)) *corev1.Service {
	s := wiretest.ServiceOf("s", "")
	if change != nil {
		change(s)
	}
	return s
}

func annotated(value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"topologyKeys": value} }
}

// previewCase is a Service with its endpoints, and what closing it would do.
type previewCase struct {
	service   func(*corev1.Service)
	endpoints []string
	ready     int
	readyIn   string
	foreign   float64 // in percent, or nothing
	dark      string
	message   string
	closed    bool
}

const nothing = -1

func TestPreview(t *testing.T) {
	for name, test := range map[string]previewCase{
		"an endpoint on every node": {
			endpoints: []string{"e1", "e2", "w1", "cloud"}, ready: 4, readyIn: "east=2 west=1",
			foreign: (0.5 + 0.5 + 0.75) / 3 * 100,
		},
		"in one site only": {endpoints: []string{"e1"}, ready: 1, readyIn: "east=1", foreign: 100.0 / 3, dark: "west"},
		"in no site":       {endpoints: []string{"cloud", ""}, ready: 2, foreign: 100, dark: "east west"},
		"not ready is none": {endpoints: []string{"e1", "w1!"}, ready: 1, readyIn: "east=1", foreign: 100.0 / 3,
			dark: "west"},
		"dark today": {endpoints: []string{"e1!"}, foreign: nothing, message: "no endpoint is ready anywhere"},
		"hints are heeded": {endpoints: []string{"e1>z1", "w1>z2"}, ready: 2, readyIn: "east=1 west=1", foreign: 0,
			message: "hints keep"},
		"hints that lead away": {
			endpoints: []string{"e1>z2", "w1>z1"}, ready: 2, readyIn: "east=1 west=1", foreign: 100,
			message: "hints keep",
		},
		"hints for a zone that no node is in": {
			endpoints: []string{"e1>z1", "w1>z9"}, ready: 2, readyIn: "east=1 west=1", foreign: 50.0 / 3,
			message: "hints keep",
		},
		"one endpoint without hints": {endpoints: []string{"e1>z1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: 50},
		"its own node only": {
			service: func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
			},
			endpoints: []string{"e1", "e2"}, ready: 2, readyIn: "east=2", dark: "west",
			message: "internalTrafficPolicy",
		},
		"left to another service proxy": {
			service:   func(s *corev1.Service) { s.Labels = map[string]string{v1.LabelServiceProxyName: ""} },
			endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1", foreign: nothing,
			message: `kube-proxy leaves it to service proxy ""`, closed: true,
		},
		"headless": {
			service:   func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone },
			endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1", foreign: 50,
			message: "headless", closed: true,
		},
		"closed already": {
			service: annotated(`["site"]`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: nothing,
			closed:  true,
		},
		"closed by another key": {
			service: annotated(`["rack"]`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: nothing,
		},
		"keys that do not parse": {
			service: annotated(`site`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: 50, message: "annotation topologyKeys=site is ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPreviewer("site", &Groupings{Nodes: previewNodes})
			p.AddService(previewService(test.service))
			p.AddSlice(endpointsOn(test.endpoints...))
			expectPreview(t, p.Preview(), test)
		})
	}
}

func expectPreview(t *testing.T, preview *Preview, want previewCase) {
	t.Helper()
	if preview.NodesWithoutSite != 1 || len(preview.Sites) != 2 ||
		preview.Sites[0] != (PreviewSite{"east", 2}) {
		t.Errorf("sites %v, %d nodes in none", preview.Sites, preview.NodesWithoutSite)
	}
	got := preview.Services[0]
	var readyIn []string
	for _, site := range []string{"east", "west"} {
		if n := got.ReadyIn[site]; n > 0 {
			readyIn = append(readyIn, fmt.Sprintf("%s=%d", site, n))
		}
	}
	if got.Ready != want.ready || strings.Join(readyIn, " ") != want.readyIn ||
		strings.Join(got.Dark, " ") != want.dark {
		t.Errorf("ready %d, %v, dark %v", got.Ready, readyIn, got.Dark)
	}
	if preview.Healthy() != (want.dark == "") {
		t.Errorf("healthy: %v", preview.Healthy())
	}
	switch {
	case want.foreign == nothing && got.Foreign == nil:
	case want.foreign == nothing || got.Foreign == nil || math.Abs(*got.Foreign*100-want.foreign) > 1e-9:
		t.Errorf("foreign %v, want %v", ptr.Deref(got.Foreign, nothing)*100, want.foreign)
	}
	if !strings.HasPrefix(got.Message, want.message) || (want.message == "" && got.Message != "") {
		t.Errorf("message %q", got.Message)
	}
	const command = `kubectl annotate --overwrite service -n ns s 'topologyKeys=["site"]'`
	if got.Command != command && !want.closed || got.Command != "" && want.closed {
		t.Errorf("command %q", got.Command)
	}
}

// TestPreviewOfOneFamily: a Service of two families whose endpoints all have addresses of the second one has them in a
// preview, too.
func TestPreviewOfOneFamily(t *testing.T) {
	p := NewPreviewer("site", &Groupings{Nodes: previewNodes})
	p.AddService(previewService(func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}))
	s := endpointsOn("e1", "e2")
	s.AddressType = discoveryv1.AddressTypeIPv6
	p.AddSlice(s)
	expectPreview(t, p.Preview(), previewCase{ready: 2, readyIn: "east=2", foreign: 100.0 / 3, dark: "west"})
}

// TestPreviewLeavesOut what has no endpoints of this cluster, and endpoints of the Service's second address family.
func TestPreviewLeavesOut(t *testing.T) {
	p := NewPreviewer("site", &Groupings{Nodes: previewNodes})
	p.AddService(previewService(func(s *corev1.Service) { s.Namespace, s.Name = "default", "kubernetes" }))
	p.AddService(previewService(func(s *corev1.Service) {
		s.Name, s.Spec.Type = "external", corev1.ServiceTypeExternalName
	}))
	p.AddService(previewService(func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
	}))
	p.AddSlice(endpointsOn("e1", "w1"))
	six := endpointsOn("e1", "w1")
	six.AddressType = discoveryv1.AddressTypeIPv6
	p.AddSlice(six)
	stranger := endpointsOn("e1")
	stranger.Labels = nil
	p.AddSlice(stranger)
	preview := p.Preview()
	if len(preview.Services) != 1 || preview.Services[0].Ready != 2 {
		t.Errorf("got %+v", preview.Services)
	}
}

func TestDivideNodes(t *testing.T) {
	nodes := map[string]topology.Labels{}
	for i := range 6 {
		nodes[fmt.Sprint("n", i)] = topology.Labels{
			"one": "x", "each": fmt.Sprint(i), corev1.LabelHostname: fmt.Sprint(i % 3), "site": fmt.Sprint(i / 2),
			"half": fmt.Sprint(i / 3), "empty": "",
		}
	}
	for name := range nodes {
		nodes[name]["name"] = name
	}
	// Sites may have one node each; a node's own name is none.
	if keys, sites := DivideNodes(nodes); !slices.Equal(keys, []string{"half", "site", "each"}) || sites["site"] != 3 {
		t.Errorf("got %v %v", keys, sites)
	}
}

// TestPreviewOfAnEmptyValue: it is a value, as it is for the rule.
func TestPreviewOfAnEmptyValue(t *testing.T) {
	role := "node-role.kubernetes.io/edge"
	p := NewPreviewer(role, &Groupings{
		Nodes: map[string]topology.Labels{"node1": {role: ""}, "node2": {role: ""}, "node3": {}}})
	p.AddService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}})
	node := "node1"
	p.AddSlice(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Labels: map[string]string{discoveryv1.LabelServiceName: "svc"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{NodeName: &node}},
	})
	got := p.Preview()
	if len(got.Sites) != 1 || got.Sites[0] != (PreviewSite{Name: `""`, Nodes: 2}) || got.NodesWithoutSite != 1 {
		t.Errorf("got the sites %+v, %d nodes without", got.Sites, got.NodesWithoutSite)
	}
	if s := got.Services[0]; len(s.Dark) != 0 || s.ReadyIn[`""`] != 1 {
		t.Errorf("got %+v", s)
	}
}

// TestPreviewOfTwoFamilies: the one with the most endpoints counts, and the first of two with as many.
func TestPreviewOfTwoFamilies(t *testing.T) {
	for _, test := range []struct {
		four, six []string
		want      previewCase
	}{
		{[]string{"e1", "w1"}, []string{"e1", "e2"}, previewCase{ready: 2, readyIn: "east=1 west=1", foreign: 50,
			dark: "west"}},
		{[]string{"e1", "w1"}, []string{"e1", "e2", "w1"}, previewCase{ready: 3, readyIn: "east=2 west=1",
			foreign: (2.0/3 + 2*1.0/3) / 3 * 100}},
	} {
		p := NewPreviewer("site", &Groupings{Nodes: previewNodes})
		p.AddService(previewService(nil))
		p.AddSlice(endpointsOn(test.four...))
		six := endpointsOn(test.six...)
		six.AddressType = discoveryv1.AddressTypeIPv6
		p.AddSlice(six)
		expectPreview(t, p.Preview(), test.want)
	}
}

// TestPreviewWithoutSites: without a node in a site there is no average over such nodes.
func TestPreviewWithoutSites(t *testing.T) {
	p := NewPreviewer("rack", &Groupings{Nodes: previewNodes})
	p.AddService(previewService(nil))
	p.AddSlice(endpointsOn("e1"))
	if got := p.Preview().Services[0]; got.Foreign != nil || got.Ready != 1 {
		t.Errorf("got %+v", got)
	}
}

// TestPreviewFindings: the problems of a Service that is closed already are found if its sites are those of the key.
func TestPreviewFindings(t *testing.T) {
	for key, want := range map[string]int{"site": 1, "zone": 0} {
		nodes := map[string]topology.Labels{"e1": {"site": "east", "zone": "1"}, "w1": {"site": "west", "zone": "2"}}
		p := NewPreviewer("site", &Groupings{Nodes: nodes, Diagnosis: &Diagnosis{Nodes: nodes}})
		p.AddService(previewService(annotated(`["` + key + `"]`)))
		p.AddSlice(endpointsOn("e1"))
		if found := p.Preview().Findings; len(found) != want {
			t.Errorf("of a Service with the key %s: %+v", key, found)
		}
	}
}
