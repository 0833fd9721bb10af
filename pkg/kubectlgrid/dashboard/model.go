package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/serviceview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Overview is everything at a glance.
type Overview struct {
	metav1.TypeMeta `json:",inline"`

	// Cluster names the cluster. Namespace is the only namespace that is shown; empty for all.
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace,omitempty"`
	// Revision grows with every change.
	Revision uint64 `json:"revision"`
	// Sources are the resources from which the answer is made.
	Sources []SourceStatus `json:"sources"`
	// Keys are the label keys that Matrix may be asked for.
	Keys   []gridview.KeyUse `json:"keys"`
	Matrix gridview.Matrix   `json:"matrix"`
	// Services and Grids are the columns of Matrix, those that need attention first.
	Services []gridview.ServiceSummary `json:"services"`
	Grids    []GridSummary             `json:"grids"`
	// Findings are those of kubectl grid check that concern grids and Services with the key of the matrix.
	Findings []gridview.Finding `json:"findings"`
	// Diagnosed is false until they are known.
	Diagnosed bool `json:"diagnosed"`
}

// GridSummary is a grid in short.
type GridSummary struct {
	gridview.Object `json:",inline"`

	Key string `json:"gridUniqKey"`
	// Healthy is also set while a rollout continues by itself, if every site is Ready.
	Healthy bool `json:"healthy"`
	// State is Ready, or the worst state found of the grid; a rollout that continues or waits is Changing.
	State   gridview.Cell `json:"state"`
	Problem string        `json:"problem,omitempty"`
	Sites   int           `json:"sites"`
	// Phases counts the sites by their phase.
	Phases  map[v1.SitePhase]int `json:"phases,omitempty"`
	Rollout *Rollout             `json:"rollout,omitempty"`

	grid gridview.Grid
}

// Rollout is the progress of a rollout, as kubectl grid rollout status prints it.
type Rollout struct {
	Summary string          `json:"summary"`
	Phase   v1.RolloutPhase `json:"phase,omitempty"`
	// Failed is set if the rollout does not continue by itself.
	Failed bool            `json:"failed"`
	Waves  []v1.WaveStatus `json:"waves,omitempty"`
}

// GridDetail is a grid with all its sites.
type GridDetail struct {
	metav1.TypeMeta `json:",inline"`

	Grid gridview.Grid `json:"grid"`
	// State is that of the grid's summary.
	State   gridview.Cell `json:"state"`
	Rollout *Rollout      `json:"rollout,omitempty"`
	// Command says the same.
	Command string `json:"command"`
}

// ServiceDetail has the endpoints of a Service that each site sees, as kubectl grid view prints them.
type ServiceDetail struct {
	metav1.TypeMeta `json:",inline"`

	// Title and Conclusion are the texts of kubectl grid view before and after the table.
	Title      string         `json:"title"`
	Conclusion string         `json:"conclusion"`
	View       *gridview.View `json:"view"`
	// Command says the same.
	Command string `json:"command"`
	// Preview is what closing the Service over the key would change, as kubectl grid preview prints it; missing if the
	// key makes no sites.
	Preview *gridview.PreviewService `json:"preview,omitempty"`
}

// SiteDetail is everything about a site.
type SiteDetail struct {
	metav1.TypeMeta `json:",inline"`

	Key  string              `json:"key"`
	Site gridview.MatrixSite `json:"site"`
	// Nodes are the names of the site's nodes.
	Nodes []string `json:"nodes"`
	// Workloads are the site's workloads in all grids of the key, the worst first.
	Workloads []SiteWorkload `json:"workloads"`
	// Services are those whose nodes of the site have a verdict, the worst first.
	Services []SiteService `json:"services"`
}

// SiteWorkload is a site of a grid.
type SiteWorkload struct {
	gridview.Object `json:",inline"`

	Site gridview.Site `json:"site"`
}

// SiteService is the verdict of a site's nodes on a Service.
type SiteService struct {
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Verdict   gridview.Word `json:"verdict"`
}

// CellDetail is the verdict of a site's nodes on one Service, and its reasons.
type CellDetail struct {
	metav1.TypeMeta `json:",inline"`
	SiteService     `json:",inline"`

	Key   string                 `json:"key"`
	Site  string                 `json:"site"`
	Nodes []gridview.NodeVerdict `json:"nodes"`
	// Findings are those that concern the Service, without those about nodes of other sites. Command says the same.
	Findings []gridview.Finding `json:"findings"`
	Command  string             `json:"command"`
}

