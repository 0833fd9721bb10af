package gridcontroller

import (
	"reflect"
	"testing"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	if err := utiljson.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

// TestCovers: what is owned of the live value is compared with what is desired.
// TestOwns: what is desired is compared with the fields that are owned.
func TestOwns(t *testing.T) {
	tests := []struct {
		name, desired, fields string
		owns                  bool
	}{
		{"equal", `{"a":1}`, `{"f:a":{}}`, true},
		{"someone else has taken it", `{"a":1,"b":2}`, `{"f:b":{}}`, false},
		{"no longer desired, still owned", `{"a":1}`, `{"f:a":{},"f:b":{}}`, false},
		{"null is nothing", `{"a":1,"b":null}`, `{"f:a":{}}`, true},
		{"null is owned", `{"a":1,"b":null}`, `{"f:a":{},"f:b":{}}`, true},
		{"deep", `{"a":{"b":{"c":1}}}`, `{"f:a":{"f:b":{"f:c":{}}}}`, true},
		{"deep, taken", `{"a":{"b":{"c":1,"d":2}}}`, `{"f:a":{"f:b":{"f:c":{}}}}`, false},
		{"all below is taken", `{"a":{"b":1}}`, `{"f:a":{".":{}}}`, false},
		{"nothing is owned", `{"a":1}`, `{}`, true}, // as a whole: see at for a field that is not there
		{
			"keyed list", `{"c":[{"name":"a","image":"x"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}`, true,
		},
		{
			"keyed list, a field is taken", `{"c":[{"name":"a","image":"x"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}}}}`, false,
		},
		{
			"keyed list, an element is gone", `{"c":[{"name":"a"},{"name":"b"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}}}}`, false,
		},
		{
			"keyed list, an element less desired", `{"c":[{"name":"a"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{}}}}`, false,
		},
		{
			"key with a default", `{"ports":[{"port":80}]}`,
			`{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}`, true,
		},
		{
			"two protocols", `{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`,
			`{"f:ports":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":53,` +
				`\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}`,
			true,
		},
		{
			"two protocols, one is gone", `{"ports":[{"port":53},{"port":53,"protocol":"UDP"}]}`,
			`{"f:ports":{"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}`, false,
		},
		{"set", `{"f":["a","b"]}`, `{"f:f":{"v:\"a\"":{},"v:\"b\"":{}}}`, true},
		{"set, one is taken", `{"f":["a","b"]}`, `{"f:f":{"v:\"a\"":{}}}`, false},
		{"owned as a whole", `{"t":[{"x":{"y":1}}]}`, `{"f:t":{}}`, true},
		{"empty object", `{"e":{}}`, `{"f:e":{}}`, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := owns(parse(t, test.desired), parse(t, test.fields)); got != test.owns {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestProject: values that others own are left out, of what is owned as a whole nothing.
func TestProject(t *testing.T) {
	live := parse(t,
		`{"a":1,"b":2,"c":[{"name":"a","image":"x","policy":"Always"},{"name":"sidecar"}],"t":[{"x":1,`+
			`"z":"default"}],"s":["a","b"]}`)
	fields := parse(t,
		`{"f:a":{},"f:gone":{},"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}},"f:t":{},`+
			`"f:s":{"v:\"b\"":{}}}`)
	want := parse(t, `{"a":1,"c":[{"name":"a","image":"x"}],"t":[{"x":1,"z":"default"}],"s":["b"]}`)
	if got := project(live, fields); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}
