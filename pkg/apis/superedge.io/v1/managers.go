package v1

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

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
// "argo: spec.paused, spec.strategy"; "" if they own none. Subresources, through which autoscalers write, do not
// count.
func ForeignFields(entries []metav1.ManagedFieldsEntry) string {
	owned := map[string]*fieldpath.Set{FieldManager: {}} // the fields of the spec, by manager
	for _, entry := range entries {
		if entry.Subresource != "" || entry.FieldsV1 == nil || entry.Manager == HandOverManager {
			continue
		}
		var fields fieldpath.Set
		if fields.FromJSON(entry.FieldsV1.GetRawReader()) != nil {
			continue
		}
		spec := fields.WithPrefix(fieldpath.FieldNameElement("spec")).Leaves()
		if before := owned[entry.Manager]; before != nil {
			spec = spec.Union(before)
		}
		owned[entry.Manager] = spec
	}
	var all []string
	for _, manager := range slices.Sorted(maps.Keys(owned)) {
		var fields []string
		owned[manager].Difference(owned[FieldManager]).Iterate(func(path fieldpath.Path) {
			fields = append(fields, "spec"+path.String())
		})
		if len(fields) > 0 {
			slices.Sort(fields)
			all = append(all, manager+": "+enumerate.First(fields, namedFields))
		}
	}
	return strings.Join(all, "; ")
}