// The methods below make the answers. They are functions of the facts.

// overview makes the Overview, except for its cluster and namespace.
func (f *facts) overview(key string) Overview {
	o := Overview{TypeMeta: output.TypeMeta("DashboardOverview"), Revision: f.revision, Services: f.serviceSummaries(),
		Grids: []GridSummary{}}
	o.Keys = gridview.Keys(f.nodes.Nodes, f.gridStates(), o.Services)
	if key == "" && len(o.Keys) > 0 {
		key = o.Keys[0].Key
	}
	if !slices.ContainsFunc(o.Keys, func(use gridview.KeyUse) bool { return use.Key == key }) && key != "" {
		o.Keys = append(o.Keys, gridview.KeyUse{Key: key})
	}
	for _, g := range f.gridStates() {
		o.Grids = append(o.Grids, f.summaryOf(g))
	}
	slices.SortStableFunc(o.Grids, func(a, b GridSummary) int { return cmp.Compare(b.State, a.State) })
	grids := make([]gridview.Grid, 0, len(o.Grids))
	for _, g := range o.Grids {
		grids = append(grids, g.grid)
	}
	o.Matrix = gridview.MatrixOf(key, &f.nodes, grids, o.Services)
	o.Diagnosed = f.nodes.Diagnosis != nil
	found := slices.DeleteFunc(f.nodes.Diagnosis.OfGrid(topology.Keys{key}), f.saidBySource)
	o.Findings = gridview.WithReach(found, key, o.Services)
	return o
}

// saidBySource reports whether the state of a source says the same as a finding that a kind could not be read.
func (f *facts) saidBySource(found gridview.Finding) bool {
	resource := strings.ToLower(found.Object.Kind) + "s"
	_, followed := f.objects[resource]
	return found.Check == gridview.CheckRead && followed && !f.known[resource]
}

func stateOf(g gridview.Grid, r *Rollout) gridview.Cell {
	if g.Healthy {
		return gridview.CellReady
	}
	worst := gridview.CellChanging
	for i := range g.Sites {
		worst = max(worst, g.Sites[i].Cell())
	}
	rollsOut := r != nil && !r.Failed && r.Phase != v1.RolloutComplete
	if g.Problem != "" && !rollsOut {
		worst = gridview.CellFailed
	}
	return worst
}

func (f *facts) summaryOf(g gridview.Grid) GridSummary {
	s := GridSummary{
		Object: g.Object(), Key: g.Key, Healthy: g.Healthy, Problem: g.Problem, Sites: int(g.SiteCount),
		Phases: map[v1.SitePhase]int{}, Rollout: f.rolloutOf(g.Object()), grid: g,
	}
	for i := range g.Sites {
		s.Phases[g.Sites[i].Phase]++
		if s.Problem == "" && g.Sites[i].Phase != v1.SiteReady {
			s.Problem = g.Sites[i].Name + ": " + g.Sites[i].Problem
		}
	}
	if g.UnlistedReady > 0 {
		s.Phases[v1.SiteReady] += int(g.UnlistedReady)
	}
	s.State = stateOf(g, s.Rollout)
	if r := s.Rollout; r != nil && (r.Phase == v1.RolloutProgressing || r.Phase == v1.RolloutSoaking) && !r.Failed {
		s.Healthy = s.Healthy || g.RollsOut
	}
	return s
}

// rolloutOf returns the rollout of a grid; nil if it has none.
func (f *facts) rolloutOf(name gridview.Object) *Rollout {
	grid := f.gridObject(name)
	spec, gridStatus := v1.SpecAndStatus(grid)
	if spec == nil || spec.Rollout == nil {
		return nil
	}
	state, err := (&rollout.Grid{Kind: kindOf(name), Object: grid}).State()
	if err != nil {
		return nil // only a grid without a rollout has no state
	}
	r := &Rollout{Summary: state.Summary, Failed: state.Failed}
	if gridStatus.Rollout != nil && len(state.Rows) > 0 {
		r.Phase, r.Waves = gridStatus.Rollout.Phase, gridStatus.Rollout.Waves
	}
	return r
}

