package prove

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// columnSites is the largest number of sites that have their own columns.
const columnSites = 8

// Print writes a proof in a format.
func (p *Proof) Print(out io.Writer, format output.Format) error {
	if format.Encoded() {
		return output.Encode(out, p, format)
	}
	fmt.Fprintf(out, "Service %s/%s, topologyKeys [%s]: %s to %s from a node of each site\n\n", p.Namespace, p.Service,
		p.TopologyKeys.Quoted(), enumerate.Count(p.Requests, "connection"), p.Address)
	columns := slices.Clone(p.Sites)
	for _, row := range p.Rows {
		for where := range row.Reached {
			if !slices.Contains(columns, where) {
				columns = append(columns, where)
			}
		}
	}
	columnOf := func(_ Row, where string) string { return where }
	if len(columns) > columnSites {
		columns = []string{"own site", "others"}
		columnOf = func(row Row, where string) string {
			if where == row.Site {
				return "own site"
			}
			return "others"
		}
	}
	rows := make([][]string, 0, 1+len(p.Rows))
	rows = append(rows, slices.Concat([]string{"FROM"}, columns, []string{"NOBODY", "VERDICT"}))
	for _, row := range p.Rows {
		from := row.Site
		if row.Node != "" {
			from += " (" + row.Node + ")"
		}
		if row.Address != "" && row.Address != p.Address {
			from += " at " + row.Address
		}
		counts := map[string]int{}
		for where, n := range row.Reached {
			counts[columnOf(row, where)] += n
		}
		cells := append(make([]string, 0, len(columns)+3), from)
		for _, column := range columns {
			cells = append(cells, times(counts[column]))
		}
		verdict := map[Verdict]string{Closed: "ok", Leak: "LEAK", Unproved: "unproved"}[row.Verdict]
		if row.Message != "" {
			verdict += ": " + row.Message
		}
		rows = append(rows, append(cells, times(row.Nobody), verdict))
	}
	if err := output.NewPrinter(out).Print(rows...); err != nil {
		return err
	}
	switch p.Verdict {
	case Leak:
		fmt.Fprintln(out, "\nThe Service does not stay in its sites: connections left them. kubectl grid check looks "+
			"for the reason.")
	case Unproved:
		fmt.Fprintln(out, "\nNot proved that the Service stays in its sites; no connection was seen to leave its site.")
	default:
		fmt.Fprintf(out, "\nNo connection left its site. The Service %s.\n", p.Nodes.String())
	}
	output.After(out, p.Findings)
	return nil
}

// times formats a count for a table.
func times(n int) string {
	if n == 0 {
		return "·"
	}
	return strconv.Itoa(n)
}
