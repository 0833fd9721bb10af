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

// CompareNames orders grids: by namespaces, kinds and names.
func CompareNames(a, b gridview.Object) int {
	order := func(o gridview.Object) int {
		return slices.IndexFunc(v1.Kinds, func(k v1.GridKind) bool { return k.Kind == o.Kind })
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(order(a), order(b)), cmp.Compare(a.Name, b.Name))
}

// List is an answer as JSON or YAML. While changes are followed, each document has the grids that have changed.
type List struct {
	metav1.TypeMeta `json:",inline"`

	Grids []gridview.Grid `json:"grids"`
	// Removed are grids that were deleted since the last document.
	Removed []gridview.Object `json:"removed,omitempty"`
	// Findings are those of kubectl grid check that concern the grids; in the first document only.
	Findings []gridview.Finding `json:"findings,omitempty"`
}

// Printer writes the state of grids. If it is called again, it writes only changes.
type Printer struct {
	Out    io.Writer
	Format output.Format
	// Namespaces adds the column of namespaces to a table, and NoHeader leaves out the line of headings.
	Namespaces, NoHeader bool
	// Problems leaves out healthy sites and grids. One that was written as a problem is written once more when it is
	// healthy.
	Problems bool
	// Findings follow the answer, if it is the only one.
	Findings []gridview.Finding

	table *output.Printer
	rows  written[rowKey, row]
	grids written[gridview.Object, gridview.Grid]
}

// written has the parts of an answer that were written last.
type written[K comparable, V any] map[K]V

// next takes the next answer, with the parts of it that are wanted. It returns the parts to write: the wanted ones that
// are new or have changed, and those that were written and are no longer wanted. gone are those that no longer exist.
func (w *written[K, V]) next(all, wanted []V, key func(V) K) (changed []V, gone map[K]V) {
	now := map[K]V{}
	for _, part := range wanted {
		now[key(part)] = part
	}
	gone, *w = *w, now
	for _, part := range all {
		old, before := gone[key(part)]
		kept, keep := now[key(part)]
		if delete(gone, key(part)); keep {
			part = kept
		}
		if keep && !before || before && !reflect.DeepEqual(old, part) {
			changed = append(changed, part)
		}
	}
	return changed, gone
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
	changed := p.changes(grids, wanted)
	if len(changed) > 0 && p.table == nil {
		p.table = output.NewPrinter(p.Out)
		if !p.NoHeader {
			changed = append([][]string{p.header()}, changed...)
		}
	}
	if len(changed) > 0 {
		if err := p.table.Print(changed...); err != nil {
			return false, err
		}
	}
	output.After(p.Out, p.Findings)
	return len(changed)+len(p.Findings) > 0, nil
}

// encode writes grids that are new or have changed as one document.
func (p *Printer) encode(grids, wanted []gridview.Grid) (wrote bool, err error) {
	first := p.grids == nil
	changed, gone := p.grids.next(grids, wanted, gridview.Grid.Object)
	list := List{TypeMeta: output.TypeMeta("GridStatusList"), Grids: append([]gridview.Grid{}, changed...),
		Removed: slices.SortedFunc(maps.Keys(gone), CompareNames)}
	switch {
	case first:
		list.Findings = p.Findings
	case len(list.Grids)+len(list.Removed) == 0:
		return false, nil
	case p.Format == output.YAML:
		if _, err := io.WriteString(p.Out, "---\n"); err != nil {
			return false, fmt.Errorf("printing: %w", err)
		}
	}
	return true, output.Encode(p.Out, list, p.Format)
}

type rowKey struct {
	grid gridview.Object
	// site is the site's name, or <all>, <none> or one of the rows of <others>.
	site string
}

type row struct {
	key   rowKey
	cells []string
}

