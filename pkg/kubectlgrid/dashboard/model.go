package dashboard

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/preview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/rollout"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/serviceview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
)

// Kinds of what the API answers, besides those that the other commands print.
const (
	KindOverview = "DashboardOverview"
	KindSite     = "DashboardSite"
	KindService  = "DashboardService"
	KindGrid     = "DashboardGrid"
)

// Overview is everything at a glance.
type Overview struct {
	metav1.TypeMeta `json:",inline"`

	// Cluster names what is shown. Namespace is the only one that is; empty for all.
	Cluster   string `json:"cluster"`
	Namespace string `json:"namespace,omitempty"`
	// Revision grows with every change. The stream of events has it.
	Revision uint64 `json:"revision"`
	// Sources are the resources that the answer is made of.
	Sources []SourceStatus `json:"sources"`
	// Keys are the label keys that Map may be asked for.
	Keys []gridview.KeyUse `json:"keys"`
	Map  gridview.SiteMap  `json:"map"`
	// Services and Grids are those that are not well first.
	Services []gridview.ServiceSummary `json:"services"`
	Grids    []GridSummary             `json:"grids"`
	// Findings are what kubectl grid check finds that concerns grids and Services with the key of the map.
	Findings []gridview.Finding `json:"findings"`
	// Diagnosed is false until they are known.
	Diagnosed bool `json:"diagnosed"`
}

// GridSummary is a grid in short.
type GridSummary struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Key       string `json:"gridUniqKey"`
	// Healthy is also a grid whose rollout continues by itself, while every site is Ready.
	Healthy bool `json:"healthy"`
	// State is Ready, or the worst state found of the grid; a rollout that continues or waits is Changing.
	State   gridview.MapState `json:"state"`
	Problem string            `json:"problem,omitempty"`
	Sites   int               `json:"sites"`
	// Phases counts the sites by their phase.
	Phases  map[v1.SitePhase]int `json:"phases,omitempty"`
	Rollout *Rollout             `json:"rollout,omitempty"`
}

// Rollout is the progress of a rollout, as kubectl grid rollout status prints it.
type Rollout struct {
	Summary string          `json:"summary"`
	Phase   v1.RolloutPhase `json:"phase,omitempty"`
	Updated int             `json:"updated"`
	Sites   int             `json:"sites"`
	// Failed is set if the rollout does not continue by itself.
	Failed bool            `json:"failed"`
	Waves  []v1.WaveStatus `json:"waves,omitempty"`
}

// GridDetail is a grid with all its sites.
type GridDetail struct {
	metav1.TypeMeta `json:",inline"`

	Grid gridview.Grid `json:"grid"`
	// State is that of the grid's summary.
	State   gridview.MapState `json:"state"`
	Rollout *Rollout          `json:"rollout,omitempty"`
}

// ServiceDetail is who sees what of a Service, as kubectl grid view says it.
type ServiceDetail struct {
	metav1.TypeMeta `json:",inline"`

	// Title and Conclusion are what kubectl grid view says before and after the table.
	Title      string         `json:"title"`
	Conclusion string         `json:"conclusion"`
	View       *gridview.View `json:"view"`
	// Preview is what closing the Service over the key would change, as kubectl grid preview says it; missing if the
	// key makes no sites.
	Preview *gridview.PreviewService `json:"preview,omitempty"`
}

// SiteDetail is everything about a site.
type SiteDetail struct {
	metav1.TypeMeta `json:",inline"`

	Key  string           `json:"key"`
	Site gridview.MapSite `json:"site"`
	// Nodes are the names of the site's nodes.
	Nodes []string `json:"nodes"`
	// Workloads are the site's in all grids of the key, those that are not well first.
	Workloads []SiteWorkload `json:"workloads"`
	// Services are the site-local Services that have the key among theirs, those without a ready endpoint first.
	Services []SiteService `json:"services"`
}

// SiteWorkload is a site of a grid.
type SiteWorkload struct {
	Kind      string        `json:"kind"`
	Namespace string        `json:"namespace"`
	Name      string        `json:"name"`
	Site      gridview.Site `json:"site"`
}

// SiteService is what a site's nodes see of a Service. If they differ, it is what those see that see the least.
type SiteService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Key is the topology key that decided.
	Key       string `json:"key,omitempty"`
	Ready     int    `json:"ready"`
	Endpoints int    `json:"endpoints"`
}

