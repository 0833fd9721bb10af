package gridcontroller

import (
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
func TestCovers(t *testing.T) {
	tests := []struct {
		name                  string
		desired, live, fields string
		same                  bool
	}{
		{"equal", `{"a":1}`, `{"a":1}`, `{"f:a":{}}`, true},
		{"what others own is left alone", `{"a":1}`, `{"a":1,"b":2}`, `{"f:a":{}}`, true},
		{"another value", `{"a":1}`, `{"a":2}`, `{"f:a":{}}`, false},
		{"someone else has taken it", `{"a":1,"b":2}`, `{"a":1,"b":2}`, `{"f:b":{}}`, false},
		{"it is gone", `{"a":1}`, `{}`, `{"f:a":{}}`, false},
		{"no longer desired, still owned", `{"a":1}`, `{"a":1,"b":2}`, `{"f:a":{},"f:b":{}}`, false},
		{"null is nothing", `{"a":1,"b":null}`, `{"a":1}`, `{"f:a":{}}`, true},
		{"numbers", `{"a":1.0}`, `{"a":1}`, `{"f:a":{}}`, true},
		{"quantities", `{"limits":{"cpu":1,"memory":"1024Mi"}}`, `{"limits":{"cpu":"1","memory":"1Gi"}}`, `{"f:limits":{"f:cpu":{},"f:memory":{}}}`, true},
		{"another quantity", `{"limits":{"cpu":"1"}}`, `{"limits":{"cpu":"2"}}`, `{"f:limits":{"f:cpu":{}}}`, false},
		{"no quantity elsewhere", `{"env":{"cpu":"1"}}`, `{"env":{"cpu":"1000m"}}`, `{"f:env":{"f:cpu":{}}}`, false},
		{"keyed list, with an injected element and defaults", `{"c":[{"name":"a","image":"x"}]}`, `{"c":[{"name":"a","image":"x","policy":"Always"},{"name":"sidecar"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}`, true},
		{"keyed list, changed element", `{"c":[{"name":"a","image":"y"}]}`, `{"c":[{"name":"a","image":"x"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}`, false},
		{"keyed list, an element less desired", `{"c":[{"name":"a"}]}`, `{"c":[{"name":"a"},{"name":"b"}]}`,
			`{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{}},"k:{\"name\":\"b\"}":{".":{},"f:name":{}}}}`, false},
		{"key with a default", `{"ports":[{"port":80}]}`, `{"ports":[{"port":80,"protocol":"TCP","nodePort":30000}]}`,
			`{"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}}}`, true},
		{"set", `{"f":["a","b"]}`, `{"f":["a","b","theirs"]}`, `{"f:f":{"v:\"a\"":{},"v:\"b\"":{}}}`, true},
		{"owned as a whole, with defaults", `{"t":[{"x":{"y":1}}]}`, `{"t":[{"x":{"y":1,"z":"default"},"w":2}]}`, `{"f:t":{}}`, true},
		{"owned as a whole, another length", `{"t":[1]}`, `{"t":[1,2]}`, `{"f:t":{}}`, false},
		{"owned as a whole, another value", `{"t":[{"x":1}]}`, `{"t":[{"x":2}]}`, `{"f:t":{}}`, false},
		{"empty object", `{"e":{}}`, `{"e":{}}`, `{"f:e":{}}`, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			owned := project(parse(t, test.live), parse(t, test.fields))
			if covers(parse(t, test.desired), owned, false) != test.same {
				t.Errorf("want %t; owned: %v", test.same, owned)
			}
		})
	}
}