// grid returns one grid; nil if it does not exist.
func (f *facts) grid(name gridview.Object) *GridDetail {
	grids := f.gridStates()
	i := slices.IndexFunc(grids, func(g gridview.Grid) bool { return g.Object() == name })
	if i < 0 {
		return nil
	}
	s := f.summaryOf(grids[i])
	return &GridDetail{output.TypeMeta("DashboardGrid"), grids[i], s.State, s.Rollout,
		fmt.Sprintf("kubectl grid status %s/%s -n %s", strings.ToLower(name.Kind), name.Name, name.Namespace)}
}

// serviceDetail returns one Service; nil if it does not exist, or if its view is not known.
func (f *facts) serviceDetail(name types.NamespacedName, key string) *ServiceDetail {
	view := f.viewOf(name)
	if view == nil {
		return nil
	}
	return &ServiceDetail{
		TypeMeta: output.TypeMeta("DashboardService"), View: view, Command: viewCommand(name),
		Title: serviceview.Title(view), Conclusion: view.Conclusion(), Preview: f.preview(key, name),
	}
}

func viewCommand(name types.NamespacedName) string {
	return fmt.Sprintf("kubectl grid view svc/%s -n %s", name.Name, name.Namespace)
}

// cell returns the verdict of a site's nodes on a Service; nil if they have none.
func (f *facts) cell(key, site string, name types.NamespacedName) *CellDetail {
	view := f.viewOf(name)
	if view == nil || view.ExternalName != "" {
		return nil
	}
	matrix := gridview.MatrixOf(key, &f.nodes, nil, []gridview.ServiceSummary{view.Summary()})
	row := slices.IndexFunc(matrix.Sites, func(s gridview.MatrixSite) bool { return s.Name == site })
	if row < 0 {
		return nil
	}
	at := view.At(key, site)
	return &CellDetail{
		TypeMeta:    output.TypeMeta("DashboardCell"),
		SiteService: SiteService{name.Namespace, name.Name, matrix.Sites[row].Services[0].Word()},
		Key:         key, Site: site, Nodes: at, Command: viewCommand(name),
		Findings: slices.DeleteFunc(slices.Clone(view.Findings), func(found gridview.Finding) bool {
			return found.Node != "" && !slices.ContainsFunc(at, func(n gridview.NodeVerdict) bool {
				return n.Node == found.Node
			})
		}),
	}
}

// preview returns what closing a Service over the key would change; nil if the key makes no sites.
func (f *facts) preview(key string, name types.NamespacedName) *gridview.PreviewService {
	previewer := gridview.NewPreviewer(key, &f.nodes)
	if len(previewer.Sites()) == 0 {
		return nil
	}
	previewer.AddService(f.service(name))
	for _, slice := range f.endpointSlices()[name] {
		previewer.AddSlice(&slice)
	}
	for _, service := range previewer.Preview().Services {
		return &service
	}
	return nil
}

// site returns everything about one site; nil if it does not exist.
func (f *facts) site(key, name string) *SiteDetail {
	summaries, grids := f.serviceSummaries(), f.gridStates()
	sites := gridview.MatrixOf(key, &f.nodes, grids, summaries).Sites
	i := slices.IndexFunc(sites, func(u gridview.MatrixSite) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	d := &SiteDetail{
		TypeMeta: output.TypeMeta("DashboardSite"), Key: key, Site: sites[i],
		Nodes: []string{}, Workloads: []SiteWorkload{}, Services: []SiteService{},
	}
	for node, labels := range f.nodes.Nodes {
		if site, in := gridview.SiteOf(labels, key); in && site == name {
			d.Nodes = append(d.Nodes, node)
		}
	}
	slices.Sort(d.Nodes)
	for _, g := range grids {
		for _, u := range g.Sites {
			if g.Key == key && u.Name == name {
				d.Workloads = append(d.Workloads, SiteWorkload{g.Object(), u})
			}
		}
	}
	slices.SortStableFunc(d.Workloads, func(a, b SiteWorkload) int {
		return cmp.Compare(b.Site.Cell(), a.Site.Cell())
	})
	for j, s := range summaries {
		if slices.Contains(s.TopologyKeys, key) {
			d.Services = append(d.Services, SiteService{s.Namespace, s.Name, sites[i].Services[j].Word()})
		}
	}
	slices.SortStableFunc(d.Services, func(a, b SiteService) int {
		return gridview.CompareAttention(a.Verdict.Severity, b.Verdict.Severity)
	})
	return d
}
