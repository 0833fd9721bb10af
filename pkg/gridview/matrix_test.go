package gridview

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// summaryOf is a Service with this annotation and these endpoints in short.
func summaryOf(name, annotation, endpoints string, nodes map[string]topology.Labels) ServiceSummary {
	service := wiretest.ServiceOf("shop/"+name, annotation)
	return ofService(service, nodes, &Diagnosis{}, slice(endpoints)).Summary()
}

func TestSummary(t *testing.T) {
	nodes := map[string]topology.Labels{
		"a1": {"zone": "a", "region": "r", v1.LabelEdgeNode: "true"},
		"b1": {"zone": "b", "region": "r", v1.LabelEdgeNode: "true"},
		"c1": {"zone": "c", "region": "s", v1.LabelEdgeNode: "true"}, "bare": {},
	}
	var summaries []ServiceSummary
	for _, test := range []struct {
		annotation, endpoints string
		state                 ServiceState
		cells                 string
	}{
		{`["zone"]`, "p@a1 q@b1 r@c1", ServiceClosed, "a own, b own, c own"},
		{`["zone"]`, "p@a1 q!@b1", ServiceLacking, "a own, b none, c none"},
		{`["zone","region"]`, "p@a1", ServiceLacking, "a own, b fallback, c none"},
		{`["zone"]`, "p@a1 q@b1 r@c1 x@bare", ServiceHidden, "a own, b own, c own"},
		{`["zone"]`, "", ServiceEmpty, "a empty, b empty, c empty"},
		{`zone`, "p@a1", ServiceInvalid, ""},
		{"", "p@a1", ServiceOpen, ""},
		{"", "p!@a1", ServiceEmpty, ""},
	} {
		s := summaryOf("s", test.annotation, test.endpoints, nodes)
		var cells []string
		for _, site := range s.sites {
			cells = append(cells, site.labels["zone"]+" "+site.cell.Word().Word)
		}
		if s.State != test.state || strings.Join(cells, ", ") != test.cells {
			t.Errorf("%s %s: got %+v", test.annotation, test.endpoints, s)
		}
		well := s.State != ServiceLacking && s.State != ServiceInvalid
		if s.Healthy != well || (s.Severity == OK) != well {
			t.Errorf("%s %s: healthy is %t, %s", test.annotation, test.endpoints, s.Healthy, s.Severity)
		}
		summaries = append(summaries, s)
	}
	if CompareServices(summaries[0], summaries[1]) <= 0 || CompareServices(summaries[5], summaries[0]) >= 0 {
		t.Error("a Service that is well comes before one that is not")
	}
}

// TestMatrixAttention: sites come in the order of the attention that they need, whatever the states of their grids; a
// site of several groups has the worst cell of any; and a node that does not keep Services is a problem of its site.
func TestMatrixAttention(t *testing.T) {
	const host = "kubernetes.io/hostname"
	nodes := map[string]topology.Labels{}
	for _, name := range []string{"a1", "b1", "b2", "c1"} {
		nodes[name] = edgeIn(name[:1])
		nodes[name][host] = name
	}
	cluster := &Groupings{Nodes: nodes, Diagnosis: &Diagnosis{Nodes: nodes, Findings: []Finding{
		{Severity: Failure, Check: CheckKubeProxy, Node: "b1", Message: "past"}}}}
	endpoints := slice("p@a1 q@b1 r@b2 s@c1")
	endpoints.Endpoints[3].Conditions = discoveryv1.EndpointConditions{
		Ready: new(false), Serving: new(true), Terminating: new(true)}
	view := cluster.View(wiretest.ServiceOf("shop/s", `["kubernetes.io/hostname","zone"]`),
		[]discoveryv1.EndpointSlice{endpoints})
	changing := Grid{Kind: "DeploymentGrid", Name: "g", Key: "zone", Sites: []Site{{Name: "a", Phase: Unknown}}}
	m := MatrixOf("zone", cluster, []Grid{changing}, []ServiceSummary{view.Summary()})
	if got := tellCells(m); got != "b - !open\nc - terminating\na Changing own" {
		t.Errorf("got\n%s", got)
	}
	if site := m.Sites[0]; site.State != CellFailed || site.Problems != 1 {
		t.Errorf("got %+v", site)
	}
}

// tellSites is a matrix in one line per site: "site(nodes) state problems: problem".
func tellSites(m Matrix) string {
	var lines []string
	for _, u := range m.Sites {
		lines = append(lines, fmt.Sprintf("%s(%d) %s %d: %s", u.Name, u.Nodes, u.State.Word().Word, u.Problems,
			u.Problem))
	}
	return strings.Join(lines, "\n")
}