// The methods below make the answers. They are functions of the facts, whose lock they take.

// overview makes the Overview but for its revision, and for what is shown.
func (f *facts) overview(key string) Overview {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := Overview{TypeMeta: output.TypeMeta(KindOverview), Services: f.summaries(), Grids: []GridSummary{}}
	if o.Services == nil {
		o.Services = []gridview.ServiceSummary{} // [], not null, in JSON; Sources say that they are not known
	}
	slices.SortFunc(o.Services, gridview.CompareServices)
	grids := f.gridStates()
	o.Keys = gridview.Keys(f.nodes, grids, o.Services)
	key = chooseKey(key, o.Keys)
	if !slices.ContainsFunc(o.Keys, func(use gridview.KeyUse) bool { return use.Key == key }) && key != "" {
		o.Keys = append(o.Keys, gridview.KeyUse{Key: key})
	}
	o.Map = gridview.MapSites(key, f.nodes, grids, o.Services, f.diagnosis)
	o.Findings, o.Diagnosed = gridview.WithReach(f.diagnosis.OfGrid([]string{key}), key, o.Services), f.diagnosis != nil
	for i := range grids {
		o.Grids = append(o.Grids, f.summaryOf(&grids[i]))
	}
	slices.SortStableFunc(o.Grids, func(a, b GridSummary) int { return gridview.CompareStates(a.State, b.State) })
	return o
}

// chooseKey is the key that was asked for, or the first of those that there are.
func chooseKey(asked string, keys []gridview.KeyUse) string {
	if asked == "" && len(keys) > 0 {
		return keys[0].Key
	}
	return asked
}

// stateOf is how a grid is, in one word.
func stateOf(g *gridview.Grid, r *Rollout) gridview.MapState {
	if g.Healthy {
		return gridview.MapReady
	}
	worst := gridview.MapChanging
	for i := range g.Sites {
		worst = gridview.Worse(worst, g.Sites[i].MapState())
	}
	rollsOut := r != nil && !r.Failed && r.Phase != v1.RolloutComplete
	if g.Problem != "" && !rollsOut {
		worst = gridview.MapFailed
	}
	return worst
}

