package v1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// nameRules are what a kind of child asks of a name.
//
// +kubebuilder:object:generate=false
type nameRules struct {
	longest int
	// dots: it may be a subdomain. letterFirst: it must not begin with a digit.
	dots, letterFirst bool
}

// hashLength is the number of characters in the hash of an alternative name.
const hashLength = 8

// CheckName says why a child of this kind cannot have a name; empty if it can.
func (k GridKind) CheckName(name string) string {
	if len(name) > k.names.longest {
		return fmt.Sprintf("must be no more than %d characters", k.names.longest)
	}
	var problems []string
	switch {
	case k.names.dots:
		problems = validation.IsDNS1123Subdomain(name)
	case k.names.letterFirst:
		problems = validation.IsDNS1035Label(name)
	default:
		problems = validation.IsDNS1123Label(name)
	}
	if len(problems) > 0 {
		return problems[0]
	}
	return ""
}

// ChildName is the name of the workload of a unit: {grid}-{unit}, or where that cannot be a name, AlternativeChildName.
// A workload may also have the alternative name because the other one was taken when it was made: LabelGridUnit tells
// whose it is.
func (k GridKind) ChildName(grid, unit string) string {
	if name := grid + "-" + unit; k.CheckName(name) == "" {
		return name
	}
	return k.AlternativeChildName(grid, unit)
}

// AlternativeChildName is {grid}-{unit}-{hash}, with a hyphen for every character that a name cannot have, cut to what
// fits before the hash of grid and unit.
func (k GridKind) AlternativeChildName(grid, unit string) string {
	sum := sha256.Sum256([]byte(grid + "/" + unit))
	hash := hex.EncodeToString(sum[:])[:hashLength]
	plain := func(text string, dots bool) string {
		return strings.Map(func(r rune) rune {
			switch {
			case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-', r == '.' && dots:
				return r
			case r >= 'A' && r <= 'Z':
				return r - 'A' + 'a'
			}
			return '-'
		}, text)
	}
	name := plain(grid, k.names.dots) + "-" + plain(unit, false)
	if longest := k.names.longest - hashLength - 1; len(name) > longest {
		name = name[:longest]
	}
	return strings.Trim(name, "-.") + "-" + hash
}

// UnitOf is the unit of a workload of a grid: what its label says, or for want of one, what follows the grid's name in
// its own.
func UnitOf(child metav1.Object, grid string) string {
	if unit := child.GetLabels()[LabelGridUnit]; unit != "" {
		return unit
	}
	return strings.TrimPrefix(child.GetName(), grid+"-")
}
