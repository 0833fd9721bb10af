package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Any is the key that matches every endpoint, even one without a node. It may only be the last key.
const Any = "*"

// MaxKeys is the largest number of keys of one Service. Kubernetes' own service topology had the same limit.
const MaxKeys = 16

// Keys are the topology keys of one Service in order of preference. Empty means that the Service is not
// governed: every endpoint passes untouched.
type Keys []string

// Quoted returns the keys in the form of an annotation without its brackets. Keys have no characters that JSON escapes.
func (k Keys) Quoted() string { return `"` + strings.Join(k, `","`) + `"` }

// ParseKeys reads the value of a topologyKeys annotation: a JSON array of label keys. An empty array gives empty Keys.
// After an error the caller must treat the Service as governed by keys that nothing matches (Unsatisfiable), never as
// not governed.
func ParseKeys(annotation string) (Keys, error) {
	var keys []string
	decoder := json.NewDecoder(strings.NewReader(annotation))
	if err := decoder.Decode(&keys); err != nil {
		return nil, fmt.Errorf("not a JSON array of label keys, such as [\"kubernetes.io/hostname\"]: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("more than one JSON value: write one array of label keys")
	}
	if keys == nil {
		return nil, errors.New("null is not an array of label keys: write [] for a Service that is not governed")
	}
	if len(keys) > MaxKeys {
		return nil, fmt.Errorf("%d keys, at most %d are allowed", len(keys), MaxKeys)
	}
	seen := make(map[string]bool, len(keys))
	for i, key := range keys {
		if seen[key] {
			return nil, fmt.Errorf("key %q occurs twice", key)
		}
		seen[key] = true
		if key == Any {
			if i != len(keys)-1 {
				return nil, fmt.Errorf("%q may only be the last key", Any)
			}
			continue
		}
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return nil, fmt.Errorf("key %q is not a label key: %s", key, strings.Join(problems, "; "))
		}
	}
	return keys, nil
}

// Governed reports whether the Service has keys. Without keys every endpoint passes.
func (k Keys) Governed() bool { return len(k) > 0 }

// Unsatisfiable returns Keys that no endpoint matches. They replace keys that do not parse, and the keys of a Service
// that is not known: bad or missing data must hide endpoints, not leak them.
func Unsatisfiable() Keys { return Keys{""} }
