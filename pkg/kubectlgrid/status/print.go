package status

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// Kind is that of an answer as JSON or YAML.
const Kind = "GridStatusList"

// GridName names a grid.
type GridName struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// NameOf returns the name of a grid.
func NameOf(g gridview.Grid) GridName { return GridName{g.Kind, g.Namespace, g.Name} }

// CompareNames orders grids: by namespaces, kinds and names.
func CompareNames(a, b GridName) int {
	order := func(n GridName) int {
		return slices.IndexFunc(v1.Kinds, func(k v1.GridKind) bool { return k.Kind == n.Kind })
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(order(a), order(b)), cmp.Compare(a.Name, b.Name))
}

// List is an answer as JSON or YAML. While changes are followed, each document has the grids that have changed.
type List struct {
	metav1.TypeMeta `json:",inline"`

	Grids []gridview.Grid `json:"grids"`
	// Removed are grids that were deleted since the last document.
	Removed []GridName `json:"removed,omitempty"`
	// Findings are those of kubectl grid check that concern the grids; in the first document only.
	Findings []gridview.Finding `json:"findings,omitempty"`
}

// Columns selects the columns of a table.
type Columns struct {
	// Wide adds those of -o wide, Namespaces that of namespaces.
	Wide, Namespaces bool
	// NoHeader leaves out the line of headings.
	NoHeader bool
}

// others is the name of the sites that a large status only counts.
const others = "<others>"

// Printer writes the state of grids. If it is called again, it writes only changes.
type Printer struct {
	Out     io.Writer
	Format  output.Format
	Columns Columns
	// Problems leaves out healthy sites and grids. One that was written as a problem is written once more when it is
	// healthy.
	Problems bool
	// Findings follow the first answer.
	Findings []gridview.Finding

	table *output.Printer
	// rows are the rows that were written, and grids all grids of the last answer.
	rows  map[rowKey][]string
	grids map[GridName]gridview.Grid
}

// Print writes the first answer completely, and only the differences of each later one. It reports whether it has
// written anything about a grid.
func (p *Printer) Print(grids []gridview.Grid) (wrote bool, err error) {
	wanted := grids
	if p.Problems {
		wanted = OnlyProblems(grids)
	}
	if p.Format.Encoded() {
		return p.encode(grids, wanted)
	}
	changed, first := p.changes(grids, wanted), p.table == nil
	if len(changed) == 0 {
		output.Findings(p.Out, p.Findings)
		return len(p.Findings) > 0, nil
	}
	if first {
		p.table = output.NewPrinter(p.Out)
		if !p.Columns.NoHeader {
			changed = append([][]string{p.Columns.header()}, changed...)
		}
	}
	err = p.table.Print(changed...)
	if first {
		output.Findings(p.Out, p.Findings)
	}
	return true, err
}

// encode writes grids that are new or have changed as one document.
func (p *Printer) encode(grids, wanted []gridview.Grid) (wrote bool, err error) {
	first := p.grids == nil
	list := List{TypeMeta: output.TypeMeta(Kind), Grids: []gridview.Grid{}}
	before := p.grids
	p.grids = map[GridName]gridview.Grid{}
	for _, g := range wanted {
		p.grids[NameOf(g)] = g
	}
	for _, g := range grids {
		name := NameOf(g)
		old, shown := before[name]
		now, still := p.grids[name]
		switch {
		case still && (!shown || !reflect.DeepEqual(old, now)):
			list.Grids = append(list.Grids, now)
		case shown && !still: // it is healthy again
			list.Grids = append(list.Grids, g)
		}
		delete(before, name)
	}
	list.Removed = slices.SortedFunc(maps.Keys(before), CompareNames)
	if !first && len(list.Grids)+len(list.Removed) == 0 {
		return false, nil
	}
	if !first && p.Format == output.YAML {
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return false, fmt.Errorf("printing: %w", err)
		}
	}
	if first {
		list.Findings = p.Findings
	}
	return true, output.Encode(p.Out, list, p.Format)
}

type rowKey struct {
	grid GridName
	// site is the site's name, or <all>, <none> or one of the rows of <others>.
	site string
}

type row struct {
	key   rowKey
	cells []string
}

