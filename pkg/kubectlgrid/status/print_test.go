package status

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// site makes a site of two pods, of which this many are ready.
func site(name string, ready int64) gridview.Site {
	u := gridview.Site{Name: name, Phase: v1.SiteReady, Child: "echo-" + name, Desired: 2, Ready: ready, Updated: 2,
		Available: ready, Nodes: ptr.To(1)}
	if ready < 2 {
		u.Phase, u.Problem = v1.SiteProgressing, "a pod\nis not ready"
	}
	return u
}

// grid makes a grid of these sites.
func grid(name string, sites ...gridview.Site) gridview.Grid {
	g := gridview.Grid{Kind: "DeploymentGrid", Namespace: "shop", Name: name, Key: "zone", SiteCount: int32(len(sites)),
		Sites: sites, Healthy: true}
	for _, u := range sites {
		g.Healthy = g.Healthy && u.Phase == v1.SiteReady
	}
	return g
}

func failed(g gridview.Grid, problem string) gridview.Grid {
	g.Problem, g.Healthy = problem, false
	return g
}

// printed is what a Printer is given, and what it prints.
type printed struct {
	grids []gridview.Grid
	want  string
}

func expectPrinted(t *testing.T, p Printer, steps []printed) {
	t.Helper()
	var out bytes.Buffer
	p.Out, p.Format = &out, output.Table
	for i, step := range steps {
		out.Reset()
		wrote, err := p.Print(step.grids)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != step.want || wrote != (step.want != "") {
			t.Errorf("step %d: got\n%swant\n%s", i, out.String(), step.want)
		}
	}
}

// TestPrintChanges: the first answer is printed whole, and of every later one the rows that differ from the one before.
func TestPrintChanges(t *testing.T) {
	const header = "KIND             GRID   KEY    SITE   DESIRED   READY   UPDATED   STATE\n"
	for _, test := range []struct {
		name    string
		printer Printer
		steps   []printed
	}{
		{"nothing, and then something", Printer{}, []printed{
			{nil, ""},
			{[]gridview.Grid{grid("echo", site("east", 2))}, header +
				"DeploymentGrid   echo   zone   east   2         2       2         Ready\n"},
			{[]gridview.Grid{grid("echo", site("east", 2))}, ""},
		}},
		{"sites that change, come and go", Printer{NoHeader: true}, []printed{
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 2))},
				"DeploymentGrid   echo   zone   east   2   2   2   Ready\nDeploymentGrid   echo   zone   west   2   " +
					"2   2   Ready\n"},
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 1))},
				"DeploymentGrid   echo   zone   west   2   1   2   Progressing: a pod is not ready\n"},
			{[]gridview.Grid{grid("echo", site("east", 2), site("north", 2))},
				"DeploymentGrid   echo   zone   north   2   2   2   Ready\n" +
					"DeploymentGrid   echo   zone   west    -   -   -   Gone: the site is no longer in the grid\n"},
			{nil,
				"DeploymentGrid   echo   zone   east    -   -   -   Gone: the grid is deleted\n" +
					"DeploymentGrid   echo   zone   north   -   -   -   Gone: the grid is deleted\n"},
			{nil, ""},
		}},
		{"only problems: what is well again is printed once", Printer{Problems: true,
			NoHeader: true, Namespaces: true}, []printed{
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 2))}, ""},
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 1))},
				"shop   DeploymentGrid   echo   zone   west   2   1   2   Progressing: a pod is not ready\n"},
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 2))},
				"shop   DeploymentGrid   echo   zone   west   2   2   2   Ready\n"},
			{[]gridview.Grid{grid("echo", site("east", 2), site("west", 2))}, ""},
			{nil, ""},
		}},
		{"what concerns a grid as a whole", Printer{NoHeader: true}, []printed{
			{[]gridview.Grid{failed(grid("echo"), "no node has the label")},
				"DeploymentGrid   echo   zone   <none>   -   -   -   no node has the label\n"},
			{
				[]gridview.Grid{failed(grid("echo", site("east", 2)), "the controller is away")},
				"DeploymentGrid   echo   zone   <all>    -   -   -   the controller is away\n" +
					"DeploymentGrid   echo   zone   east     2   2   2   Ready\n" +
					"DeploymentGrid   echo   zone   <none>   -   -   -   Resolved\n",
			},
			{[]gridview.Grid{grid("echo", site("east", 2))},
				"DeploymentGrid   echo   zone   <all>    -   -   -   Resolved\n"},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			expectPrinted(t, test.printer, test.steps)
		})
	}
}

// TestEncodeChanges: the first document has all grids, and each later one those that have changed.
func TestEncodeChanges(t *testing.T) {
	type document struct {
		APIVersion, Kind string
		Grids, Removed   []struct{ Name string }
	}
	tell := func(d document) string {
		if d.Kind != "GridStatusList" || d.APIVersion != output.APIVersion {
			t.Errorf("got %+v", d)
		}
		var names []string
		for _, g := range d.Grids {
			names = append(names, g.Name)
		}
		for _, g := range d.Removed {
			names = append(names, "-"+g.Name)
		}
		return strings.Join(names, " ")
	}
	a, b := grid("a", site("east", 2)), grid("b", site("east", 2))
	sick := grid("b", site("east", 1))
	for _, problems := range []bool{false, true} {
		var out bytes.Buffer
		printer := Printer{Out: &out, Format: output.YAML, Problems: problems}
		for _, grids := range [][]gridview.Grid{{a, b}, {a, b}, {a, sick}, {a, b}, {a}, nil} {
			if _, err := printer.Print(grids); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, text := range strings.Split(out.String(), "---\n") {
			var d document
			if err := yaml.Unmarshal([]byte(text), &d); err != nil {
				t.Fatal(err)
			}
			got = append(got, tell(d))
		}
		want := "a b | b | b | -b | -a"
		if problems {
			want = " | b | b"
		}
		if strings.Join(got, " | ") != want {
			t.Errorf("problems %t: got %q, want %q", problems, strings.Join(got, " | "), want)
		}
	}
}
