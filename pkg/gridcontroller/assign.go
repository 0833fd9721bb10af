package gridcontroller

import (
	"github.com/application-grid/application-grid/pkg/gridchild"
)

// assignment says which child belongs to which unit.
type assignment struct {
	*gridchild.Names
	// children has the grid's children by name. orphans has workloads that it may adopt, if it has a rollout.
	children, orphans map[string]*child
}

// assign gives every unit the name of its child.
func (k kind) assign(grid string, units []string, children, orphans map[string]*child, m *gridMemory) *assignment {
	names := gridchild.Assign(k.GridKind, grid, units, gridchild.Known{
		Exists: func(name string) bool { return children[name] != nil || orphans[name] != nil },
		Taken: func(unit string) bool {
			memory := m.children[unit]
			return memory != nil && memory.taken
		},
	})
	return &assignment{names, children, orphans}
}

// child returns the child of a unit; nil if there is none.
func (a *assignment) child(unit string) *child {
	return a.children[a.ByUnit[unit]]
}

// orphan returns the workload that a unit without a child may adopt; nil if there is none.
func (a *assignment) orphan(unit string) *child {
	if a.child(unit) != nil {
		return nil
	}
	return a.orphans[a.ByUnit[unit]]
}
