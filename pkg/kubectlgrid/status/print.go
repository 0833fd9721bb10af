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

// List is an answer as JSON or YAML. While changes are followed, each document has the grids that have changed.
type List struct {
	metav1.TypeMeta `json:",inline"`

	Grids []gridview.Grid `json:"grids"`
	// Removed are grids that are gone since the last document.
	Removed []GridName `json:"removed,omitempty"`
	// Findings are what kubectl grid check finds that concerns the grids; in the first document only.
	Findings []gridview.Finding `json:"findings,omitempty"`
}

// Columns says which columns a table has.
type Columns struct {
	// Wide adds those of -o wide, Namespaces that of namespaces.
	Wide, Namespaces bool
	// NoHeader leaves out the line of headings.
	NoHeader bool
}

// others is the name of the units that a large status only counts.
const others = "<others>"

// Printer writes the state of grids. If it is called again, it writes what has changed since.
type Printer struct {
	Out     io.Writer
	Format  output.Format
	Columns Columns
	// Problems leaves out what is well. What has been written as a problem is written once more when it is well.
	Problems bool
	// Findings follow the first answer.
	Findings []gridview.Finding

	table *output.Printer
	// rows are those that were written, grids all that were there.
	rows  map[rowKey][]string
	grids map[GridName]gridview.Grid
}

// Print writes the first answer whole, and of each later one what differs from the one before. It reports whether it
// has written anything of a grid.
func (p *Printer) Print(grids []gridview.Grid) (wrote bool, err error) {
	if p.Format.Encoded() {
		return p.encode(grids)
	}
	changed, first := p.changes(grids), p.table == nil
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
func (p *Printer) encode(grids []gridview.Grid) (wrote bool, err error) {
	first := p.grids == nil
	list := List{TypeMeta: output.TypeMeta(Kind), Grids: []gridview.Grid{}}
	before := p.grids
	p.grids = map[GridName]gridview.Grid{}
	wanted := grids
	if p.Problems {
		wanted = OnlyProblems(grids)
	}
	for _, g := range wanted {
		name := nameOf(g)
		p.grids[name] = g
		if old, known := before[name]; !known || !reflect.DeepEqual(old, g) {
			list.Grids = append(list.Grids, g)
		}
	}
	for _, g := range grids { // those that are well again
		name := nameOf(g)
		_, shown := before[name]
		if _, still := p.grids[name]; shown && !still {
			list.Grids = append(list.Grids, g)
			delete(before, name)
		}
	}
	for name := range before {
		if _, still := p.grids[name]; !still {
			list.Removed = append(list.Removed, name)
		}
	}
	slices.SortFunc(list.Removed, func(a, b GridName) int {
		return strings.Compare(a.Namespace+"/"+a.Kind+"/"+a.Name, b.Namespace+"/"+b.Kind+"/"+b.Name)
	})
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

func nameOf(g gridview.Grid) GridName { return GridName{g.Kind, g.Namespace, g.Name} }

// rowKey names a row of the table.
type rowKey struct {
	grid GridName
	// unit is the unit's name, or <all>, <none> or one of the rows of <others>.
	unit string
}

// row is a row of the table.
type row struct {
	key   rowKey
	cells []string
}

// changes are the rows that differ from those that were written, and those that say what is gone.
func (p *Printer) changes(grids []gridview.Grid) [][]string {
	wanted := grids
	if p.Problems {
		wanted = OnlyProblems(grids)
	}
	keep := map[rowKey]bool{}
	for _, row := range p.Columns.rows(wanted) {
		keep[row.key] = true
	}
	before := p.rows
	p.rows = map[rowKey][]string{}
	exists := map[GridName]bool{}
	for _, g := range grids {
		exists[nameOf(g)] = true
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

// afterwards is the state of what a row was about, when there is no such row any more; empty for nothing to say.
func (k rowKey) afterwards(gridExists bool) string {
	switch {
	case !gridExists:
		return "Gone: the grid is deleted"
	case strings.HasPrefix(k.unit, others):
		return ""
	case k.unit == output.All || k.unit == output.None:
		return "Resolved"
	default:
		return "Gone: the unit is not in the grid any more"
	}
}

// named is how many columns name a row.
func (c Columns) named() int {
	if c.Namespaces {
		return 5
	}
	return 4
}

// withState is a row with its name and another state.
func (c Columns) withState(cells []string, state string) []string {
	cells = slices.Clone(cells)
	for i := c.named(); i < len(cells); i++ {
		cells[i] = "-"
	}
	cells[len(cells)-1] = state
	return cells
}

// header is the line of headings.
func (c Columns) header() []string {
	header := []string{"KIND", "GRID", "KEY", "UNIT", "DESIRED", "READY", "UPDATED"}
	if c.Wide {
		header = append(header, "AVAILABLE", "NODES", "TEMPLATE", "CHILD", "OTHERS OWN")
	}
	if c.Namespaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	return append(header, "STATE")
}

// numbers are the cells of a row between the unit and the child, in the order of the header of -o wide.
type numbers struct{ desired, ready, updated, available, nodes, template, others string }

// noNumbers are those of a row that is about no single workload.
var noNumbers = numbers{"-", "-", "-", "-", "-", "-", "-"}

// row makes the row of a unit.
func (c Columns) row(g gridview.Grid, unit string, n numbers, child, state string) row {
	cells := []string{g.Kind, g.Name, g.Key, unit, n.desired, n.ready, n.updated}
	if c.Wide {
		cells = append(cells, n.available, n.nodes, n.template, child, n.others)
	}
	if c.Namespaces {
		cells = append([]string{g.Namespace}, cells...)
	}
	return row{rowKey{nameOf(g), unit}, append(cells, state)}
}

// rows are the rows of grids.
func (c Columns) rows(grids []gridview.Grid) []row {
	var rows []row
	for _, g := range grids {
		switch {
		case g.Problem != "" && len(g.Units) == 0 && g.Service == "":
			rows = append(rows, c.row(g, output.None, noNumbers, "-", g.Problem))
		case g.Problem != "":
			rows = append(rows, c.row(g, output.All, noNumbers, cmp.Or(g.Service, "-"), g.Problem))
		case g.Service != "":
			state := fmt.Sprintf("Ready: Service %s for %s", g.Service, output.Count(int(g.UnitCount), "unit"))
			rows = append(rows, c.row(g, output.All, noNumbers, g.Service, state))
		}
		for _, u := range g.Units {
			rows = append(rows, c.row(g, u.Name, numbersOf(u), u.Child, u.State()))
		}
		if g.UnlistedReady > 0 {
			ready := c.row(g, others, noNumbers, "-", "Ready: "+output.Count(int(g.UnlistedReady), "unit"))
			ready.key.unit += " ready"
			rows = append(rows, ready)
		}
		if g.Unlisted > 0 {
			state := fmt.Sprintf("Not ready: %s that the status has no room for", output.Count(int(g.Unlisted), "unit"))
			rows = append(rows, c.row(g, others, noNumbers, "-", state))
		}
	}
	return rows
}

func numbersOf(u gridview.Unit) numbers {
	nodes := "-"
	if u.Nodes != nil {
		nodes = strconv.Itoa(*u.Nodes)
	}
	template := u.Template
	if template == "" {
		template = string(v1.DefaultTemplate)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return numbers{
		number(u.Desired), number(u.Ready), number(u.Updated), number(u.Available), nodes, template,
		cmp.Or(u.Others, "-"),
	}
}
