package gridcontroller

import (
	"reflect"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// An entry of an object's managedFields is a tree with the keys "f:<field>", "k:<keys of an element of a list>",
// "v:<value of an element of a set>" and ".", which is the value itself. An empty tree belongs to a value that is owned
// as a whole: a scalar, or a map or list that the schema calls atomic.

// owns reports whether the tree's manager owns exactly the desired value. It may be false although that is so, and then
// the value is applied once more, which changes nothing. It is never true if something is missing.
func owns(desired any, tree map[string]any) bool {
	if len(tree) == 0 {
		return tree != nil || desired == nil
	}
	taken := map[string]bool{".": true}
	switch value := desired.(type) {
	case map[string]any:
		for name, v := range value {
			sub, ok := tree["f:"+name].(map[string]any)
			if v != nil && (!ok || !owns(v, sub)) {
				return false
			}
			taken["f:"+name] = ok
		}
	case []any:
		for _, element := range value {
			entry := ""
			for field, sub := range tree {
				of, _ := sub.(map[string]any)
				if !taken[field] && matches(field, element) && owns(element, of) {
					entry = field
					break
				}
			}
			if entry == "" {
				return false
			}
			taken[entry] = true
		}
	default:
		return false
	}
	for field := range tree {
		if !taken[field] {
			return false
		}
	}
	return true
}

// matches reports whether an element of a list can be that of an entry of a tree: "v:<value>" or "k:<keys>". An element
// may leave keys to their defaults.
func matches(entry string, element any) bool {
	kind, text, _ := strings.Cut(entry, ":")
	var value any
	if err := utiljson.Unmarshal([]byte(text), &value); err != nil || kind == "v" {
		return err == nil && reflect.DeepEqual(value, element)
	}
	keys, isKeys := value.(map[string]any)
	object, isObject := element.(map[string]any)
	for key, value := range keys {
		if have, ok := object[key]; ok && !reflect.DeepEqual(value, have) {
			return false
		}
	}
	return isKeys && isObject && kind == "k"
}
