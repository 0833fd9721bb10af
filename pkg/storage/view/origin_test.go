package view_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
)

// TestOriginOfKubernetes: default/kubernetes is altered as long as it is rewritten.
func TestOriginOfKubernetes(t *testing.T) {
	s := storagetest.New(storagetest.Options{NodeName: "node0"})
	meta := metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "u", ResourceVersion: "5"}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
	if _, err := s.View.Origin(served.EndpointSlices, facts.KubernetesService); !errors.Is(err, served.ErrNotReady) {
		t.Errorf("before the first sync: got %v", err)
	}
	s.NodeLabels().Replace(nil)
	s.Services().Replace([]*wire.Object{wiretest.Object(&corev1.Service{ObjectMeta: meta})})
	s.EndpointSlices().Replace([]*wire.Object{wiretest.Object(slice)})
	annotate := func(annotations map[string]string) {
		list := &corev1.Endpoints{ObjectMeta: meta}
		list.Annotations = annotations
		s.KubernetesEndpoints().Replace([]*wire.Object{wiretest.Object(list)})
	}
	origin := func() string {
		t.Helper()
		origin, err := s.View.Origin(served.EndpointSlices, facts.KubernetesService)
		if err != nil || origin.ResourceVersion != "5" || origin.Revision == 0 {
			t.Errorf("got %+v, %v", origin, err)
		}
		return origin.Altered
	}
	annotate(nil)
	if got := origin(); got != "" {
		t.Errorf("not rewritten: got %q", got)
	}
	annotate(map[string]string{v1.AnnotationLocalEndpoint: "169.254.0.1", v1.AnnotationLocalPort: "51003"})
	if got := origin(); !strings.Contains(got, "API server on this node") {
		t.Errorf("rewritten: got %q", got)
	}
}

// TestOriginIsThatOfTheNewestVersion, also of one that a relist brings unchanged.
func TestOriginIsThatOfTheNewestVersion(t *testing.T) {
	s := storagetest.New(storagetest.Options{NodeName: "node0", KeepKubernetesEndpoint: true})
	node := func(resourceVersion string) []*wire.Object {
		return []*wire.Object{
			wiretest.Object(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "node0", ResourceVersion: resourceVersion},
			}),
		}
	}
	service := func(resourceVersion string) []*wire.Object {
		return []*wire.Object{
			wiretest.Object(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", ResourceVersion: resourceVersion},
			}),
		}
	}
	var revisions [2]uint64
	for i, resourceVersion := range []string{"7", "8", "9"} {
		s.NodeLabels().Replace(node(resourceVersion))
		s.OwnNode().Replace(node(resourceVersion))
		s.Services().Replace(service(resourceVersion))
		for j, object := range []struct {
			resource *served.Resource
			name     types.NamespacedName
		}{{served.Nodes, types.NamespacedName{Name: "node0"}}, {
			served.Services, inNS("s"),
		}} {
			origin, err := s.View.Origin(object.resource, object.name)
			if err != nil || origin.ResourceVersion != resourceVersion || origin.Altered != "" || origin.Revision == 0 {
				t.Errorf("%s at %s: got %+v, %v", object.resource.Resource, resourceVersion, origin, err)
			}
			if i > 0 && origin.Revision != revisions[j] {
				t.Errorf("%s at %s: a change of the resourceVersion alone made an event",
					object.resource.Resource, resourceVersion)
			}
			revisions[j] = origin.Revision
		}
	}
	if origin, err := s.View.Origin(served.Services, inNS("none")); err != nil || origin != (view.Origin{}) {
		t.Errorf("of nothing: got %+v, %v", origin, err)
	}
}
