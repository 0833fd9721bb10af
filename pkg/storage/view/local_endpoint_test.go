package view_test

import (
	"cmp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// TestLocalEndpointOfAnotherFamily replaces nothing, and it is said why; whichever family default/kubernetes has, and
// whether the flag or annotations give the address.
func TestLocalEndpointOfAnotherFamily(t *testing.T) {
	for _, test := range []struct {
		name            string
		flag            string
		onSlice, onList string            // annotations
		slices          map[string]string // by address type, the address that is shown
		listed, list    string            // the address of Endpoints, 192.0.2.1 without one, and the one that is shown
		problem         string
	}{
		{
			name: "IPv6 for IPv4", flag: "fd00::20", slices: map[string]string{"IPv4": "192.0.2.1"}, list: "192.0.2.1",
			problem: "the local endpoint fd00::20 is an IPv6 address, and EndpointSlice default/kubernetes-IPv4 has",
		},
		{
			name: "IPv4 for IPv6", flag: "169.254.20.11", slices: map[string]string{"IPv6": "2001:db8::1"},
			listed: "2001:db8::1", list: "2001:db8::1", problem: "is an IPv4 address",
		},
		{
			name: "of two families", flag: "fd00::20",
			slices: map[string]string{"IPv4": "192.0.2.1", "IPv6": "fd00::20"},
			list:   "192.0.2.1",
		},
		{
			name: "annotations", onList: "fd00::20", slices: map[string]string{"IPv4": "192.0.2.1"}, list: "192.0.2.1",
			problem: "is an IPv6 address",
		},
		{
			name: "the right one after a wrong one", onSlice: "fd00::20", onList: "169.254.20.11",
			slices: map[string]string{"IPv4": "169.254.20.11"}, list: "169.254.20.11",
		},
		{name: "not an address", onSlice: "x", slices: map[string]string{"IPv4": "192.0.2.1"}, problem: "not an IP"},
		{name: "none", slices: map[string]string{"IPv4": "192.0.2.1"}, list: "192.0.2.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := storagetest.Options{NodeName: "node-a1"}
			if test.flag != "" {
				local, err := view.ParseLocalEndpoint(test.flag, "51003")
				if err != nil {
					t.Fatal(err)
				}
				options.LocalEndpoint = local
			}
			s := storagetest.New(options)
			annotated := func(ip string) map[string]string {
				if ip == "" {
					return nil
				}
				return map[string]string{v1.AnnotationLocalEndpoint: ip, v1.AnnotationLocalPort: "51003"}
			}
			list := wiretest.Object(&corev1.Endpoints{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "default", Name: "kubernetes", Annotations: annotated(test.onList),
				},
				Subsets: []corev1.EndpointSubset{{
					Addresses: []corev1.EndpointAddress{{IP: cmp.Or(test.listed, "192.0.2.1")}},
				}},
			})
			s.NodeLabels().Replace(nil)
			s.KubernetesEndpoints().Apply(list)
			s.KubernetesEndpoints().Replace(nil)
			s.KubernetesEndpoints().Apply(list)
			s.Services().Replace(nil)
			s.Services().Apply(wiretest.Service("default/kubernetes", ""))
			s.EndpointSlices().Replace(nil)
			s.Endpoints().Replace(nil)
			for family := range test.slices {
				address := "192.0.2.1"
				if family == "IPv6" {
					address = "2001:db8::1"
				}
				s.EndpointSlices().Apply(wiretest.Object(&discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "default", Name: "kubernetes-" + family, Annotations: annotated(test.onSlice),
						Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
					},
					AddressType: discoveryv1.AddressType(family),
					Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}}},
				}))
			}
			if test.list != "" {
				s.Endpoints().Apply(list)
				o, err := s.History.Get(served.Endpoints, facts.KubernetesService, 0)
				if err != nil {
					t.Fatal(err)
				}
				if got := decoded[*corev1.Endpoints](t, o).Subsets[0].Addresses[0].IP; got != test.list {
					t.Errorf("Endpoints show %s, want %s", got, test.list)
				}
			}
			objects, _, err := s.History.List(served.EndpointSlices, "default", 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range objects {
				slice := decoded[*discoveryv1.EndpointSlice](t, o)
				family, want := string(slice.AddressType), test.slices[strings.TrimPrefix(slice.Name, "kubernetes-")]
				if !strings.HasSuffix(slice.Name, family) || slice.Endpoints[0].Addresses[0] != want {
					t.Errorf("%s shows %s %s, want %s", slice.Name, family, slice.Endpoints[0].Addresses[0], want)
				}
			}
			said := s.View.LocalEndpointProblem()
			if (said == nil) != (test.problem == "") || said != nil && !strings.Contains(said.Error(), test.problem) {
				t.Errorf("the problem is %v, want %q", said, test.problem)
			}
			e, err := s.Explain(facts.KubernetesService, "")
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(e.Notes, "\n"); test.problem != "" && !strings.Contains(notes, test.problem) {
				t.Errorf("explain says %q, want %q", notes, test.problem)
			}
		})
	}
}
