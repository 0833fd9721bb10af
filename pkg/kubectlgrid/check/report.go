package check

import (
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

type (
	// Severity is that of a finding.
	Severity = gridview.Severity
	// Object is what a finding is about.
	Object = gridview.Object
	// Finding is one answer.
	Finding = gridview.Finding
)

// The severities.
const (
	OK      = gridview.OK
	Warning = gridview.Warning
	Failure = gridview.Failure
	Unknown = gridview.Unverified
)

// Report is all findings.
type Report struct {
	metav1.TypeMeta `json:",inline"` // the kind is Preflight for Before and Check for After

	Summary  map[Severity]int `json:"summary"`
	Findings []Finding        `json:"findings"`
	// Install is how to install on this cluster; only of Before, and only if nothing rules it out.
	Install *setup.Install `json:"install,omitempty"`
}

// Failed reports whether a failure was found.
func (r *Report) Failed() bool { return r.Summary[Failure] > 0 }

// Incomplete reports whether something could not be read, so that findings may be missing.
func (r *Report) Incomplete() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == gridview.CheckRead })
}

// row is a line of a table of conditions: the finding if the condition holds.
type row struct {
	holds           bool
	severity        Severity
	about           Object
	message, action string
}

// first adds the first row of a table that holds, as all does.
func (r *Report) first(check, node string, rows ...row) {
	if i := slices.IndexFunc(rows, func(row row) bool { return row.holds }); i >= 0 {
		r.all(check, node, rows[i])
	}
}

// all adds every row of a table that holds. node is the node that the rows are about, if it is a single one; a message
// about something on it names it.
func (r *Report) all(check, node string, rows ...row) {
	for _, row := range rows {
		if node != "" && row.about.Kind != kindNode {
			row.message = "on node " + node + " " + row.message
		}
		if row.holds {
			r.Findings = append(r.Findings, Finding{Severity: row.severity, Check: check, Object: row.about,
				Message: row.message, Action: row.action, Node: node})
		}
	}
}

func (r *Report) ok(check string, about Object, format string, args ...any) {
	r.all(check, "", row{true, OK, about, fmt.Sprintf(format, args...), ""})
}

// well adds the finding OK to a check without other findings, if the data for the check are known.
func (r *Report) well(check string, known bool, about Object, format string, args ...any) {
	if known && r.clean(check) {
		r.ok(check, about, format, args...)
	}
}

// clean reports whether a check has no finding yet that is not ok.
func (r *Report) clean(check string) bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == check && f.Severity != OK })
}

// finish adds the findings about what could not be read, sorts all by the attention that they need, those of one check
// together, and counts them.
func (r *Report) finish(kind string, unread []Finding) *Report {
	r.Findings = append(r.Findings, unread...)
	slices.SortStableFunc(r.Findings, gridview.BySeverity)
	r.TypeMeta = output.TypeMeta(kind)
	r.Summary = map[Severity]int{OK: 0, Warning: 0, Failure: 0, Unknown: 0}
	for _, f := range r.Findings {
		r.Summary[f.Severity]++
	}
	return r
}

func named(kind, namespace, name string) Object {
	return Object{Kind: kind, Namespace: namespace, Name: name}
}

// Print writes the findings for people: those that are not like many others, or, in the format wide, all.
func (r *Report) Print(out io.Writer, format output.Format) {
	if format == output.Wide {
		for _, f := range r.Findings {
			output.Finding(out, f)
		}
	} else {
		output.Findings(out, r.Findings)
	}
	fmt.Fprintf(out, "\n%s, %s, %d unknown, %d ok\n", enumerate.Count(r.Summary[Failure], "failure"),
		enumerate.Count(r.Summary[Warning], "warning"), r.Summary[Unknown], r.Summary[OK])
}

// PrintInstall writes how to install, for people.
func (r *Report) PrintInstall(out io.Writer) {
	install := r.Install
	if install == nil {
		return
	}
	fmt.Fprintf(out, "\nInstall it here with this (docs/install.md; -o values prints values of the chart):\n\n%s",
		install.Kustomization)
	if install.Kubeconfig != "" {
		fmt.Fprintf(out, "\n# edge/kubeconfig.conf\n%s", install.Kubeconfig)
	}
	fmt.Fprintf(out, "\n- %s\n", strings.Join(install.Notes, "\n- ")) // there are some always
}