// changes returns the rows that differ from the written ones, and rows about removed ones.
func (p *Printer) changes(grids, wanted []gridview.Grid) [][]string {
	keep := map[rowKey]bool{}
	for _, row := range p.Columns.rows(wanted) {
		keep[row.key] = true
	}
	before := p.rows
	p.rows = map[rowKey][]string{}
	exists := map[GridName]bool{}
	for _, g := range grids {
		exists[NameOf(g)] = true
	}
	var changed [][]string
	for _, row := range p.Columns.rows(grids) {
		old, shown := before[row.key]
		delete(before, row.key)
		if keep[row.key] {
			p.rows[row.key] = row.cells
		}
		if (keep[row.key] || shown) && !slices.Equal(old, row.cells) {
			changed = append(changed, slices.Clone(row.cells))
		}
	}
	gone := slices.SortedFunc(maps.Keys(before), func(a, b rowKey) int { return slices.Compare(before[a], before[b]) })
	for _, key := range gone {
		if state := key.afterwards(exists[key.grid]); state != "" {
			changed = append(changed, p.Columns.withState(before[key], state))
		}
	}
	return changed
}

// afterwards returns the state to print when a row is gone; empty to print nothing.
func (k rowKey) afterwards(gridExists bool) string {
	switch {
	case !gridExists:
		return "Gone: the grid is deleted"
	case strings.HasPrefix(k.site, others):
		return ""
	case k.site == output.All || k.site == output.None:
		return "Resolved"
	default:
		return "Gone: the site is no longer in the grid"
	}
}

// named returns how many columns identify a row.
func (c Columns) named() int {
	if c.Namespaces {
		return 5
	}
	return 4
}

// withState returns a row with its name and another state.
func (c Columns) withState(cells []string, state string) []string {
	cells = slices.Clone(cells)
	for i := c.named(); i < len(cells); i++ {
		cells[i] = "-"
	}
	cells[len(cells)-1] = state
	return cells
}

// header returns the line of headings.
func (c Columns) header() []string {
	return c.chosen("NAMESPACE", "KIND", "GRID", "KEY", "SITE", "DESIRED", "READY", "UPDATED", "AVAILABLE", "NODES",
		"TEMPLATE", "CHILD", "OTHERS OWN", "STATE")
}

// chosen returns the cells of a row for which the table has a column.
func (c Columns) chosen(all ...string) []string {
	if !c.Wide {
		all = slices.Delete(all, 8, 13)
	}
	if !c.Namespaces {
		all = all[1:]
	}
	return all
}

// row makes a row: after the site come the cells from DESIRED on.
func (c Columns) row(g gridview.Grid, site string, cells ...string) row {
	return row{rowKey{NameOf(g), site}, c.chosen(append([]string{g.Namespace, g.Kind, g.Name, g.Key, site},
		cells...)...)}
}

// rowOfNone returns a row without a single workload.
func (c Columns) rowOfNone(g gridview.Grid, site, child, state string) row {
	return c.row(g, site, "-", "-", "-", "-", "-", "-", child, "-", state)
}

func (c Columns) rows(grids []gridview.Grid) []row {
	var rows []row
	for _, g := range grids {
		switch {
		case g.Problem != "" && len(g.Sites) == 0 && g.Service == "":
			rows = append(rows, c.rowOfNone(g, output.None, "-", g.Problem))
		case g.Problem != "":
			rows = append(rows, c.rowOfNone(g, output.All, cmp.Or(g.Service, "-"), g.Problem))
		case g.Service != "":
			state := fmt.Sprintf("Ready: Service %s for %s", g.Service, enumerate.Count(int(g.SiteCount), "site"))
			rows = append(rows, c.rowOfNone(g, output.All, g.Service, state))
		}
		for _, u := range g.Sites {
			rows = append(rows, c.rowOf(g, u))
		}
		if g.UnlistedReady > 0 {
			ready := c.rowOfNone(g, others, "-", "Ready: "+enumerate.Count(int(g.UnlistedReady), "site"))
			ready.key.site += " ready"
			rows = append(rows, ready)
		}
		if g.Unlisted > 0 {
			state := fmt.Sprintf("Not ready: %s that the status has no room for",
				enumerate.Count(int(g.Unlisted), "site"))
			rows = append(rows, c.rowOfNone(g, others, "-", state))
		}
	}
	return rows
}

// rowOf returns the row of a site with a workload.
func (c Columns) rowOf(g gridview.Grid, u gridview.Site) row {
	nodes := "-"
	if u.Nodes != nil {
		nodes = strconv.Itoa(*u.Nodes)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return c.row(g, u.Name, number(u.Desired), number(u.Ready), number(u.Updated), number(u.Available), nodes,
		cmp.Or(u.Template, string(v1.DefaultTemplate)), u.Child, cmp.Or(u.Others, "-"), u.State())
}
