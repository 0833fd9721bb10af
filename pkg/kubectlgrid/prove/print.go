package prove

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// columnSites is the largest number of sites that have their own columns.
const columnSites = 8

// Print writes the table of a proof for people.
func (p *Proof) Print(out io.Writer) {
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
	reached := func(row Row) map[string]int { return row.Reached }
	if len(columns) > columnSites {
		columns = []string{"own site", "others"}
		reached = func(row Row) map[string]int {
			sums := map[string]int{}
			for site, n := range row.Reached {
				if site == row.Site {
					sums["own site"] += n
				} else {
					sums["others"] += n
				}
			}
			return sums
		}
	}
	rows := make([][]string, 0, 1+len(p.Rows))
	rows = append(rows, slices.Concat([]string{"from"}, columns, []string{"nobody", ""}))
	for _, row := range p.Rows {
		from := row.Site
		if row.Node != "" {
			from += " (" + row.Node + ")"
		}
		if row.Address != "" && row.Address != p.Address {
			from += " at " + row.Address
		}
		cells, counts := append(make([]string, 0, len(columns)+3), from), reached(row)
		for _, column := range columns {
			cells = append(cells, times(counts[column]))
		}
		verdict := map[Verdict]string{Closed: "ok", Leak: "LEAK", Unproved: "unproved"}[row.Verdict]
		if row.Message != "" {
			verdict += ": " + strings.Join(strings.Fields(row.Message), " ")
		}
		rows = append(rows, append(cells, times(row.Nobody), verdict))
	}
	printCounts(out, rows)
	switch p.Verdict {
	case Leak:
		fmt.Fprintln(out, "\nThe Service does not stay in its sites: connections left them. kubectl grid check looks "+
			"for the reason.")
	case Unproved:
		fmt.Fprintln(out, "\nNot proved that the Service stays in its sites; no connection was seen to leave its site.")
	default:
		fmt.Fprintf(out, "\nNo connection left its site. The Service %s.\n", p.Nodes.String())
	}
	output.Findings(out, p.Findings)
}

// printCounts prints rows with the first and the last column to the left, and counts to the right.
func printCounts(out io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			switch i {
			case 0:
				fmt.Fprintf(&line, "%-*s", widths[i], cell)
			case len(row) - 1:
				line.WriteString("   " + cell)
			default:
				fmt.Fprintf(&line, "   %*s", widths[i], cell)
			}
		}
		fmt.Fprintln(out, strings.TrimRight(line.String(), " "))
	}
}

// times formats a count for a table.
func times(n int) string {
	if n == 0 {
		return "·"
	}
	return strconv.Itoa(n)
}
