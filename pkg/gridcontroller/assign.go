package gridcontroller

import (
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// assignment is which child is which unit's.
type assignment struct {
	// children are those of the grid, by name.
	children map[string]*child
	// names are the names of the units' children, be they there or not, units the units by these names.
	names, units map[string]string
	// clashes are units whose name for a child is another unit's.
	clashes map[string]string
}

// assign gives every unit the name of its child. That follows from the names that there are and not from the child's
// labels, which anyone may change who may change the child.
func (k kind) assign(grid string, units []string, children map[string]*child, m *gridMemory) *assignment {
	a := &assignment{children: children, names: make(map[string]string, len(units)), units: make(map[string]string, len(units)), clashes: map[string]string{}}
	var others []string
	for _, unit := range units {
		natural := grid + "-" + unit
		if k.CheckName(natural) != "" {
			others = append(others, unit)
			continue
		}
		if children[natural] == nil {
			if memory := m.children[unit]; (memory != nil && memory.taken) || children[k.AlternativeChildName(grid, unit)] != nil {
				others = append(others, unit)
				continue
			}
		}
		a.names[unit], a.units[natural] = natural, unit
	}
	for _, unit := range others {
		name := k.AlternativeChildName(grid, unit)
		if other, ok := a.units[name]; ok {
			a.clashes[unit] = other
			continue
		}
		a.names[unit], a.units[name] = name, unit
	}
	return a
}

// child is that of a unit; nil if there is none.
func (a *assignment) child(unit string) *child {
	name, ok := a.names[unit]
	if !ok {
		return nil
	}
	return a.children[name]
}

// clash says that two units of a grid ask for the same name.
func (a *assignment) clash(k kind, grid, unit string) error {
	return failf(v1.ReasonNameConflict, "the name %s for the %s of this unit is that of unit %s; give one of the two units another name",
		k.AlternativeChildName(grid, unit), k.Child.Kind, a.clashes[unit])
}
