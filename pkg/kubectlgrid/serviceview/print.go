package serviceview

import (
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// Kind is that of a view as JSON or YAML.
const Kind = "ServiceView"

// Print writes a view in a format.
func Print(out io.Writer, view *gridview.View, format output.Format) error {
	if format.Encoded() {
		view.TypeMeta = output.TypeMeta(Kind)
		return output.Encode(out, view, format)
	}
	fmt.Fprintln(out, Title(view))
	if view.Error == "" && view.ExternalName == "" {
		fmt.Fprintln(out)
		if err := output.NewPrinter(out).Print(siteRows(view)...); err != nil {
			return err
		}
	}
	if len(view.Hidden) > 0 {
		fmt.Fprintln(out, "\nEndpoints that no node sees:")
		rows := [][]string{{"ENDPOINT", "POD", "ON NODE", "STATE", "REASON"}}
		for _, e := range view.Hidden {
			rows = append(rows, []string{strings.Join(e.Addresses, ","), e.Pod, e.Node, ready(e.Endpoint), e.Reason})
		}
		if err := output.NewPrinter(out).Print(rows...); err != nil {
			return err
		}
	}
	if last := view.Conclusion(); last != "" {
		fmt.Fprintf(out, "\n%s\n", last)
	}
	output.After(out, view.Findings)
	return nil
}

// Title names the Service of a view, and its keys, in one line, or in several if its annotation is wrong.
func Title(view *gridview.View) string {
	title := fmt.Sprintf("Service %s/%s", view.Namespace, view.Service)
	if view.ServiceGrid != "" {
		title += " of ServiceGrid " + view.ServiceGrid
	}
	switch {
	case view.ExternalName != "":
		return title + " is a name of " + view.ExternalName + ", and has no endpoints."
	case view.Error != "":
		return fmt.Sprintf("%s\nERROR: %s\nUntil it is repaired, no node sees any endpoint.", title, view.Error)
	case !view.TopologyKeys.Governed():
		return title + " is not governed: it has no topologyKeys, and every node sees all endpoints."
	}
	title += fmt.Sprintf(", topologyKeys [%s]", view.TopologyKeys.Quoted())
	if view.Annotation != v1.AnnotationTopologyKeys {
		title += " (annotation " + view.Annotation + ")"
	}
	return title
}

// siteRows returns the rows of all sites, below a header.
func siteRows(view *gridview.View) [][]string {
	rows := [][]string{{"SITE", "NODES", "VERDICT", "KEY", "READY", "ENDPOINT", "POD", "ON NODE", "STATE"}}
	for _, site := range view.Sites {
		first := []string{site.Name, output.Nodes(site.Nodes), site.Verdict.Word, site.Key,
			fmt.Sprintf("%d/%d", site.Ready, len(site.Endpoints))}
		if !gridview.HasSites(view.TopologyKeys) {
			first[0], first[3] = output.All, "-"
		}
		if len(site.Endpoints) == 0 {
			rows = append(rows, append(first, output.None, "-", "-", "-"))
		}
		for _, e := range site.Endpoints {
			rows = append(rows, append(slices.Clone(first), strings.Join(e.Addresses, ","), e.Pod, e.Node, ready(e)))
		}
	}
	return rows
}

func ready(e gridview.Endpoint) string {
	if e.Ready {
		return "Ready"
	}
	return "NotReady"
}
