package topology

import (
	"strings"
	"testing"
)

const ours, theirs = "topologyKeys", "openyurt.io/topologyKeys"

type annotations = map[string]string

func TestKeysOf(t *testing.T) {
	for _, c := range []struct {
		name             string
		annotations      annotations
		want, annotation string // the keys joined, and the annotation that counts
	}{
		{"none", annotations{"other": `["zone"]`}, "", ""},
		{"topologyKeys", annotations{ours: `["zone","*"]`}, "zone *", ours},

		{"OpenYurt's node", annotations{theirs: "kubernetes.io/hostname"}, "kubernetes.io/hostname", theirs},
		{"OpenYurt's zone", annotations{theirs: "kubernetes.io/zone"}, "topology.kubernetes.io/zone", theirs},
		{"OpenYurt's pool", annotations{theirs: "openyurt.io/nodepool"}, "apps.openyurt.io/nodepool", theirs},
		{"OpenYurt's, empty", annotations{theirs: ""}, "", theirs},

		{"both", annotations{ours: `["zone"]`, theirs: "openyurt.io/nodepool"}, "zone", ours},
		{"both, ours empty", annotations{ours: `[]`, theirs: "openyurt.io/nodepool"}, "", ours},
		{"both, theirs does not parse", annotations{ours: `["zone"]`, theirs: "x"}, "zone", ours},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, annotation, err := KeysOf(c.annotations)
			if annotation != c.annotation {
				t.Errorf("the annotation that counts is %q, want %q", annotation, c.annotation)
			}
			if err != nil || strings.Join(keys, " ") != c.want || keys.Governed() != (c.want != "") {
				t.Fatalf("KeysOf(%q) = %q, %v; want %q", c.annotations, keys, err, c.want)
			}
		})
	}
}

func TestKeysThatDoNotParse(t *testing.T) {
	for _, c := range []struct {
		name             string
		annotations      annotations
		want, annotation string // a part of the error, and the annotation that counts
	}{
		{"topologyKeys", annotations{ours: `zone`}, "not a JSON array", ours},
		{"both, ours does not parse", annotations{ours: ``, theirs: "openyurt.io/nodepool"}, "not a JSON array", ours},

		{"another label key", annotations{theirs: "apps.openyurt.io/nodepool"},
			"not one of kubernetes.io/hostname, kubernetes.io/zone and openyurt.io/nodepool", theirs},
		{"the label of a zone", annotations{theirs: "topology.kubernetes.io/zone"}, "not one of", theirs},
		{"two values", annotations{theirs: "kubernetes.io/hostname,openyurt.io/nodepool"}, "not one of", theirs},
		{"JSON", annotations{theirs: `["openyurt.io/nodepool"]`}, "not one of", theirs},
		{"any", annotations{theirs: "*"}, "not one of", theirs},
		{"white space", annotations{theirs: "openyurt.io/nodepool "}, "not one of", theirs},
		{"capitals", annotations{theirs: "openyurt.io/NodePool"}, "not one of", theirs},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, annotation, err := KeysOf(c.annotations)
			if annotation != c.annotation {
				t.Errorf("the annotation that counts is %q, want %q", annotation, c.annotation)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("KeysOf(%q) = %q, %v; want an error with %q", c.annotations, keys, err, c.want)
			}
			all := keys.Rank(Labels{"": "x"}, Labels{"": "x"})
			if !keys.Governed() || keys.Decide(Labels{"": "x"}, all).Keep(Labels{"zone": "a"}) {
				t.Fatalf("an annotation that does not parse gives keys %q, which hide nothing", keys)
			}
		})
	}
}
