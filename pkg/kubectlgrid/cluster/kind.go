package cluster

import (
	"fmt"
	"slices"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// ParseKind finds a kind of grid by any of its names: deploymentgrids, deploymentgrid, dg, with the group or without.
func ParseKind(name string) (v1.GridKind, error) {
	var names []string
	lower := strings.ToLower(strings.TrimSuffix(
		strings.TrimSuffix(name, "."+v1.GroupName), "."+v1.GroupVersion.Version,
	))
	for _, k := range v1.Kinds {
		if slices.Contains([]string{k.Plural, k.Singular, k.Short}, lower) {
			return k, nil
		}
		names = append(names, fmt.Sprintf("%s (%s)", k.Plural, k.Short))
	}
	return v1.GridKind{}, fmt.Errorf("%q is not a kind of grid: must be one of %s", name, strings.Join(names, ", "))
}
