package gridcontroller

import (
	"encoding/json"
	"reflect"
	"strings"
)

// An entry of an object's managedFields is a tree with the keys "f:<field>", "k:<keys of an element of a list>",
// "v:<value of an element of a set>" and ".", which is the value itself. An empty tree belongs to a value that is owned
// as a whole: a scalar, or a map or list that the schema calls atomic.

// project returns the part of a live value that the tree's manager owns.
func project(live any, tree map[string]any) any {
	if !granular(tree) {
		return live
	}
	switch value := live.(type) {
	case map[string]any:
		out := map[string]any{}
		for field, sub := range tree {
			if name, ok := strings.CutPrefix(field, "f:"); ok {
				if v, ok := value[name]; ok {
					out[name] = project(v, subtree(sub))
				}
			}
		}
		return out
	case []any:
		var out []any
		for _, element := range value { // in the order of the live list, in which it was applied
			for field, sub := range tree {
				if match(field, element) == same {
					out = append(out, project(element, subtree(sub)))
					break
				}
			}
		}
		return out
	}
	return live
}

// owns reports whether the tree's manager owns exactly the desired value. It may be false although that is so, if the
// desired value has nulls, or leaves a key to its default. It is never true if something is missing.
func owns(desired any, tree map[string]any) bool {
	if !granular(tree) {
		return tree != nil || empty(desired)
	}
	owned := 0
	for field := range tree {
		if field != "." {
			owned++
		}
	}
	switch value := desired.(type) {
	case map[string]any:
		for name, v := range value {
			sub, ok := tree["f:"+name]
			switch {
			case ok:
				owned--
				if v != nil && !owns(v, subtree(sub)) {
					return false
				}
			case v != nil:
				return false
			}
		}
		return owned == 0
	case []any:
		// An element that has all of its keys matches only one entry. An element that leaves keys to their defaults may
		// match several.
		taken := map[string]bool{}
		for _, how := range []matching{same, possible} {
			for _, element := range value {
				entry := ""
				best := different
				for field := range tree {
					if m := match(field, element); m > best {
						entry, best = field, m
					}
				}
				if best != how {
					if best == different {
						return false
					}
					continue
				}
				if how == possible {
					if entry = free(tree, element, taken); entry == "" {
						return false
					}
				}
				taken[entry] = true
				if !owns(element, subtree(tree[entry])) {
					return false
				}
			}
		}
		return owned == len(value)
	}
	return false
}

// free returns an entry of the tree that matches an element without all of its keys, and that no other element has
// taken.
func free(tree map[string]any, element any, taken map[string]bool) string {
	for field := range tree {
		if !taken[field] && match(field, element) == possible {
			return field
		}
	}
	return ""
}

// granular reports whether a tree belongs to a map or list whose parts have owners of their own.
func granular(tree map[string]any) bool { return len(tree) > 0 }

// empty reports whether a value is nil, or a map or list without entries.
func empty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func subtree(value any) map[string]any {
	tree, ok := value.(map[string]any)
	if !ok {
		return nil
	}
	return tree
}

// matching says how well an element of a list matches an entry of a tree.
type matching int

const (
	different matching = iota
	// possible means that the keys of the element equal those of the entry, and that it leaves others to their
	// defaults.
	possible
	same
)

// match compares an element of a list with an entry of a tree: "v:<value>" or "k:<keys>".
func match(entry string, element any) matching {
	if text, ok := strings.CutPrefix(entry, "v:"); ok {
		var value any
		if json.Unmarshal([]byte(text), &value) == nil && sameScalar(value, element) {
			return same
		}
		return different
	}
	text, ok := strings.CutPrefix(entry, "k:")
	if !ok {
		return different
	}
	var keys map[string]any
	object, isObject := element.(map[string]any)
	if !isObject || json.Unmarshal([]byte(text), &keys) != nil {
		return different
	}
	how := same
	for key, value := range keys {
		have, ok := object[key]
		switch {
		case !ok:
			how = possible
		case !sameScalar(value, have):
			return different
		}
	}
	return how
}

// sameScalar compares values of decoded JSON, in which a number is an int64 or a float64.
func sameScalar(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x == y
	}
	return reflect.DeepEqual(a, b)
}

func number(value any) (float64, bool) {
	switch v := value.(type) {
	case float64:
		return v, true
	case int64:
		return float64(v), true
	}
	return 0, false
}
