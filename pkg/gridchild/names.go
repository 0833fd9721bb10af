package gridchild

import (
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Names are the names of the children of a grid's units, be they there or not.
type Names struct {
	kind v1.GridKind
	grid string
	// ByUnit are the names, Units the units by these names.
	ByUnit, Units map[string]string
	// Clashes are units whose name for a child is another unit's.
	Clashes map[string]string
}

// Known is what the names of children follow from, besides grid and unit.
type Known struct {
	// Exists reports whether the grid has a child of this name.
	Exists func(name string) bool
	// Taken reports whether the first choice for the name of a unit's child was found to belong to another grid.
	Taken func(unit string) bool
}

// Assign gives every unit the name of its child. That follows from the names that there are and not from the children's
// labels, which anyone may change who may change the child.
func Assign(k v1.GridKind, grid string, units []string, known Known) *Names {
	n := &Names{
		kind: k, grid: grid,
		ByUnit:  make(map[string]string, len(units)),
		Units:   make(map[string]string, len(units)),
		Clashes: map[string]string{},
	}
	var others []string
	for _, unit := range units {
		natural := grid + "-" + unit
		if k.CheckName(natural) != "" {
			others = append(others, unit)
			continue
		}
		if !known.Exists(natural) && (known.Taken(unit) || known.Exists(k.AlternativeChildName(grid, unit))) {
			others = append(others, unit)
			continue
		}
		n.ByUnit[unit], n.Units[natural] = natural, unit
	}
	for _, unit := range others {
		name := k.AlternativeChildName(grid, unit)
		if other, ok := n.Units[name]; ok {
			n.Clashes[unit] = other
			continue
		}
		n.ByUnit[unit], n.Units[name] = name, unit
	}
	return n
}

// Clash says that two units of a grid ask for the same name; nil if they do not.
func (n *Names) Clash(unit string) error {
	other, ok := n.Clashes[unit]
	if !ok {
		return nil
	}
	return Errorf(v1.ReasonNameConflict,
		"the name %s for the %s of this unit is that of unit %s; give one of the two units another name",
		n.kind.AlternativeChildName(n.grid, unit), n.kind.Child.Kind, other)
}
