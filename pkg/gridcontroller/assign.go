package gridcontroller

import (
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// assignment says which child belongs to which unit.
type assignment struct {
	*gridchild.Names
	// children has the grid's children by name.
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

// child returns the child of a unit; nil if there is none.
func (a *assignment) child(unit string) *child {
	name, ok := a.ByUnit[unit]
	if !ok {
		return nil
	}
	return a.children[name]
}
