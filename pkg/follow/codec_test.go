package follow

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// TestListsInJSON: what an upstream may write as a list, and what is none.
func TestListsInJSON(t *testing.T) {
	t.Parallel()
	c := newCodec()
	info, _ := runtime.SerializerInfoForMediaType(c.SupportedMediaTypes(), runtime.ContentTypeJSON)
	d := c.DecoderToVersion(info.Serializer, nil)
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
		decoded, _, err := d.Decode([]byte(test.body), nil, nil)
		list, ok := decoded.(*List)
		if err != nil || !ok {
			t.Errorf("%s: %T, %v", name, decoded, err)
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
		"k8s\x00", "k8s\x00\xff",
	} {
		if decoded, _, err := d.Decode([]byte(body), nil, nil); err == nil {
			t.Errorf("%q is taken for %T", body, decoded)
		}
	}
}
