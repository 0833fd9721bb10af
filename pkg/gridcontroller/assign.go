package gridcontroller

import (
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// assignment is which child is which unit's.
type assignment struct {
	*gridchild.Names
	// children are those of the grid, by name.
	children map[string]*child
}

// assign gives every unit the name of its child.
func (k kind) assign(grid string, units []string, children map[string]*child, m *gridMemory) *assignment {
	return &assignment{children: children, Names: gridchild.Assign(k.GridKind, grid, units, gridchild.Known{
		Exists: func(name string) bool { return children[name] != nil },
		Taken: func(unit string) bool {
			memory := m.children[unit]
			return memory != nil && memory.taken
		},
	})}
}

// child is that of a unit; nil if there is none.
func (a *assignment) child(unit string) *child {
	name, ok := a.ByUnit[unit]
	if !ok {
		return nil
	}
	return a.children[name]
}
