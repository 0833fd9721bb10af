package serve

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/served"
)

// richService uses fields of every shape: maps, lists, pointers, unions, empty strings that must stay.
func richService() *corev1.Service {
	s := labelled(service("rich"), map[string]string{"b": "2", "a": "1", "empty": ""})
	s.Annotations = map[string]string{"quotes": "\"<&>\u2028", "newline": "a\nb"}
	s.Finalizers = []string{"x/y"}
	s.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "X", Name: "o", UID: "u", Controller: ptr.To(true)},
	}
	s.Generation = 3
	s.Spec.ClusterIPs = []string{"10.0.0.1", "fd00::1"}
	s.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	s.Spec.Ports = []corev1.ServicePort{
		{
			Name: "a", Port: 1, TargetPort: intstr.FromString("named"), Protocol: corev1.ProtocolUDP,
			AppProtocol: ptr.To(""),
		},
		{Name: "b", Port: 2, TargetPort: intstr.FromInt32(0)},
	}
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](0)},
	}
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "1.2.3.4"}}
	return s
}

func richSlice() *discoveryv1.EndpointSlice {
	s := slice("rich", thisNode, "node2")
	s.Endpoints[0].Hostname = ptr.To("h")
	s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{
		Ready: ptr.To(false), Serving: ptr.To(true), Terminating: ptr.To(true),
	}
	s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "p"}
	s.Endpoints[1].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
	return s
}

// TestEncodingsEqualTypedOnes: what the wrapper writes from wire form decodes to the object that a typed
// encoding would give, in every encoding, as a list, as one object and as an event.
func TestEncodingsEqualTypedOnes(t *testing.T) {
	service, slice := richService(), richSlice()
	c := newSyncedCluster(t, service, slice)
	tests := []struct {
		object     served.Typed
		collection string
		kind       string
		apiVersion string
	}{
		{service, servicesPath, "Service", "v1"},
		{slice, slicesPath, "EndpointSlice", "discovery.k8s.io/v1"},
	}
	for _, test := range tests {
		for _, accept := range []string{asJSON, asProtobuf} {
			t.Run(test.kind+" "+accept, func(t *testing.T) {
				group, resource := "/api/v1", "/services/rich"
				if test.kind == "EndpointSlice" {
					group, resource = "/apis/discovery.k8s.io/v1", "/endpointslices/rich"
				}
				r := c.get(group+"/namespaces/default"+resource, "Accept", accept)
				one := decodeAs[runtime.Object](t, r)
				checkDecoded(t, one, test.object)
				checkTypeMeta(t, r.body, test.kind, test.apiVersion)
				checkBytes(t, accept, r.body, one)

				r = c.get(test.collection, "Accept", accept)
				checkTypeMeta(t, r.body, test.kind+"List", test.apiVersion)
				list := decodeAs[runtime.Object](t, r)
				items, err := meta.ExtractList(list)
				if err != nil || len(items) != 1 {
					t.Fatalf("got %d items, %v", len(items), err)
				}
				checkDecoded(t, items[0], test.object)
				checkBytes(t, accept, r.body, list)

				e := c.watch(test.collection, "", accept).expect("ADDED rich")[0]
				checkDecoded(t, e.Object, test.object)
			})
		}
	}
}

// checkDecoded compares all but the revision, which is the wrapper's own, and the kind, which decoders drop or
// keep as they like.
func checkDecoded(t *testing.T, got runtime.Object, want served.Typed) {
	t.Helper()
	wanted := want.DeepCopyObject()
	for _, o := range []runtime.Object{got, wanted} {
		o.GetObjectKind().SetGroupVersionKind(wanted.GetObjectKind().GroupVersionKind())
	}
	revision := got.(metav1.Object).GetResourceVersion()
	wanted.(metav1.Object).SetResourceVersion(revision)
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("(-typed +wrapper)\n%s", diff)
	}
	revisionOf(t, got)
}

// checkBytes compares with the bytes that client-go's encoder writes for the same object. (In protobuf the
// order of map entries may differ, and the envelope's empty fields stand elsewhere.)
func checkBytes(t *testing.T, accept string, body []byte, decoded runtime.Object) {
	t.Helper()
	if accept != asJSON {
		return
	}
	want, err := runtime.Encode(scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion),
		decoded)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(bytes.TrimSpace(body), bytes.TrimSpace(want)) {
		t.Errorf("got\n%s\nwant\n%s", body, want)
	}
}

func checkTypeMeta(t *testing.T, body []byte, kind, apiVersion string) {
	t.Helper()
	_, gvk, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	gotVersion, gotKind := gvk.ToAPIVersionAndKind()
	if gotKind != kind || gotVersion != apiVersion {
		t.Errorf("got %s %s, want %s %s", gotVersion, gotKind, apiVersion, kind)
	}
}

func TestEmptyListHasItems(t *testing.T) {
	c := newSyncedCluster(t)
	if r := c.get(servicesPath); !bytes.Contains(r.body, []byte(`"items":[]`)) {
		t.Errorf("clients in other languages expect an empty array: %s", r.body)
	}
	r := c.get(servicesPath, "Accept", asProtobuf)
	if list := decodeAs[*corev1.ServiceList](t, r); len(list.Items) != 0 || !isProtobuf(r.body) {
		t.Errorf("got %v", list)
	}
}