func TestMatrixSites(t *testing.T) {
	nodes := map[string]topology.Labels{
		"a1": {"zone": "a"}, "a2": {"zone": "a"}, "b1": {"zone": "b"}, "c1": {"zone": "c"}, "d1": {"zone": "d"},
		"bare": {},
	}
	grid := func(name string, sites ...Site) Grid {
		return Grid{Kind: "DeploymentGrid", Namespace: "shop", Name: name, Key: "zone", Sites: sites}
	}
	all := "p@a1 q@b1 r@c1 s@d1"
	for _, test := range []struct {
		name     string
		grids    []Grid
		services []ServiceSummary
		want     []string
	}{
		{"nothing is meant for them", nil, []ServiceSummary{summaryOf("open", "", all, nodes)},
			[]string{"a(2) Unused 0: ", "b(1) Unused 0: ", "c(1) Unused 0: ", "d(1) Unused 0: "}},
		{"a closed Service", nil, []ServiceSummary{summaryOf("db", `["zone"]`, "p@a1 q@c1 r@d1", nodes)},
			[]string{"b(1) Failed 1: Service shop/db has no ready endpoint for this site", "a(2) Ready 0: ",
				"c(1) Ready 0: ", "d(1) Ready 0: "}},
		{"one of another key", nil, []ServiceSummary{summaryOf("db", `["rack"]`, all, nodes)},
			[]string{"a(2) Unused 0: ", "b(1) Unused 0: ", "c(1) Unused 0: ", "d(1) Unused 0: "}},
		{
			"the worst counts, but a site that cannot be reached is no more than that",
			[]Grid{
				grid("one", Site{Name: "a", Phase: v1.SiteProgressing, Problem: "soon"},
					Site{Name: "b", Phase: v1.SiteReady}, Site{Name: "c", Phase: v1.SiteStalled, Problem: "stuck"},
					Site{Name: "d", Phase: v1.SiteReady}),
				grid("two", Site{Name: "a", Phase: v1.SiteReady},
					Site{Name: "c", Phase: v1.SiteUnreachable, Problem: "away"},
					Site{Name: "gone", Phase: v1.SiteRemoving, Problem: "no node"}),
			},
			[]ServiceSummary{summaryOf("db", `["zone"]`, "p@a1 q@b1 s@d1", nodes)},
			[]string{
				"c(1) Unreachable 3: DeploymentGrid shop/two: Unreachable: away",
				"a(2) Changing 1: DeploymentGrid shop/one: Progressing: soon",
				"gone(0) Changing 1: DeploymentGrid shop/two: Removing: no node",
				"b(1) Ready 0: ", "d(1) Ready 0: ",
			},
		},
		{
			"a grid whose status only counts the sites that are ready",
			[]Grid{{Kind: "DeploymentGrid", Namespace: "shop", Name: "large", Key: "zone", UnlistedReady: 3,
				Sites: []Site{{Name: "b", Phase: v1.SiteFailed, Problem: "no"}}}}, nil,
			[]string{"b(1) Failed 1: DeploymentGrid shop/large: Failed: no", "a(2) Ready 0: ", "c(1) Ready 0: ",
				"d(1) Ready 0: "},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := MatrixOf("zone", &Groupings{Nodes: nodes}, test.grids, test.services)
			if got, want := tellSites(m), strings.Join(test.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			if m.NodesWithoutSite != 1 {
				t.Errorf("%d nodes without a site", m.NodesWithoutSite)
			}
		})
	}
	// Of nodes that may not be read nothing is said.
	m := MatrixOf("zone", &Groupings{}, []Grid{grid("one", Site{Name: "a", Phase: v1.SiteReady})}, nil)
	if got := tellSites(m); got != "a(0) Ready 0: " || m.NodesWithoutSite != 0 {
		t.Errorf("got %s", got)
	}
}

// TestMatrixOfNodesAndRows: a failure of a node is one of its site, a warning is not. The cells of a grid that only
// counts its sites are those of sites with nodes. A row has a letter for each cell.
func TestMatrixOfNodesAndRows(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": {"zone": "a"}, "b1": {"zone": "b"}}
	diagnosis := &Diagnosis{Nodes: nodes, Findings: []Finding{
		{Severity: Failure, Check: CheckWrapper, Node: "a1", Object: Object{Kind: "Node", Name: "a1"}, Message: "down"},
		{Severity: Warning, Check: CheckWrapper, Node: "b1", Object: Object{Kind: "Node", Name: "b1"}, Message: "old"},
	}}
	grids := []Grid{
		{Kind: "DeploymentGrid", Namespace: "shop", Name: "small", Key: "zone",
			Sites: []Site{{Name: "gone", Phase: v1.SiteRemoving}}},
		{Kind: "DeploymentGrid", Namespace: "shop", Name: "large", Key: "zone", UnlistedReady: 2},
	}
	m := MatrixOf("zone", &Groupings{Nodes: nodes, Diagnosis: diagnosis}, grids, nil)
	want := "a(1) Failed 1: Node a1: down\ngone(0) Changing 1: DeploymentGrid shop/small: Removing\nb(1) Ready 0: "
	if got := tellSites(m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for i, want := range []Row{{CellNothing, CellReady}, {CellChanging, CellNothing}, {CellNothing, CellReady}} {
		if got := m.Sites[i].Grids; !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", m.Sites[i].Name, got, want)
		}
	}
	if text, err := (Row{CellNothing, CellOwn, CellEmpty}).MarshalText(); string(text) != "abd" || err != nil {
		t.Errorf("got %s, %v", text, err)
	}
}

