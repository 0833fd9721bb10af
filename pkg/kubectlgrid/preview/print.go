package preview

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// Kind is that of a preview as JSON or YAML.
const Kind = "ServicePreview"

// namedSites is how many sites a cell names; it counts the others.
const namedSites = 3

// Columns say which columns a table has.
type Columns struct {
	Namespaces, NoHeader bool
}

// Print writes a preview in a format. A table ends with advice, unless the header is left out.
func Print(out io.Writer, p *gridview.Preview, format output.Format, columns Columns) error {
	if format.Encoded() {
		p.TypeMeta = output.TypeMeta(Kind)
		return output.Encode(out, p, format)
	}
	var rows [][]string
	if !columns.NoHeader && len(p.Services) > 0 {
		header := []string{"NAMESPACE", "NAME", "READY", "FOREIGN", "SITES WITHOUT", "STATE"}
		if format == output.Wide {
			header = append(header, "READY IN SITES", "COMMAND")
		}
		rows = append(rows, header)
		fmt.Fprintf(out, "The values of %s are %s: %s.", p.Key, enumerate.Count(len(p.Sites), "site"),
			enumerate.First(siteNames(p), namedSites))
		if p.NodesWithoutSite > 0 {
			fmt.Fprintf(out, " The label is missing on %s.", enumerate.Count(p.NodesWithoutSite, "node"))
		}
		fmt.Fprint(out, "\n\n")
	}
	for i := range p.Services {
		s := &p.Services[i]
		row := []string{s.Namespace, s.Name, strconv.Itoa(s.Ready), percent(s.Foreign), dark(s.Dark, len(p.Sites)),
			state(p.Key, s)}
		if format == output.Wide {
			row = append(row, perSite(s.ReadyIn), cmp.Or(s.Command, "-"))
		}
		rows = append(rows, row)
	}
	if !columns.Namespaces {
		for i := range rows {
			rows[i] = rows[i][1:]
		}
	}
	if err := output.NewPrinter(out).Print(rows...); err != nil {
		return err
	}
	if columns.NoHeader {
		return nil
	}
	if len(p.Services) > 0 {
		fmt.Fprint(out, conclusion(p))
	}
	output.After(out, p.Findings)
	return nil
}

func siteNames(p *gridview.Preview) []string {
	names := make([]string, 0, len(p.Sites))
	for _, u := range p.Sites {
		names = append(names, fmt.Sprintf("%s (%s)", u.Name, enumerate.Count(u.Nodes, "node")))
	}
	return names
}

// percent formats a share; it never rounds to 0 or 100 %.
func percent(share *float64) string {
	if share == nil {
		return "-"
	}
	rounded := math.Round(*share * 100)
	switch {
	case rounded == 0 && *share > 0:
		return "<1%"
	case rounded == 100 && *share < 1:
		return ">99%"
	default:
		return fmt.Sprintf("%.0f%%", rounded)
	}
}

func dark(sites []string, of int) string {
	if len(sites) == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d: %s", len(sites), of, enumerate.First(sites, namedSites))
}

func state(key string, s *gridview.PreviewService) string {
	text := "open"
	switch {
	case slices.Equal(s.TopologyKeys, []string{key}):
		text = "site-local"
	case len(s.TopologyKeys) > 0:
		text = "by " + strings.Join(s.TopologyKeys, ", ")
	}
	if s.Message != "" {
		text += "; " + s.Message
	}
	return text
}

func perSite(readyIn map[string]int) string {
	cells := make([]string, 0, len(readyIn))
	for _, site := range slices.Sorted(maps.Keys(readyIn)) {
		cells = append(cells, fmt.Sprintf("%s=%d", site, readyIn[site]))
	}
	return strings.Join(cells, ",")
}

// conclusion returns the meaning of the table, and what to do next.
func conclusion(p *gridview.Preview) string {
	var example *gridview.PreviewService
	leaving := 0
	for i := range p.Services {
		s := &p.Services[i]
		switch {
		case len(s.Dark) > 0:
			leaving++
		case s.Command != "" && s.Ready > 0 && example == nil:
			example = s
		}
	}
	var b strings.Builder
	b.WriteString("\nFOREIGN is the share of the endpoints that a node is sent to today which is not in its own " +
		"site.\n")
	if leaving > 0 {
		fmt.Fprintf(&b,
			"%s would leave sites without a ready endpoint if site-local: first run a copy in each of them, as "+
				"a DeploymentGrid does.\n", enumerate.Count(leaving, "Service"))
	}
	if example != nil {
		fmt.Fprintf(&b, "This makes one site-local, once application-grid is installed (kubectl grid check --pre):\n"+
			"  %s\n", example.Command)
	}
	return b.String()
}
