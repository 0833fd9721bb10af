package follow

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestListsInJSON: what an upstream may write as a list, and what is none.
func TestListsInJSON(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ body, names, version, next string }{
		"Services": {
			`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c"},` +
				`"items":[{"metadata":{"name":"a"},"spec":{}},{"metadata":{"name":"b"}}]}`,
			"a,b", "7", "c",
		},
		"metadata at the end": {
			`{"items":[{"metadata":{"name":"a"}}],"apiVersion":"v1","kind":"ServiceList","extra":[1,{}],` +
				`"metadata":{"resourceVersion":"8"}}`,
			"a", "8", "",
		},
		"items null": {`{"kind":"ServiceList","apiVersion":"v1","metadata":{},"items":null}`, "", "", ""},
		"no items":   {`{"kind":"ServiceList","apiVersion":"v1"}`, "", "", ""},
		"metadata only": {
			`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},` +
				`"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"a"}}]}`,
			"a", "", "",
		},
		"whole custom ones": {
			`{"kind":"StatefulSetGridList","apiVersion":"superedge.io/v1","metadata":{},` +
				`"items":[{"metadata":{"name":"a","uid":"u"},"spec":{"replicas":{"odd":true}}}]}`,
			"a", "", "",
		},
	} {
		list, err := readList(strings.NewReader(test.body), nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var names []string
		for _, o := range list.Items {
			names = append(names, o.Name)
		}
		if got := strings.Join(names, ","); got != test.names || list.ResourceVersion != test.version ||
			list.Continue != test.next {
			t.Errorf("%s: %q, %+v", name, got, list.ListMeta)
		}
	}
	for _, body := range []string{
		"", "{}", "[]", "null", "<html>", `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}`,
		`{"kind":"ServiceList","apiVersion":"v1","items":{}}`, `{"kind":"ServiceList","apiVersion":"v1","items":[1]}`,
		`{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":1}}]}`,
		`{"kind":"ServiceList","apiVersion":"v1","metadata":[]}`,
		`{"kind":"ServiceList","apiVersion":"v1","items":[]}{}`, `{"items":[{}],"kind":"ServiceList","apiVersion":"v1"`,
		"k8s\x00", "k8s\x00\xff",
	} {
		if list, err := readList(strings.NewReader(body), nil); err == nil {
			t.Errorf("%q is taken for %+v", body, list)
		}
	}
}

// TestListsOfReducers are what other Sinks get, but for what Reduce leaves out, in protobuf and in JSON. A list that is
// cut off, at whatever byte, is an error.
func TestListsOfReducers(t *testing.T) {
	t.Parallel()
	services := corev1.ServiceList{ListMeta: metav1.ListMeta{ResourceVersion: "7", Continue: "c"}}
	for i := range 3 {
		services.Items = append(services.Items, *service(fmt.Sprint("s", i)))
		services.Items[i].Annotations = map[string]string{"a": strings.Repeat("a", 100)}
	}
	whole := protobufOf(t, "ServiceList", &services)
	sameName := func(o *wire.Object) *wire.Object { return &wire.Object{Namespace: o.Namespace, Name: o.Name} }
	for name, body := range map[string][]byte{
		"protobuf": whole,
		"JSON": []byte(`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"c"},` +
			`"items":[{"metadata":{"namespace":"default","name":"s0"}},` +
			`{"metadata":{"namespace":"default","name":"s1"}},` +
			`{"metadata":{"namespace":"default","name":"s2"}}]}`),
	} {
		list, err := readList(iotest.OneByteReader(bytes.NewReader(body)), sameName)
		if err != nil || list.Kind != "ServiceList" || list.ListMeta != (metav1.ListMeta{
			ResourceVersion: "7", Continue: "c"}) || len(list.Items) != 3 {
			t.Errorf("%s: %+v, %v", name, list, err)
			continue
		}
		for i, o := range list.Items {
			if o.Name != fmt.Sprint("s", i) || o.Namespace != "default" || len(o.Meta) > 0 {
				t.Errorf("%s: the object %d is %+v", name, i, o)
			}
		}
	}
	reduced := 0
	halfJSON := `{"kind":"ServiceList","apiVersion":"v1","items":[{"metadata":{"name":"s0"}},1]}`
	if list, err := readList(strings.NewReader(halfJSON), func(o *wire.Object) *wire.Object {
		reduced++
		return o
	}); err == nil || reduced != 1 {
		t.Errorf("%+v, %v: %d objects are reduced before the next one is read", list, err, reduced)
	}
	var inJSON bytes.Buffer
	services.TypeMeta = metav1.TypeMeta{Kind: "ServiceList", APIVersion: "v1"}
	if err := json.NewEncoder(&inJSON).Encode(services); err != nil {
		t.Fatal(err)
	}
	size := inJSON.Len()
	var left []int
	if _, err := readList(iotest.OneByteReader(&inJSON), func(o *wire.Object) *wire.Object {
		left = append(left, inJSON.Len())
		return o
	}); err != nil || len(left) != 3 || left[0] < size/3 || left[1] < size/6 {
		t.Errorf("%v: when the objects are reduced, %d of %d bytes are left to read", err, left, size)
	}
	for end := range whole {
		if list, err := readList(bytes.NewReader(whole[:end]), sameName); err == nil {
			t.Errorf("the first %d of %d bytes are taken for a list of %d", end, len(whole), len(list.Items))
		}
	}
	broken := errors.New("the connection broke")
	if _, err := readList(io.MultiReader(bytes.NewReader(whole), iotest.ErrReader(broken)), sameName); !errors.Is(err,
		broken) {
		t.Errorf("an error at the end is lost: %v", err)
	}
	for name, body := range map[string][]byte{
		"one object": protobufOf(t, "Service", service("s")), "a Status": protobufOf(t, "Status", &metav1.Status{
			Status: metav1.StatusFailure}), "no kind": protobufOf(t, "", &services), "HTML": []byte("<html>"),
		"one object in JSON": []byte(`{"kind":"Service","apiVersion":"v1","metadata":{"name":"s"}}`),
		"a long item":        slices.Concat(whole[:len(whole)-400], bytes.Repeat([]byte{0xff}, 400)),
	} {
		if list, err := readList(bytes.NewReader(body), sameName); err == nil {
			t.Errorf("%s is taken for a list: %+v", name, list)
		}
	}
}

// protobufOf is a body as kube-apiserver writes it.
func protobufOf(t *testing.T, kind string, of interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	message, err := of.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(wire.AppendEnvelope(nil, wire.TypeMeta{APIVersion: "v1", Kind: kind}, len(message)), message...)
}
