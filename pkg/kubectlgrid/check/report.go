package check

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// Severity says how bad a finding is.
type Severity string

// The severities. Unknown is what the API server did not tell, or cannot tell.
const (
	OK      Severity = "ok"
	Warning Severity = "warning"
	Failure Severity = "failure"
	Unknown Severity = "unknown"
)

// severities is the order in which findings are printed.
var severities = []Severity{Failure, Unknown, Warning, OK}

// Object is what a finding is about. A kind without a name means all objects of the kind.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// String is the object as a table names it.
func (o Object) String() string {
	name := o.Name
	if o.Namespace != "" && name != "" {
		name = o.Namespace + "/" + name
	}
	switch {
	case name == "" && o.Namespace != "":
		return o.Kind + " in " + o.Namespace
	case name == "":
		return o.Kind
	}
	return o.Kind + " " + name
}

// CheckRead is the check of the findings that something could not be read.
const CheckRead = "Read"

// Finding is one answer.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check is the name of the question, the same in every version.
	Check  string `json:"check"`
	Object Object `json:"object"`
	// Message is what was found, Action what to do about it. A finding that is not ok has an action.
	Message string `json:"message"`
	Action  string `json:"action,omitempty"`
}

// Report is all findings.
type Report struct {
	APIVersion string `json:"apiVersion"`
	// Kind is Preflight for Before and Check for After.
	Kind     string           `json:"kind"`
	Summary  map[Severity]int `json:"summary"`
	Findings []Finding        `json:"findings"`
	// Install is how to install on this cluster; only of Before, and only if nothing rules it out.
	Install *setup.Install `json:"install,omitempty"`
}

// Failed reports whether something has to be mended.
func (r *Report) Failed() bool { return r.Summary[Failure] > 0 }

// Incomplete reports whether something could not be read, so that what was not found may be there.
func (r *Report) Incomplete() bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Check == CheckRead && f.Severity == Unknown
	})
}

// report collects findings.
type report struct{ findings []Finding }

func (r *report) add(severity Severity, check string, about Object, message, action string) {
	r.findings = append(r.findings, Finding{severity, check, about, message, action})
}

func (r *report) ok(check string, about Object, format string, args ...any) {
	r.add(OK, check, about, fmt.Sprintf(format, args...), "")
}

// clean reports whether a check has no finding yet that is not ok.
func (r *report) clean(check string) bool {
	return !slices.ContainsFunc(r.findings, func(f Finding) bool { return f.Check == check && f.Severity != OK })
}

// finish sorts the findings: the worst first, those of one check together.
func (r *report) finish(kind string) *Report {
	slices.SortStableFunc(r.findings, func(a, b Finding) int {
		return cmp.Compare(slices.Index(severities, a.Severity), slices.Index(severities, b.Severity))
	})
	summary := map[Severity]int{}
	for _, severity := range severities {
		summary[severity] = 0
	}
	for _, f := range r.findings {
		summary[f.Severity]++
	}
	return &Report{APIVersion: output.APIVersion, Kind: kind, Summary: summary, Findings: r.findings}
}
