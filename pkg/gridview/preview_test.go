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

	"github.com/application-grid/application-grid/pkg/topology"
)

// previewNodes are two nodes in east, one in west, and one in no unit.
var previewNodes = map[string]topology.Labels{
	"e1": {"site": "east", corev1.LabelTopologyZone: "z1"}, "e2": {"site": "east", corev1.LabelTopologyZone: "z1"},
	"w1": {"site": "west", corev1.LabelTopologyZone: "z2"}, "cloud": {},
}

// endpointsOn is a slice of Service s with an endpoint on each of these nodes: "e1", "e1!" for one that is not ready,
// "e1>z1" for one with a hint for zone z1, "" for one on no node.
func endpointsOn(nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "s-1", Labels: map[string]string{discoveryv1.LabelServiceName: "s"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
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
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
	if change != nil {
		change(s)
	}
	return s
}

func annotate(value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations = map[string]string{"topologyKeys": value} }
}

func TestPreview(t *testing.T) {
	const nothing = -1
	for name, test := range map[string]struct {
		service   func(*corev1.Service)
		endpoints []string
		ready     int
		readyIn   string
		// foreign in percent
		foreign float64
		dark    string
		message string
		closed  bool
	}{
		"an endpoint on every node": {
			endpoints: []string{"e1", "e2", "w1", "cloud"}, ready: 4, readyIn: "east=2 west=1",
			foreign: (0.5 + 0.5 + 0.75) / 3 * 100,
		},
		"in one unit only": {endpoints: []string{"e1"}, ready: 1, readyIn: "east=1", foreign: 100.0 / 3, dark: "west"},
		"in no unit":       {endpoints: []string{"cloud", ""}, ready: 2, foreign: 100, dark: "east west"},
		"not ready is none": {
			endpoints: []string{"e1", "w1!"}, ready: 1, readyIn: "east=1", foreign: 100.0 / 3, dark: "west",
		},
		"dark today": {endpoints: []string{"e1!"}, foreign: nothing, message: "no endpoint is ready anywhere"},
		"hints are heeded": {
			endpoints: []string{"e1>z1", "w1>z2"}, ready: 2, readyIn: "east=1 west=1", foreign: 0,
			message: "hints keep",
		},
		"hints that lead away": {
			endpoints: []string{"e1>z2", "w1>z1"}, ready: 2, readyIn: "east=1 west=1", foreign: 100,
			message: "hints keep",
		},
		"hints for a zone that no node is in": {
			endpoints: []string{"e1>z1", "w1>z9"}, ready: 2, readyIn: "east=1 west=1", foreign: 50.0 / 3,
			message: "hints keep",
		},
		"one endpoint without hints": {
			endpoints: []string{"e1>z1", "w1"}, ready: 2, readyIn: "east=1 west=1", foreign: 50,
		},
		"its own node only": {
			service: func(s *corev1.Service) {
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
			},
			endpoints: []string{"e1", "e2"}, ready: 2, readyIn: "east=2", dark: "west",
			message: "internalTrafficPolicy",
		},
		"closed already": {
			service: annotate(`["site"]`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: nothing,
			closed:  true,
		},
		"closed by another key": {
			service: annotate(`["rack"]`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: nothing,
		},
		"keys that do not parse": {
			service: annotate(`site`), endpoints: []string{"e1", "w1"}, ready: 2, readyIn: "east=1 west=1",
			foreign: 50, message: "annotation topologyKeys=site is ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPreviewer("site", previewNodes)
			p.AddService(previewService(test.service))
			p.AddSlice(endpointsOn(test.endpoints...))
			p.ForgetSlices() // their list begins again
			p.AddSlice(endpointsOn(test.endpoints...))
			preview := p.Preview()
			if preview.NodesWithoutUnit != 1 || len(preview.Units) != 2 ||
				preview.Units[0] != (PreviewUnit{"east", 2}) {
				t.Errorf("units %v, %d nodes in none", preview.Units, preview.NodesWithoutUnit)
			}
			got := preview.Services[0]
			var readyIn []string
			for _, unit := range []string{"east", "west"} {
				if n := got.ReadyIn[unit]; n > 0 {
					readyIn = append(readyIn, fmt.Sprintf("%s=%d", unit, n))
				}
			}
			if got.Ready != test.ready || strings.Join(readyIn, " ") != test.readyIn ||
				strings.Join(got.Dark, " ") != test.dark {
				t.Errorf("ready %d, %v, dark %v", got.Ready, readyIn, got.Dark)
			}
			if preview.Healthy() != (test.dark == "") {
				t.Errorf("healthy: %v", preview.Healthy())
			}
			switch {
			case test.foreign == nothing && got.Foreign == nil:
			case test.foreign == nothing || got.Foreign == nil || math.Abs(*got.Foreign*100-test.foreign) > 1e-9:
				t.Errorf("foreign %v, want %v", ptr.Deref(got.Foreign, nothing)*100, test.foreign)
			}
			if !strings.HasPrefix(got.Message, test.message) || (test.message == "" && got.Message != "") {
				t.Errorf("message %q", got.Message)
			}
			const command = `kubectl annotate --overwrite service -n ns s 'topologyKeys=["site"]'`
			if got.Command != command && !test.closed || got.Command != "" && test.closed {
				t.Errorf("command %q", got.Command)
			}
		})
	}
}

// TestPreviewLeavesOut what has no endpoints of this cluster, and endpoints of the Service's second address family.
func TestPreviewLeavesOut(t *testing.T) {
	p := NewPreviewer("site", previewNodes)
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
	if keys, units := DivideNodes(nodes); !slices.Equal(keys, []string{"half", "site", "each"}) || units["site"] != 3 {
		t.Errorf("got %v %v", keys, units)
	}
}
