package gridview

import (
	"bytes"
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
	// Grids and Services have a letter for the cell of each grid and Service, in their order.
	Grids    string `json:"grids"`
	Services string `json:"services"`

	// edge is set if the site has an edge node; without any edge node in the cluster, for all sites.
	edge bool
	// heard is set if one of its nodes is not silent.
	heard           bool
	worst           Cell
	grids, services []byte
}

// MatrixOf makes the matrix of a label key from the nodes, with their diagnosis, and some grids and Services. If there
// are no nodes, because they could not be read, the sites are those of the grids.
func MatrixOf(key string, cluster *Groupings, grids []Grid, services []ServiceSummary) Matrix {
	m := matrixMaker{key: key, sites: map[string]*MatrixSite{}, columns: [2]int{len(grids), len(services)}}
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
		result.Sites = append(result.Sites, site.done())
	}
	slices.SortFunc(result.Sites, func(a, b MatrixSite) int {
		return cmp.Or(CompareAttention(a.Severity, b.Severity), cmp.Compare(b.State, a.State),
			cmp.Compare(a.Name, b.Name))
	})
	return result
}

// OfService returns the word for the cell of a Service, by its position among the Services.
func (s *MatrixSite) OfService(i int) Word { return words[s.Services[i]-CellNothing.letter()] }

func (s *MatrixSite) done() MatrixSite {
	s.Severity = s.State.Word().Severity
	if cell := s.worst.Word().Severity; CompareAttention(cell, s.Severity) < 0 {
		s.Severity = cell
	}
	s.Grids, s.Services = string(s.grids), string(s.services)
	return *s
}

// matrixMaker collects the states of the sites of a key.
type matrixMaker struct {
	key   string
	sites map[string]*MatrixSite
	// columns are the numbers of grids and of Services.
	columns [2]int
	// everywhere is set if something is meant for all sites that have nodes.
	everywhere bool
}

func (m *matrixMaker) site(name string) *MatrixSite {
	if m.sites[name] == nil {
		none := []byte{CellNothing.letter()}
		m.sites[name] = &MatrixSite{Name: name, State: CellUnused, grids: bytes.Repeat(none, m.columns[0]),
			services: bytes.Repeat(none, m.columns[1])}
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
				site.grids[column] = CellReady.letter()
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
		site.grids[column] = state.letter()
	}
}

func (m *matrixMaker) addService(column int, s *ServiceSummary) {
	if !HasSites(s.TopologyKeys) {
		every := map[ServiceState]Cell{ServiceInvalid: CellNone, ServiceEmpty: CellEmpty, ServiceOpen: CellOpen}
		for _, site := range m.sites {
			switch {
			case site.Nodes == 0:
			case site.edge:
				m.put(site, column, s, every[s.State])
			default:
				m.put(site, column, s, CellOpen)
			}
		}
		return
	}
	m.everywhere = m.everywhere || slices.Contains(s.TopologyKeys, m.key)
	for _, of := range s.sites {
		if site, in := SiteOf(of.labels, m.key); in && slices.Contains(s.TopologyKeys, m.key) {
			m.put(m.site(site), column, s, of.cell)
		}
	}
}

// put notes the cell of a Service in a site. If a node does not keep Services to its site, that is a finding about the
// node.
func (m *matrixMaker) put(site *MatrixSite, column int, s *ServiceSummary, cell Cell) {
	if before := Cell(site.services[column] - CellNothing.letter()); cell <= before {
		return
	}
	site.services[column], site.worst = cell.letter(), max(site.worst, cell)
	if cell == CellNone {
		site.noteState(CellFailed, fmt.Sprintf("Service %s/%s has no ready endpoint for this site", s.Namespace,
			s.Name))
	}
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