func (f *facts) summaryOf(g *gridview.Grid) GridSummary {
	s := GridSummary{
		Kind: g.Kind, Namespace: g.Namespace, Name: g.Name, Key: g.Key, Healthy: g.Healthy, Problem: g.Problem,
		Sites: int(g.SiteCount), Phases: map[v1.SitePhase]int{},
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
	s.Rollout = rolloutOf(f.grids[status.NameOf(*g)])
	s.State = stateOf(g, s.Rollout)
	if r := s.Rollout; r != nil && (r.Phase == v1.RolloutProgressing || r.Phase == v1.RolloutSoaking) && !r.Failed {
		s.Healthy = s.Healthy || g.RollsOut
	}
	return s
}

// rolloutOf is the rollout of a grid; nil if it has none.
func rolloutOf(g *gridFacts) *Rollout {
	spec, gridStatus := v1.Workload(g.object)
	if spec == nil || spec.Rollout == nil {
		return nil
	}
	state, err := (&rollout.Grid{Kind: g.kind, Object: g.object}).State()
	if err != nil {
		return nil // only a grid without a rollout has no state
	}
	r := &Rollout{
		Summary: state.Summary, Updated: state.Updated, Sites: state.Sites, Failed: state.Failed,
	}
	if gridStatus.Rollout != nil && len(state.Rows) > 0 {
		r.Phase, r.Waves = gridStatus.Rollout.Phase, gridStatus.Rollout.Waves
	}
	return r
}

// statusList is all grids, as kubectl grid status prints them.
func (f *facts) statusList() status.List {
	f.mu.Lock()
	defer f.mu.Unlock()
	return status.List{TypeMeta: output.TypeMeta(status.Kind), Grids: f.gridStates()}
}

// grid is one grid; nil if it does not exist.
func (f *facts) grid(name status.GridName) *GridDetail {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := f.grids[name]
	if g == nil {
		return nil
	}
	state, r := f.gridState(g), rolloutOf(g)
	return &GridDetail{output.TypeMeta(KindGrid), *state, stateOf(state, r), r}
}

// serviceDetail is one Service; nil if it does not exist, or if what nodes see of it is not known.
func (f *facts) serviceDetail(name types.NamespacedName, key string) *ServiceDetail {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[name]
	if s == nil || s.service == nil || !f.known[nodes] || !f.known[endpointSlices] {
		return nil
	}
	view := f.view(s)
	d := &ServiceDetail{
		TypeMeta: output.TypeMeta(KindService), View: view,
		Title: serviceview.Title(view), Conclusion: serviceview.Conclusion(view),
	}
	if previewed := f.previewOf(key, name); previewed != nil && len(previewed.Services) == 1 {
		d.Preview = &previewed.Services[0]
	}
	return d
}

// preview is what closing the Services of a namespace, or of all, would change; nil if the key makes no sites, or if it
// cannot be said.
func (f *facts) preview(key, namespace string) *preview.Document {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []types.NamespacedName
	for name := range f.services {
		if namespace == "" || name.Namespace == namespace {
			names = append(names, name)
		}
	}
	found := f.previewOf(key, names...)
	if found == nil {
		return nil
	}
	document := preview.DocumentOf(found)
	return &document
}

func (f *facts) previewOf(key string, names ...types.NamespacedName) *gridview.Preview {
	if !f.known[nodes] || !f.known[services] || !f.known[endpointSlices] {
		return nil
	}
	previewer := gridview.NewPreviewer(key, f.nodes)
	if key == "" || previewer.Sites() == 0 {
		return nil
	}
	for _, name := range names {
		s := f.services[name]
		if s.service == nil {
			continue
		}
		previewer.AddService(s.service)
		for _, slice := range s.slices {
			previewer.AddSlice(slice)
		}
	}
	return previewer.Preview(f.diagnosis)
}

// site is everything about one site; nil if it does not exist.
func (f *facts) site(key, name string) *SiteDetail {
	f.mu.Lock()
	defer f.mu.Unlock()
	summaries, grids := f.summaries(), f.gridStates()
	sites := gridview.MapSites(key, f.nodes, grids, summaries, f.diagnosis).Sites
	i := slices.IndexFunc(sites, func(u gridview.MapSite) bool { return u.Name == name })
	if i < 0 {
		return nil
	}
	d := &SiteDetail{
		TypeMeta: output.TypeMeta(KindSite), Key: key, Site: sites[i],
		Nodes: []string{}, Workloads: []SiteWorkload{}, Services: []SiteService{},
	}
	for node, labels := range f.nodes {
		if labels[key] == name {
			d.Nodes = append(d.Nodes, node)
		}
	}
	slices.Sort(d.Nodes)
	for _, g := range grids {
		for _, u := range g.Sites {
			if g.Key == key && u.Name == name {
				d.Workloads = append(d.Workloads, SiteWorkload{g.Kind, g.Namespace, g.Name, u})
			}
		}
	}
	slices.SortStableFunc(d.Workloads, func(a, b SiteWorkload) int {
		return cmp.Compare(readyLast(a.Site.Phase), readyLast(b.Site.Phase))
	})
	for _, summary := range summaries {
		if slices.Contains(summary.TopologyKeys, key) {
			d.Services = append(d.Services, f.seenFrom(d.Nodes, summary))
		}
	}
	slices.SortFunc(d.Services, func(a, b SiteService) int {
		return cmp.Or(cmp.Compare(min(a.Ready, 1), min(b.Ready, 1)), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name))
	})
	return d
}

func readyLast(phase v1.SitePhase) int {
	if phase == v1.SiteReady {
		return 1
	}
	return 0
}

// seenFrom is what those of the nodes see of a Service that see the least.
func (f *facts) seenFrom(viewers []string, of gridview.ServiceSummary) SiteService {
	s := f.services[types.NamespacedName{Namespace: of.Namespace, Name: of.Name}]
	result := SiteService{Namespace: of.Namespace, Name: of.Name}
	for i, seen := range f.grouping(s.service).SeenBy(viewers, s.service, s.all()) {
		if i == 0 || seen.Ready < result.Ready {
			result.Key, result.Ready, result.Endpoints = seen.Key, seen.Ready, len(seen.Endpoints)
		}
	}
	return result
}
