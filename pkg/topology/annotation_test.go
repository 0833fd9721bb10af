package topology

import (
	"strings"
	"testing"
)

func TestKeysOf(t *testing.T) {
	const ours, theirs = "topologyKeys", "openyurt.io/topologyKeys"
	type annotations = map[string]string
	for _, c := range []struct {
		name        string
		annotations annotations
		want        string // the keys joined, or
		wantErr     string // a part of the error
		annotation  string
	}{
		{name: "none", annotations: annotations{"other": `["zone"]`}},
		{name: "topologyKeys", annotations: annotations{ours: `["zone","*"]`}, want: "zone *", annotation: ours},
		{
			name: "topologyKeys that do not parse", annotations: annotations{ours: `zone`}, wantErr: "not a JSON array",
			annotation: ours,
		},

		{
			name: "OpenYurt's node", annotations: annotations{theirs: "kubernetes.io/hostname"},
			want: "kubernetes.io/hostname", annotation: theirs,
		},
		{
			name: "OpenYurt's zone", annotations: annotations{theirs: "kubernetes.io/zone"},
			want: "topology.kubernetes.io/zone", annotation: theirs,
		},
		{
			name: "OpenYurt's pool", annotations: annotations{theirs: "openyurt.io/nodepool"},
			want: "apps.openyurt.io/nodepool", annotation: theirs,
		},
		{name: "OpenYurt's, empty", annotations: annotations{theirs: ""}, annotation: theirs},

		{
			name: "another label key", annotations: annotations{theirs: "apps.openyurt.io/nodepool"},
			wantErr:    "not one of kubernetes.io/hostname, kubernetes.io/zone and openyurt.io/nodepool",
			annotation: theirs,
		},
		{
			name: "the label of a zone", annotations: annotations{theirs: "topology.kubernetes.io/zone"},
			wantErr: "not one of", annotation: theirs,
		},
		{
			name: "two values", annotations: annotations{theirs: "kubernetes.io/hostname,openyurt.io/nodepool"},
			wantErr: "not one of", annotation: theirs,
		},
		{
			name: "JSON", annotations: annotations{theirs: `["openyurt.io/nodepool"]`}, wantErr: "not one of",
			annotation: theirs,
		},
		{name: "any", annotations: annotations{theirs: "*"}, wantErr: "not one of", annotation: theirs},
		{
			name: "white space", annotations: annotations{theirs: "openyurt.io/nodepool "}, wantErr: "not one of",
			annotation: theirs,
		},
		{
			name: "capitals", annotations: annotations{theirs: "openyurt.io/NodePool"}, wantErr: "not one of",
			annotation: theirs,
		},

		{
			name: "both", annotations: annotations{ours: `["zone"]`, theirs: "openyurt.io/nodepool"}, want: "zone",
			annotation: ours,
		},
		{
			name: "both, ours empty", annotations: annotations{ours: `[]`, theirs: "openyurt.io/nodepool"},
			annotation: ours,
		},
		{
			name: "both, ours does not parse", annotations: annotations{ours: ``, theirs: "openyurt.io/nodepool"},
			wantErr: "not a JSON array", annotation: ours,
		},
		{
			name: "both, theirs does not parse", annotations: annotations{ours: `["zone"]`, theirs: "x"}, want: "zone",
			annotation: ours,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			keys, annotation, err := KeysOf(c.annotations)
			if annotation != c.annotation {
				t.Errorf("the annotation that counts is %q, want %q", annotation, c.annotation)
			}
			if c.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), c.wantErr) {
					t.Fatalf("KeysOf(%q) = %q, %v; want an error with %q", c.annotations, keys, err, c.wantErr)
				}
				if !keys.Governed() ||
					keys.Decide(Labels{"": "x"},
						keys.Rank(Labels{"": "x"}, Labels{"": "x"})).Keep(Labels{"zone": "a"}) {
					t.Fatalf("an annotation that does not parse gives keys %q, which hide nothing", keys)
				}
				return
			}
			if err != nil || strings.Join(keys, " ") != c.want || keys.Governed() != (c.want != "") {
				t.Fatalf("KeysOf(%q) = %q, %v; want %q", c.annotations, keys, err, c.want)
			}
		})
	}
}