// changes returns the rows that differ from the written ones, and rows about removed ones.
func (p *Printer) changes(grids, wanted []gridview.Grid) [][]string {
	differ, gone := p.rows.next(p.rowsOf(grids), p.rowsOf(wanted), func(r row) rowKey { return r.key })
	var changed [][]string
	for _, row := range differ {
		changed = append(changed, slices.Clone(row.cells))
	}
	for _, row := range slices.SortedFunc(maps.Values(gone), func(a, b row) int {
		return slices.Compare(a.cells, b.cells)
	}) {
		exists := slices.ContainsFunc(grids, func(g gridview.Grid) bool { return g.Object() == row.key.grid })
		if state := row.key.afterwards(exists); state != "" {
			changed = append(changed, p.withState(row.cells, state))
		}
	}
	return changed
}

// afterwards returns the state to print when a row is gone; empty to print nothing.
func (k rowKey) afterwards(gridExists bool) string {
	switch {
	case !gridExists:
		return "Gone: the grid is deleted"
	case strings.HasPrefix(k.site, output.Others):
		return ""
	case k.site == output.All || k.site == output.None:
		return "Resolved"
	default:
		return "Gone: the site is no longer in the grid"
	}
}

// withState returns a row with its name and another state.
func (p *Printer) withState(cells []string, state string) []string {
	cells = slices.Clone(cells)
	for i := slices.Index(p.header(), "SITE") + 1; i < len(cells); i++ {
		cells[i] = "-"
	}
	cells[len(cells)-1] = state
	return cells
}

func (p *Printer) header() []string {
	return p.chosen("NAMESPACE", "KIND", "GRID", "KEY", "SITE", "DESIRED", "READY", "UPDATED", "AVAILABLE", "NODES",
		"TEMPLATE", "CHILD", "OTHERS OWN", "STATE")
}

// chosen returns the cells of a row for which the table has a column.
func (p *Printer) chosen(all ...string) []string {
	if p.Format != output.Wide {
		all = slices.Delete(all, 8, 13)
	}
	if !p.Namespaces {
		all = all[1:]
	}
	return all
}

// row makes a row: after the site come the cells from DESIRED on.
func (p *Printer) row(g gridview.Grid, site string, cells ...string) row {
	return row{rowKey{g.Object(), site}, p.chosen(append([]string{g.Namespace, g.Kind, g.Name, g.Key, site},
		cells...)...)}
}

func (p *Printer) rowsOf(grids []gridview.Grid) []row {
	var rows []row
	for _, g := range grids {
		// add adds a row without a single workload.
		add := func(site, child, state string) {
			rows = append(rows, p.row(g, site, "-", "-", "-", "-", "-", "-", child, "-", state))
		}
		switch {
		case g.Problem != "" && len(g.Sites) == 0 && g.Service == "":
			add(output.None, "-", g.Problem)
		case g.Problem != "":
			add(output.All, cmp.Or(g.Service, "-"), g.Problem)
		case g.Service != "":
			add(output.All, g.Service, fmt.Sprintf("Ready: Service %s for %s", g.Service,
				enumerate.Count(int(g.SiteCount), "site")))
		}
		for _, u := range g.Sites {
			rows = append(rows, p.siteRow(g, u))
		}
		if g.UnlistedReady > 0 {
			add(output.Others, "-", "Ready: "+enumerate.Count(int(g.UnlistedReady), "site"))
			rows[len(rows)-1].key.site += " ready"
		}
		if g.Unlisted > 0 {
			add(output.Others, "-", fmt.Sprintf("Not ready: %s that the status has no room for",
				enumerate.Count(int(g.Unlisted), "site")))
		}
	}
	return rows
}

// siteRow returns the row of a site with a workload.
func (p *Printer) siteRow(g gridview.Grid, u gridview.Site) row {
	nodes := "-"
	if u.Nodes != nil {
		nodes = strconv.Itoa(*u.Nodes)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return p.row(g, u.Name, number(u.Desired), number(u.Ready), number(u.Updated), number(u.Available), nodes,
		cmp.Or(u.Template, string(v1.DefaultTemplate)), u.Child, cmp.Or(u.Others, "-"), u.State())
}
