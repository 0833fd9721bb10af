package explain

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

// none is printed in place of an empty text.
const none = "<none>"

// Print writes an explanation as tables.
func Print(to io.Writer, e *view.Explanation) error {
	w := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	fmt.Fprintf(w, "Service:\t%s/%s\n", e.Namespace, e.Service)
	fmt.Fprintf(w, "Seen from node:\t%s\n", e.Node)
	switch {
	case e.Invalid != "":
		fmt.Fprintf(w, "topologyKeys:\t%s\n", e.Invalid)
	case len(e.TopologyKeys) == 0:
		fmt.Fprint(w, "topologyKeys:\tnone: every node sees all endpoints\n")
	default:
		fmt.Fprintf(w, "topologyKeys:\t%s%s\n", strings.Join(e.TopologyKeys, ", "), from(e.Annotation))
		var site []string
		for _, key := range e.TopologyKeys {
			if value, ok := e.Site[key]; ok {
				site = append(site, key+"="+value)
			}
		}
		fmt.Fprintf(w, "Its site:\t%s\n", cmp.Or(strings.Join(site, ", "), none))
		if len(e.Ports) == 0 {
			fmt.Fprintf(w, "Deciding key:\t%s\n", cmp.Or(e.DecidingKey, none))
		}
		for _, port := range e.Ports {
			fmt.Fprintf(w, "Deciding key:\t%s (%s)\n", cmp.Or(port.DecidingKey, none), nameOf(port))
		}
	}
	fmt.Fprintf(w, "Endpoints:\t%d kept, %d hidden\n", e.Kept, e.Hidden)
	for _, note := range e.Notes {
		fmt.Fprintf(w, "Note:\t%s\n", note)
	}
	if err := w.Flush(); err != nil || len(e.Endpoints) == 0 {
		return err
	}
	fmt.Fprint(w, "\nADDRESS\tTARGET\tNODE\tREADY\tVIEW\tREASON\n")
	for _, seen := range []string{"kept", "hidden"} {
		for _, x := range e.Endpoints {
			if x.Kept == (seen == "kept") {
				row := []string{
					strings.Join(x.Addresses, ","), cmp.Or(x.Target, none), cmp.Or(x.Node, none),
					strconv.FormatBool(x.Ready), seen, x.Reason,
				}
				fmt.Fprintln(w, strings.Join(row, "\t"))
			}
		}
	}
	return w.Flush()
}

// nameOf is a port such as "IPv4 web/TCP".
func nameOf(port view.ExplainedPort) string {
	name := port.AddressType + " "
	if port.Name != "" {
		name += port.Name + "/"
	}
	return name + port.Protocol
}

// from names the annotation that has the keys, where that is not topologyKeys.
func from(annotation string) string {
	if annotation == "" || annotation == v1.AnnotationTopologyKeys { // an older wrapper does not say
		return ""
	}
	return " (annotation " + annotation + ")"
}
