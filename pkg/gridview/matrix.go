package gridview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Matrix has the sites of a cluster over one label key, with the state of some grids and Services in each.
type Matrix struct {
	Key string `json:"key"`
	// Words are the words for the cells: the letter "a" is the first.
	Words []Word `json:"words"`
	// Sites are the sites, those that need attention first, then by name.
	Sites []MatrixSite `json:"sites"`
	// NodesWithoutSite is how many nodes do not have the label, and InNoSite are those among them that are edge nodes.
	NodesWithoutSite int      `json:"nodesWithoutSite"`
	InNoSite         []string `json:"inNoSite,omitempty"`
}

// MatrixSite is a site of a Matrix.
type MatrixSite struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
	// State is that of all grids and Services: CellFailed, also where a Service or a node is not well,
	// CellUnreachable, CellChanging, CellReady or CellUnused.
	State Cell `json:"state"`
	// Severity is the worst of the state, and of the cells.
	Severity Severity `json:"severity"`
	// Problems is how many workloads, Services and nodes of the site have problems, and Problem is the first one.
	Problems int    `json:"problems,omitempty"`
	Problem  string `json:"problem,omitempty"`
	// Grids and Services have the cell of each grid and Service, in their order.
	Grids    Row `json:"grids"`
	Services Row `json:"services"`

	// edge is set if the site has an edge node; without any edge node in the cluster, for all sites.
	edge bool
	// heard is set if one of its nodes is not silent.
	heard bool
}

// Row is a row of cells. Its text has a letter for each.
type Row []Cell

// MarshalText implements encoding.TextMarshaler.
func (r Row) MarshalText() ([]byte, error) {
	letters := make([]byte, 0, len(r))
	for _, cell := range r {
		letters = append(letters, 'a'+byte(cell))
	}
	return letters, nil
}

// MatrixOf makes the matrix of a label key from the nodes, with their diagnosis, and some grids and Services. If there
// are no nodes, because they could not be read, the sites are those of the grids.
func MatrixOf(key string, cluster *Groupings, grids []Grid, services []ServiceSummary) Matrix {
	m := matrixMaker{key: key, sites: map[string]*MatrixSite{}, grids: len(grids), services: len(services)}
	result := Matrix{Key: key, Words: words[:], Sites: []MatrixSite{}}
	keeping := cluster.keepingOfNodes()
	for name, labels := range cluster.Nodes {
		_, edge := keeping[name]
		if of, in := SiteOf(labels, key); in {
			site := m.site(of)
			site.Nodes++
			site.edge = site.edge || edge || len(keeping) == 0
			site.heard = site.heard || !cluster.Diagnosis.silent(name)
			continue
		}
		if result.NodesWithoutSite++; edge {
			result.InNoSite = append(result.InNoSite, name)
		}
	}
	slices.Sort(result.InNoSite)
	for _, f := range cluster.Diagnosis.Of([]string{key}) {
		if site, in := SiteOf(cluster.Nodes[f.Node], key); in && f.Severity == Failure {
			m.site(site).noteState(CellFailed, f.Object.String()+": "+f.Message)
		}
	}
	for i := range grids {
		if grids[i].Key == key {
			m.addGrid(i, &grids[i])
		}
	}
	for i := range services {
		m.addService(i, &services[i])
	}
	for _, site := range m.sites {
		switch {
		case site.Nodes > 0 && !site.heard:
			site.noteState(CellUnreachable, "")
		case m.everywhere && site.Nodes > 0:
			site.noteState(CellReady, "")
		}
		site.Severity = worst(site.Severity, site.State.Word().Severity)
		result.Sites = append(result.Sites, *site)
	}
	slices.SortFunc(result.Sites, func(a, b MatrixSite) int {
		return cmp.Or(CompareAttention(a.Severity, b.Severity), cmp.Compare(b.State, a.State),
			cmp.Compare(a.Name, b.Name))
	})
	return result
}

type matrixMaker struct {
	key   string
	sites map[string]*MatrixSite
	// grids and services are how many there are.
	grids, services int
	// everywhere is set if something is meant for all sites that have nodes.
	everywhere bool
}

func (m *matrixMaker) site(name string) *MatrixSite {
	if m.sites[name] == nil {
		m.sites[name] = &MatrixSite{Name: name, State: CellUnused, Severity: OK, Grids: make(Row, m.grids),
			Services: make(Row, m.services)}
	}
	return m.sites[name]
}

// noteState notes a state of an object in a site. The worst state is kept, except that CellUnreachable takes
// precedence, because then nothing else is known for sure.
func (s *MatrixSite) noteState(state Cell, problem string) {
	if s.State != CellUnreachable && (state == CellUnreachable || state > s.State) {
		s.State, s.Problem = state, problem
	}
	if problem != "" {
		s.Problems++
	}
}

func (m *matrixMaker) addGrid(column int, g *Grid) {
	// The status of a large grid leaves out the sites that are ready.
	if g.UnlistedReady > 0 {
		m.everywhere = true
		for _, site := range m.sites {
			if site.Nodes > 0 {
				site.Grids[column] = CellReady
			}
		}
	}
	for i := range g.Sites {
		of := &g.Sites[i]
		state, problem := of.Cell(), ""
		if state != CellReady {
			problem = fmt.Sprintf("%s %s/%s: %s", g.Kind, g.Namespace, g.Name, of.State())
		}
		site := m.site(of.Name)
		site.noteState(state, problem)
		if state == CellReady && of.Revision != "" {
			state = CellReadyOlder
		}
		site.Grids[column] = state
	}
}

func (m *matrixMaker) addService(column int, s *ServiceSummary) {
	if !HasSites(s.TopologyKeys) {
		every := map[ServiceState]Cell{ServiceInvalid: CellNone, ServiceEmpty: CellEmpty, ServiceOpen: CellOpen}
		for _, site := range m.sites {
			switch {
			case site.Nodes == 0:
			case site.edge:
				site.put(column, s, every[s.State])
			default:
				site.put(column, s, CellOpen)
			}
		}
		return
	}
	m.everywhere = m.everywhere || slices.Contains(s.TopologyKeys, m.key)
	for _, of := range s.sites {
		if site, in := SiteOf(of.labels, m.key); in && slices.Contains(s.TopologyKeys, m.key) {
			m.site(site).put(column, s, of.cell)
		}
	}
}

// put notes the cell of a Service in a site. If a node does not keep Services to its site, that is a finding about the
// node.
func (s *MatrixSite) put(column int, of *ServiceSummary, cell Cell) {
	if cell > s.Services[column] && cell == CellNone {
		s.noteState(CellFailed, fmt.Sprintf("Service %s/%s has no ready endpoint for this site", of.Namespace,
			of.Name))
	}
	s.Services[column], s.Severity = max(s.Services[column], cell), worst(s.Severity, cell.Word().Severity)
}

// KeyUse is a label key that can be the key of a map.
type KeyUse struct {
	Key string `json:"key"`
	// Grids and Services are how many of them use the key.
	Grids    int `json:"grids"`
	Services int `json:"services"`
}

// Keys returns the label keys of grids and site-local Services, those with the most first. If none has a key, it
// returns the first few keys that divide the nodes (see DivideNodes).
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
