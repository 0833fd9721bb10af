package view_test

import (
	"errors"
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
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestAlteredKubernetes: default/kubernetes is altered as long as it is rewritten.
func TestAlteredKubernetes(t *testing.T) {
	s := storagetest.New(storagetest.Options{NodeName: "node0"})
	meta := metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "u", ResourceVersion: "5"}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "kubernetes"}
	if _, err := s.View.Altered(served.EndpointSlices, facts.KubernetesService); !errors.Is(err, served.ErrNotReady) {
		t.Errorf("before the first sync: got %v", err)
	}
	s.NodeLabels().Replace(nil)
	s.Services().Replace([]*wire.Object{wiretest.Object(&corev1.Service{ObjectMeta: meta})})
	if _, err := s.View.Altered(served.EndpointSlices, inNS("other")); !errors.Is(err, served.ErrNotReady) {
		t.Errorf("of a slice before slices are known: got %v", err)
	}
	s.EndpointSlices().Replace([]*wire.Object{wiretest.Object(slice)})
	annotate := func(annotations map[string]string) {
		list := &corev1.Endpoints{ObjectMeta: meta}
		list.Annotations = annotations
		s.KubernetesEndpoints().Replace([]*wire.Object{wiretest.Object(list)})
	}
	altered := func() string {
		t.Helper()
		why, err := s.View.Altered(served.EndpointSlices, facts.KubernetesService)
		if err != nil {
			t.Error(err)
		}
		return why
	}
	annotate(nil)
	if why, err := s.View.Altered(served.EndpointSlices, inNS("other")); why != "" || err != nil {
		t.Errorf("of a slice that does not exist: got %q, %v", why, err)
	}
	if got := altered(); got != "" {
		t.Errorf("not rewritten: got %q", got)
	}
	annotate(map[string]string{v1.AnnotationLocalEndpoint: "169.254.0.1", v1.AnnotationLocalPort: "51003"})
	if got := altered(); !strings.Contains(got, "API server on this node") {
		t.Errorf("rewritten: got %q", got)
	}
}
