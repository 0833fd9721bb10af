package topology

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestParseKeys(t *testing.T) {
	for _, c := range []struct {
		name, annotation string
		want             string // the keys joined, or
		wantErr          string // a part of the error
	}{
		{name: "one key", annotation: `["zone1"]`, want: "zone1"},
		{name: "a prefixed key", annotation: `["topology.kubernetes.io/zone"]`, want: "topology.kubernetes.io/zone"},
		{
			name: "in order of preference", annotation: `["kubernetes.io/hostname", "zone", "*"]`,
			want: "kubernetes.io/hostname zone *",
		},
		{name: "white space", annotation: " [ \"zone\" ] \n", want: "zone"},
		{name: "empty array is not governed", annotation: `[]`, want: ""},
		{name: "empty value", annotation: ``, wantErr: "not a JSON array"},
		{name: "a bare word", annotation: `zone1`, wantErr: "not a JSON array"},
		{name: "a string", annotation: `"zone1"`, wantErr: "not a JSON array"},
		{name: "numbers", annotation: `[1]`, wantErr: "not a JSON array"},
		{name: "null", annotation: `null`, wantErr: "write []"},
		{name: "two values", annotation: `["a"] ["b"]`, wantErr: "more than one"},
		{name: "any not last", annotation: `["*","zone"]`, wantErr: "last"},
		{name: "a key twice", annotation: `["a","a"]`, wantErr: "twice"},
		{name: "an empty key", annotation: `[""]`, wantErr: "label key"},
		{name: "not a label key", annotation: `["a b"]`, wantErr: "label key"},
		{name: "null key", annotation: `[null]`, wantErr: "label key"},
		{
			name: "as many as may be", annotation: `["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p"]`,
			want: "a b c d e f g h i j k l m n o p",
		},
		{
			name: "too many", annotation: `["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]`,
			wantErr: "at most 16",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, err := ParseKeys(c.annotation)
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("ParseKeys(%q) = %q, %v; want an error with %q", c.annotation, keys, err, c.wantErr)
				}
				return
			}
			if err != nil || strings.Join(keys, " ") != c.want || keys.Governed() != (c.want != "") {
				t.Fatalf("ParseKeys(%q) = %q, %v; want %q", c.annotation, keys, err, c.want)
			}
		})
	}
}

func FuzzParseKeys(f *testing.F) {
	for _, seed := range []string{`["zone1"]`, `[]`, `["*"]`, `["a","*"]`, `null`, `[`, `["\u0000"]`, `{"a":1}`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, annotation string) {
		keys, err := ParseKeys(annotation)
		if err != nil {
			if keys != nil {
				t.Fatalf("keys %q with error %v", keys, err)
			}
			return
		}
		encoded, err := json.Marshal(keys)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseKeys(string(encoded))
		if err != nil || strings.Join(again, ",") != strings.Join(keys, ",") {
			t.Fatalf("%q parses to %q, which parses to %q, %v", annotation, keys, again, err)
		}
		// Whatever parses can be applied.
		_ = keys.Decide(nil, keys.Rank(nil, nil)).Keep(nil)
	})
}

func TestDecisionKeeps(t *testing.T) {
	here := Labels{"zone": "z1", "region": "r1"}
	nodes := map[string]Labels{
		"same":        {"zone": "z1", "region": "r1"},
		"region only": {"zone": "z2", "region": "r1"},
		"elsewhere":   {"zone": "z2", "region": "r2"},
		"no labels":   {},
		"unknown":     nil,
	}
	for _, c := range []struct {
		name  string
		keys  Keys
		here  Labels
		ready []string // nodes with a ready endpoint
		keep  string   // nodes that stay, in the order of the list below
	}{
		{"strict: the same value", Keys{"zone"}, here, []string{"same", "elsewhere"}, "same"},
		{"strict: none left means none", Keys{"zone"}, here, []string{"elsewhere"}, "same"},
		{"strict: ready or not", Keys{"zone"}, here, nil, "same"},
		{"this node unknown", Keys{"zone"}, nil, []string{"same"}, ""},
		{"this node without the key", Keys{"rack"}, here, []string{"same"}, ""},
		{"the first key that matches decides", Keys{"zone", "region"}, here, []string{"same", "region only"}, "same"},
		{
			"the second, when the first has no ready endpoint", Keys{"zone", "region"}, here, []string{"region only"},
			"same,region only",
		},
		{"none matches: none", Keys{"zone", "region"}, here, []string{"elsewhere"}, ""},
		{
			"none matches, any: all", Keys{"zone", "region", Any}, here, []string{"elsewhere"},
			"same,region only,elsewhere,no labels,unknown",
		},
		{"nothing ready, any: all", Keys{"zone", Any}, here, nil, "same,region only,elsewhere,no labels,unknown"},
		{"any alone", Keys{Any}, nil, nil, "same,region only,elsewhere,no labels,unknown"},
		{"any does not override a match", Keys{"zone", Any}, here, []string{"same", "elsewhere"}, "same"},
		{"unsatisfiable", Unsatisfiable(), Labels{"": ""}, []string{"same"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			best := NoRank
			for _, name := range c.ready {
				best = min(best, c.keys.Rank(c.here, nodes[name]))
			}
			decision := c.keys.Decide(c.here, best)
			var kept []string
			for _, name := range []string{"same", "region only", "elsewhere", "no labels", "unknown"} {
				if decision.Keep(nodes[name]) {
					kept = append(kept, name)
				}
			}
			if got := strings.Join(kept, ","); got != c.keep {
				t.Errorf("keeps %q, want %q", got, c.keep)
			}
		})
	}
}

func TestZeroDecisionKeepsNothing(t *testing.T) {
	if (Decision{}).Keep(Labels{"": "", "zone": "a"}) {
		t.Error("the zero Decision keeps an endpoint")
	}
}