// TestMatrixCountsAServiceOnce in a site whose nodes have different values of the Service's other keys.
func TestMatrixCountsAServiceOnce(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": {"zone": "a", "rack": "1"}, "a2": {"zone": "a", "rack": "2"},
		"b1": {"zone": "b", "rack": "3"}}
	m := MatrixOf("zone", &Groupings{Nodes: nodes}, nil,
		[]ServiceSummary{summaryOf("db", `["rack","zone"]`, "p@b1", nodes)})
	want := "a(2) Failed 1: Service shop/db has no ready endpoint for this site\nb(1) Ready 0: "
	if got := tellSites(m); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestKeys(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": {"zone": "a"}, "a2": {"zone": "a"}, "b1": {"zone": "b"}}
	if got := fmt.Sprint(Keys(nodes, nil, nil)); got != "[{zone 0 0}]" {
		t.Errorf("got %s", got)
	}
	grids := []Grid{{Key: "site"}, {Key: "zone"}}
	services := []ServiceSummary{
		summaryOf("a", `["site"]`, "", nodes), summaryOf("b", `["rack","site","*"]`, "", nodes),
		summaryOf("c", "", "", nodes),
	}
	for range 50 { // the order of a map is another one each time
		if got := fmt.Sprint(Keys(nodes, grids, services)); got != "[{site 1 2} {rack 0 1} {zone 1 0}]" {
			t.Errorf("got %s", got)
		}
	}
}

// BenchmarkView is a Service with an endpoint in each of so many sites. The time for an endpoint has to stay.
func BenchmarkView(b *testing.B) {
	for _, sites := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(sites), func(b *testing.B) {
			nodes := map[string]topology.Labels{}
			var text strings.Builder
			for i := range sites {
				nodes[fmt.Sprint("n", i)] = topology.Labels{"zone": fmt.Sprint("u", i)}
				fmt.Fprintf(&text, "p%d@n%d ", i, i)
			}
			service := wiretest.ServiceOf("s", `["zone"]`)
			endpointSlices := []discoveryv1.EndpointSlice{slice(text.String())}
			b.ResetTimer()
			for b.Loop() {
				if !ofService(service, nodes, &Diagnosis{}, endpointSlices...).Closed {
					b.Fatal("it is not closed")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(sites), "ns/endpoint")
		})
	}
}

// TestSiteWithoutAName: a label with an empty value is a site, which has the same name everywhere.
func TestSiteWithoutAName(t *testing.T) {
	nodes := map[string]topology.Labels{"a1": edgeIn(""), "b1": edgeIn("b"), "bare": {}}
	diagnosis := &Diagnosis{Nodes: nodes}
	service := wiretest.ServiceOf("shop/echo", `["zone"]`)
	view := ofService(service, nodes, diagnosis, slice("p@b1"))
	grid := Workloads(v1.DeploymentGridKind, &v1.DeploymentGrid{Spec: v1.WorkloadGridSpec{GridUniqKey: "zone"},
		Status: v1.WorkloadGridStatus{States: map[string]v1.SiteState{"": {Phase: v1.SiteFailed}}}},
		Surroundings{Nodes: nodes})
	matrix := MatrixOf("zone", &Groupings{Nodes: nodes, Diagnosis: diagnosis}, []Grid{grid},
		[]ServiceSummary{view.Summary()})
	if got, want := tellSites(matrix), `""(1) Failed 2: DeploymentGrid /: Failed`; !strings.HasPrefix(got, want) ||
		matrix.NodesWithoutSite != 1 || matrix.Sites[0].Services[0] != CellNone {
		t.Errorf("got\n%s\nwant %s; %d nodes without site", got, want, matrix.NodesWithoutSite)
	}
	if view.Sites[1].Name != `""` || grid.Sites[0].Name != `""` || *grid.Sites[0].Nodes != 1 {
		t.Errorf("got %+v, %+v", view.Sites, grid.Sites)
	}
	if at := view.At("zone", `""`); len(at) != 1 || at[0].Node != "a1" {
		t.Errorf("got %+v", at)
	}
}
