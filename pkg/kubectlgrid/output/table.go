package output

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// The texts of cells.
const (
	None   = "<none>"   // of an empty cell
	All    = "<all>"    // of a cell for every site
	Others = "<others>" // of a cell for the sites that are not named
	gap    = 3          // how many spaces are between two columns
)

// Printer writes rows in columns, as kubectl does. A column never becomes narrower, so that later rows, such as those
// of --watch, are aligned with the earlier ones.
type Printer struct {
	out    io.Writer
	widths []int
}

// NewPrinter makes a printer that writes to out.
func NewPrinter(out io.Writer) *Printer { return &Printer{out: out} }

// Print writes rows. An empty cell is written as <none>.
func (p *Printer) Print(rows ...[]string) error {
	for _, row := range rows {
		for i := range row {
			// A cell is one line of one column, but messages of an API server may have several lines.
			row[i] = strings.NewReplacer("\n", " ", "\t", " ").Replace(cmp.Or(row[i], None))
			if i == len(p.widths) {
				p.widths = append(p.widths, 0)
			}
			p.widths[i] = max(p.widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			if i < len(row)-1 {
				cell = fmt.Sprintf("%-*s", p.widths[i]+gap, cell)
			}
			b.WriteString(cell)
		}
		b.WriteByte('\n')
	}
	if _, err := io.WriteString(p.out, b.String()); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// namedNodes is how many nodes a cell names; it counts the others.
const namedNodes = 3

// Nodes names the first few nodes for a cell, and counts the rest.
func Nodes(nodes []string) string {
	if len(nodes) <= namedNodes {
		return strings.Join(nodes, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(nodes[:namedNodes], ","), len(nodes)-namedNodes)
}
