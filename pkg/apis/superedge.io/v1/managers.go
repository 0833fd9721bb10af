package v1

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// FieldManager is under which the controller applies the children of grids.
	FieldManager = "application-grid-controller"
	// HandOverManager is under which replicas are kept that a template does not name any more, until someone else
	// changes them.
	HandOverManager = "application-grid-hand-over"

	// namedFields is how many fields of one manager ForeignFields names.
	namedFields = 3
)

// ForeignFields says which fields of the spec of a child managers other than the controller own, and the controller
// does not: "argo: spec.paused, spec.strategy"; empty if there are none. Subresources, where autoscalers write, do not
// count.
func ForeignFields(entries []metav1.ManagedFieldsEntry) string {
	ours := map[string]bool{}
	theirs := map[string]map[string]bool{}
	for _, entry := range entries {
		if entry.Subresource != "" || entry.FieldsV1 == nil || entry.Manager == HandOverManager {
			continue
		}
		var tree map[string]any
		if json.Unmarshal(entry.FieldsV1.GetRawBytes(), &tree) != nil {
			continue
		}
		spec, ok := tree["f:spec"].(map[string]any)
		if !ok {
			continue
		}
		paths := ours
		if entry.Manager != FieldManager {
			if theirs[entry.Manager] == nil {
				theirs[entry.Manager] = map[string]bool{}
			}
			paths = theirs[entry.Manager]
		}
		leaves("spec", spec, paths)
	}
	var all []string
	for _, manager := range slices.Sorted(maps.Keys(theirs)) {
		fields := slices.DeleteFunc(slices.Sorted(maps.Keys(theirs[manager])), func(path string) bool {
			return ours[path]
		})
		if len(fields) == 0 {
			continue
		}
		text := manager + ": " + strings.Join(fields[:min(len(fields), namedFields)], ", ")
		if more := len(fields) - namedFields; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}

// leaves collects the paths of what is owned as a whole.
func leaves(path string, tree map[string]any, into map[string]bool) {
	if len(tree) == 0 {
		into[path] = true
		return
	}
	for field, sub := range tree {
		below, _ := sub.(map[string]any)
		kind, name, _ := strings.Cut(field, ":")
		switch kind {
		case "f":
			leaves(path+"."+name, below, into)
		case "k", "v":
			leaves(path+"["+name+"]", below, into)
		}
	}
}
