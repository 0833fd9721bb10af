package gridview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// MapState is in one word how a unit is, over all grids and Services of one label key.
type MapState string

// The states of a unit, the worst first.
const (
	// MapFailed says that a workload of a grid is missing, has failed or makes no progress, or that a closed Service
	// has no ready endpoint in the unit.
	MapFailed MapState = "Failed"
	// MapUnreachable says that the control plane has lost contact with all nodes of the unit. What else is wrong there
	// follows from that.
	MapUnreachable MapState = "Unreachable"
	// MapChanging says that a workload of a grid is on its way, or waits for someone.
	MapChanging MapState = "Changing"
	// MapReady says that everything that is meant for the unit is ready.
	MapReady MapState = "Ready"
	// MapUnused says that no grid and no closed Service is meant for the unit.
	MapUnused MapState = "Unused"
)

var mapStates = []MapState{MapFailed, MapUnreachable, MapChanging, MapReady, MapUnused}

// UnitMap is the units of a cluster over one label key, and how each is.
type UnitMap struct {
	Key string `json:"key"`
	// Units are those that are not well first, then by name.
	Units []MapUnit `json:"units"`
	// NodesWithoutUnit is how many nodes do not have the label.
	NodesWithoutUnit int `json:"nodesWithoutUnit"`
}

// MapUnit is a unit of a UnitMap.
type MapUnit struct {
	Name  string   `json:"name"`
	Nodes int      `json:"nodes"`
	State MapState `json:"state"`
	// Problems is how many workloads and Services are not well in the unit, Problem what is wrong with the first.
	Problems int    `json:"problems,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

// Units makes the map of a label key, of what is known of the nodes, grids and Services, and of what was found of the
// nodes. Nodes are nil if they could not be read; then the units are those of the grids.
func Units(key string, nodes map[string]topology.Labels, grids []Grid, services []ServiceSummary,
	diagnosis *Diagnosis) UnitMap {
	m := unitMapper{key: key, units: map[string]*MapUnit{}}
	result := UnitMap{Key: key, Units: []MapUnit{}}
	for _, labels := range nodes {
		if unit := labels[key]; unit != "" {
			m.unit(unit).Nodes++
		} else {
			result.NodesWithoutUnit++
		}
	}
	for i := range grids {
		if grids[i].Key == key {
			m.addGrid(&grids[i])
		}
	}
	for i := range services {
		if slices.Contains(services[i].TopologyKeys, key) {
			m.addService(&services[i])
		}
	}
	for _, f := range diagnosis.Of([]string{key}) {
		if unit := nodes[f.Node][key]; unit != "" && f.Severity == Failure {
			m.unit(unit).note(MapFailed, f.Object.String()+": "+f.Message)
		}
	}
	for _, unit := range m.units {
		if m.everywhere && unit.Nodes > 0 {
			unit.note(MapReady, "")
		}
		result.Units = append(result.Units, *unit)
	}
	slices.SortFunc(result.Units, func(a, b MapUnit) int {
		return cmp.Or(CompareStates(a.State, b.State), cmp.Compare(a.Name, b.Name))
	})
	return result
}

// CompareStates orders states, the worst first.
func CompareStates(a, b MapState) int {
	return cmp.Compare(slices.Index(mapStates, a), slices.Index(mapStates, b))
}

// Worse is the worse of two states.
func Worse(a, b MapState) MapState {
	if CompareStates(b, a) < 0 {
		return b
	}
	return a
}

// unitMapper gathers what is the matter in the units of a key.
type unitMapper struct {
	key   string
	units map[string]*MapUnit
	// everywhere is set if something is meant for all units that have nodes.
	everywhere bool
}

func (m *unitMapper) unit(name string) *MapUnit {
	if m.units[name] == nil {
		m.units[name] = &MapUnit{Name: name, State: MapUnused}
	}
	return m.units[name]
}

// note notes a state of something in a unit. The worst state counts, but in a unit that cannot be reached nothing else
// is known for sure.
func (u *MapUnit) note(state MapState, problem string) {
	if u.State != MapUnreachable && (state == MapUnreachable || CompareStates(state, u.State) < 0) {
		u.State, u.Problem = state, problem
	}
	if problem != "" {
		u.Problems++
	}
}

func (m *unitMapper) addGrid(g *Grid) {
	for i := range g.Units {
		unit := &g.Units[i]
		state := unit.MapState()
		problem := ""
		if state != MapReady {
			problem = fmt.Sprintf("%s %s/%s: %s", g.Kind, g.Namespace, g.Name, unit.State())
		}
		m.unit(unit.Name).note(state, problem)
	}
	// The status of a large grid leaves out the units that are ready.
	m.everywhere = m.everywhere || g.UnlistedReady > 0
}

// MapState is what the phase of a unit in one grid contributes to its state.
func (u *Unit) MapState() MapState {
	switch u.Phase {
	case v1.UnitReady:
		return MapReady
	case v1.UnitFailed, v1.UnitStalled, Missing:
		return MapFailed
	case v1.UnitUnreachable:
		return MapUnreachable
	case v1.UnitProgressing, v1.UnitRetained, v1.UnitHeld, v1.UnitRemoving, Unknown:
		return MapChanging
	default:
		return MapChanging
	}
}

func (m *unitMapper) addService(s *ServiceSummary) {
	m.everywhere = true
	problem := fmt.Sprintf("Service %s/%s has no ready endpoint for this unit", s.Namespace, s.Name)
	for _, labels := range s.lacking {
		if unit := labels[m.key]; unit != "" {
			m.unit(unit).note(MapFailed, problem)
		}
	}
}

// KeyUse is a label key that can be the key of a map.
type KeyUse struct {
	Key string `json:"key"`
	// Grids and Services are how many have the key as theirs.
	Grids    int `json:"grids"`
	Services int `json:"services"`
}

// Keys are the label keys that grids and Services are closed over, those with the most first. If there are none, they
// are the keys that divide the nodes, as DivideNodes says; of these at most a few.
func Keys(nodes map[string]topology.Labels, grids []Grid, services []ServiceSummary) []KeyUse {
	const most = 5
	uses := map[string]*KeyUse{}
	use := func(key string) *KeyUse {
		if uses[key] == nil {
			uses[key] = &KeyUse{Key: key}
		}
		return uses[key]
	}
	for i := range grids {
		use(grids[i].Key).Grids++
	}
	for i := range services {
		for _, key := range services[i].TopologyKeys {
			if key != topology.Any && key != "" {
				use(key).Services++
			}
		}
	}
	keys := make([]KeyUse, 0, len(uses))
	for _, u := range uses {
		keys = append(keys, *u)
	}
	slices.SortFunc(keys, func(a, b KeyUse) int {
		return cmp.Or(cmp.Compare(b.Grids+b.Services, a.Grids+a.Services), strings.Compare(a.Key, b.Key))
	})
	if len(keys) > 0 {
		return keys
	}
	divide, _ := DivideNodes(nodes)
	for _, key := range divide[:min(most, len(divide))] {
		keys = append(keys, KeyUse{Key: key})
	}
	return keys
}
