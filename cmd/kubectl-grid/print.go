package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
)

const (
	// none and all are in a table for what is not there, and for every unit.
	none = "<none>"
	all  = "<all>"
	// others stands for the units that a large status only counts.
	others = "<others>"
	// namedNodes is how many nodes a table names before it only counts.
	namedNodes = 3
)

// printEncoded prints a value as JSON or YAML, and tells whether that was the format.
func printEncoded(out io.Writer, value any, output format) (done bool, err error) {
	var data []byte
	switch output {
	case formatJSON:
		data, err = json.MarshalIndent(value, "", "    ")
		data = append(data, '\n')
	case formatYAML:
		data, err = yaml.Marshal(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("printing: %w", err)
	}
	if _, err := out.Write(data); err != nil {
		return true, fmt.Errorf("printing: %w", err)
	}
	return true, nil
}

// printTable prints rows in columns, as kubectl does.
func printTable(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		for i := range row {
			if row[i] == "" {
				row[i] = none
			}
		}
		// A cell is a line: what an API server says may be several.
		fmt.Fprintln(w, strings.ReplaceAll(strings.Join(row, "\t"), "\n", " "))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// printGrids prints the answer of status.
func printGrids(out io.Writer, grids []gridview.Grid, output format, namespaces bool) error {
	list := struct {
		Grids []gridview.Grid `json:"grids"`
	}{grids}
	if grids == nil {
		list.Grids = []gridview.Grid{}
	}
	if done, err := printEncoded(out, list, output); done || len(grids) == 0 {
		return err
	}
	header := []string{"KIND", "GRID", "KEY", "UNIT", "DESIRED", "READY", "UPDATED"}
	if output == formatWide {
		header = append(header, "AVAILABLE", "NODES", "TEMPLATE", "CHILD", "OTHERS OWN")
	}
	if namespaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	rows := [][]string{append(header, "STATE")}
	for _, g := range grids {
		add := func(unit string, cells []string, child, state string) {
			row := append([]string{g.Kind, g.Name, g.Key, unit}, cells[:3]...)
			if output == formatWide {
				row = append(row, cells[3], cells[4], cells[5], child, cells[6])
			}
			if namespaces {
				row = append([]string{g.Namespace}, row...)
			}
			rows = append(rows, append(row, state))
		}
		blank := []string{"-", "-", "-", "-", "-", "-", "-"}
		switch {
		case g.Problem != "" && len(g.Units) == 0 && g.Service == "":
			add(none, blank, "-", g.Problem)
		case g.Problem != "":
			add(all, blank, orDash(g.Service), g.Problem)
		case g.Service != "":
			add(all, blank, g.Service, fmt.Sprintf("Ready: Service %s for %s", g.Service, count(int(g.UnitCount), "unit")))
		}
		for _, u := range g.Units {
			nodes := "-"
			if u.Nodes != nil {
				nodes = strconv.Itoa(*u.Nodes)
			}
			template := u.Template
			if template == "" {
				template = string(v1.DefaultTemplate)
			}
			state := string(u.Phase)
			if u.Problem != "" {
				state += ": " + u.Problem
			}
			add(u.Name, []string{number(u.Desired), number(u.Ready), number(u.Updated), number(u.Available), nodes, template, orDash(u.Others)}, u.Child, state)
		}
		if g.UnlistedReady > 0 {
			add(others, blank, "-", "Ready: "+count(int(g.UnlistedReady), "unit"))
		}
		if g.Unlisted > 0 {
			add(others, blank, "-", fmt.Sprintf("Not ready: %s that the status has no room for", count(int(g.Unlisted), "unit")))
		}
	}
	return printTable(out, rows)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// printView prints the answer of view.
func printView(out io.Writer, view *gridview.View, output format) error {
	if done, err := printEncoded(out, view, output); done {
		return err
	}
	keys, err := json.Marshal(view.TopologyKeys)
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	title := fmt.Sprintf("Service %s/%s", view.Namespace, view.Service)
	if view.ServiceGrid != "" {
		title += " of ServiceGrid " + view.ServiceGrid
	}
	switch {
	case view.Error != "":
		fmt.Fprintf(out, "%s\nERROR: %s\nUntil it is mended, no node sees any endpoint.\n", title, view.Error)
	case !view.TopologyKeys.Governed():
		fmt.Fprintf(out, "%s is not governed: it has no topologyKeys, and every node sees all endpoints.\n", title)
	default:
		fmt.Fprintf(out, "%s, topologyKeys %s%s\n", title, keys, from(view.Annotation))
	}
	if view.Error == "" {
		fmt.Fprintln(out)
		rows := [][]string{{"UNIT", "NODES", "KEY", "READY", "ENDPOINT", "POD", "ON NODE", "STATE"}}
		for _, unit := range view.Units {
			first := []string{unit.Name, nameNodes(unit.Nodes), unit.Key, fmt.Sprintf("%d/%d", unit.Ready, len(unit.Endpoints))}
			if !view.TopologyKeys.Governed() {
				first[0], first[2] = all, "-"
			}
			if len(unit.Endpoints) == 0 {
				rows = append(rows, append(first, none, "-", "-", "-"))
			}
			for _, e := range unit.Endpoints {
				rows = append(rows, append(slices.Clone(first), strings.Join(e.Addresses, ","), e.Pod, e.Node, ready(e)))
			}
		}
		if err := printTable(out, rows); err != nil {
			return err
		}
	}
	if len(view.Hidden) > 0 {
		fmt.Fprintln(out, "\nEndpoints that no node sees:")
		rows := [][]string{{"ENDPOINT", "POD", "ON NODE", "STATE", "REASON"}}
		for _, e := range view.Hidden {
			rows = append(rows, []string{strings.Join(e.Addresses, ","), e.Pod, e.Node, ready(e.Endpoint), e.Reason})
		}
		if err := printTable(out, rows); err != nil {
			return err
		}
	}
	fmt.Fprint(out, conclusion(view))
	return nil
}

// from names the annotation that says the keys, where that is not topologyKeys.
func from(annotation string) string {
	if annotation == v1.AnnotationTopologyKeys {
		return ""
	}
	return " (annotation " + annotation + ")"
}

// conclusion is the last line: whether the closed loop holds.
func conclusion(view *gridview.View) string {
	units := 0
	for _, unit := range view.Units {
		if unit.Name != "" {
			units++
		}
	}
	switch {
	case view.Error != "":
		return ""
	case !view.TopologyKeys.Governed():
		if len(view.Without) > 0 {
			return "\nNo endpoint is ready.\n"
		}
		return ""
	case units == 0:
		return fmt.Sprintf("\nNo node has the label %s: there are no units.\n", strings.Join(view.TopologyKeys, " or "))
	case view.Closed:
		return fmt.Sprintf("\nThe closed loop holds: every one of %s has a ready endpoint.\n", count(units, "unit"))
	}
	return fmt.Sprintf("\nThe closed loop does not hold: %d of %s without a ready endpoint: %s\n", len(view.Without), count(units, "unit"), strings.Join(view.Without, ", "))
}

func ready(e gridview.Endpoint) string {
	if e.Ready {
		return "Ready"
	}
	return "NotReady"
}

// nameNodes names the first few nodes, and counts the rest.
func nameNodes(nodes []string) string {
	if len(nodes) <= namedNodes {
		return strings.Join(nodes, ",")
	}
	return fmt.Sprintf("%s,+%d", strings.Join(nodes[:namedNodes], ","), len(nodes)-namedNodes)
}
