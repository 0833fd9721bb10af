package gridview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// MapState is in one word how a site is, over all grids and Services of one label key.
type MapState string

// The states of a site, the worst first.
const (
	// MapFailed says that a workload of a grid is missing, has failed or makes no progress, or that a site-local Service
	// has no ready endpoint in the site.
	MapFailed MapState = "Failed"
	// MapUnreachable says that the control plane has lost contact with all nodes of the site. What else is wrong there
	// follows from that.
	MapUnreachable MapState = "Unreachable"
	// MapChanging says that a workload of a grid is on its way, or waits for someone.
	MapChanging MapState = "Changing"
	// MapReady says that everything that is meant for the site is ready.
	MapReady MapState = "Ready"
	// MapUnused says that no grid and no site-local Service is meant for the site.
	MapUnused MapState = "Unused"
)

var mapStates = []MapState{MapFailed, MapUnreachable, MapChanging, MapReady, MapUnused}

// SiteMap is the sites of a cluster over one label key, and how each is.
type SiteMap struct {
	Key string `json:"key"`
	// Sites are those that are not well first, then by name.
	Sites []MapSite `json:"sites"`
	// NodesWithoutSite is how many nodes do not have the label.
	NodesWithoutSite int `json:"nodesWithoutSite"`
}

// MapSite is a site of a SiteMap.
type MapSite struct {
	Name  string   `json:"name"`
	Nodes int      `json:"nodes"`
	State MapState `json:"state"`
	// Problems is how many workloads and Services are not well in the site, Problem what is wrong with the first.
	Problems int    `json:"problems,omitempty"`
	Problem  string `json:"problem,omitempty"`
}

// MapSites makes the map of a label key, of what is known of the nodes, grids and Services, and of what was found of
// the nodes. Nodes are nil if they could not be read; then the sites are those of the grids.
func MapSites(key string, nodes map[string]topology.Labels, grids []Grid, services []ServiceSummary,
	diagnosis *Diagnosis) SiteMap {
	m := siteMapper{key: key, sites: map[string]*MapSite{}}
	result := SiteMap{Key: key, Sites: []MapSite{}}
	for _, labels := range nodes {
		if site := labels[key]; site != "" {
			m.site(site).Nodes++
		} else {
			result.NodesWithoutSite++
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
		if site := nodes[f.Node][key]; site != "" && f.Severity == Failure {
			m.site(site).note(MapFailed, f.Object.String()+": "+f.Message)
		}
	}
	for _, site := range m.sites {
		if m.everywhere && site.Nodes > 0 {
			site.note(MapReady, "")
		}
		result.Sites = append(result.Sites, *site)
	}
	slices.SortFunc(result.Sites, func(a, b MapSite) int {
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

// siteMapper gathers what is the matter in the sites of a key.
type siteMapper struct {
	key   string
	sites map[string]*MapSite
	// everywhere is set if something is meant for all sites that have nodes.
	everywhere bool
}

func (m *siteMapper) site(name string) *MapSite {
	if m.sites[name] == nil {
		m.sites[name] = &MapSite{Name: name, State: MapUnused}
	}
	return m.sites[name]
}

// note notes a state of something in a site. The worst state counts, but in a site that cannot be reached nothing else
// is known for sure.
func (u *MapSite) note(state MapState, problem string) {
	if u.State != MapUnreachable && (state == MapUnreachable || CompareStates(state, u.State) < 0) {
		u.State, u.Problem = state, problem
	}
	if problem != "" {
		u.Problems++
	}
}

func (m *siteMapper) addGrid(g *Grid) {
	for i := range g.Sites {
		site := &g.Sites[i]
		state := site.MapState()
		problem := ""
		if state != MapReady {
			problem = fmt.Sprintf("%s %s/%s: %s", g.Kind, g.Namespace, g.Name, site.State())
		}
		m.site(site.Name).note(state, problem)
	}
	// The status of a large grid leaves out the sites that are ready.
	m.everywhere = m.everywhere || g.UnlistedReady > 0
}

// MapState is what the phase of a site in one grid contributes to its state.
func (u *Site) MapState() MapState {
	switch u.Phase {
	case v1.SiteReady:
		return MapReady
	case v1.SiteFailed, v1.SiteStalled, Missing:
		return MapFailed
	case v1.SiteUnreachable:
		return MapUnreachable
	case v1.SiteProgressing, v1.SiteRetained, v1.SiteHeld, v1.SiteRemoving, Unknown:
		return MapChanging
	default:
		return MapChanging
	}
}

func (m *siteMapper) addService(s *ServiceSummary) {
	m.everywhere = true
	problem := fmt.Sprintf("Service %s/%s has no ready endpoint for this site", s.Namespace, s.Name)
	for _, labels := range s.lacking {
		if site := labels[m.key]; site != "" {
			m.site(site).note(MapFailed, problem)
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

// Keys are the label keys that grids and site-local Services are spread over, those with the most first. If there are none, they
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
