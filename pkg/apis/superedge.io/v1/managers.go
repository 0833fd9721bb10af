package v1

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
)

const (
	// FieldManager is the field manager with which the controller applies the children of grids.
	FieldManager = "application-grid-controller"
	// HandOverManager is the field manager that owns spec.replicas after a template stopped setting it, until someone
	// else changes the replicas.
	HandOverManager = "application-grid-hand-over"

	// namedFields is the most fields of one manager that ForeignFields names.
	namedFields = 3
)

// ForeignFields returns the fields of a child's spec that other managers own and the controller does not, such as
// "argo: spec.paused, spec.strategy"; "" if there are none. Subresources, through which autoscalers write, do not
// count.
func ForeignFields(entries []metav1.ManagedFieldsEntry) string {
	owned := map[string]map[string]bool{} // the paths, by manager
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
		if owned[entry.Manager] == nil {
			owned[entry.Manager] = map[string]bool{}
		}
		leaves("spec", spec, owned[entry.Manager])
	}
	var all []string
	for _, manager := range slices.Sorted(maps.Keys(owned)) {
		fields := slices.DeleteFunc(slices.Sorted(maps.Keys(owned[manager])), func(path string) bool {
			return owned[FieldManager][path]
		})
		if len(fields) > 0 {
			all = append(all, manager+": "+enumerate.First(fields, namedFields))
		}
	}
	return strings.Join(all, "; ")
}

// leaves adds the paths of the leaves of a tree of managed fields.
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
