package check

import (
	"fmt"
	"io"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

// Print writes the findings for people. It prints the first few similar ones, and counts the others. The format wide
// has all.
func (r *Report) Print(out io.Writer, format output.Format) {
	type alike struct {
		severity Severity
		check    string
	}
	seen, left := map[alike]int{}, 0
	for _, f := range r.Findings {
		if seen[alike{f.Severity, f.Check}]++; f.Severity != OK && format != output.Wide &&
			seen[alike{f.Severity, f.Check}] > output.NamedFindings {
			left++
			continue
		}
		output.Finding(out, f)
	}
	if left > 0 {
		fmt.Fprintf(out, "\n%s like the ones above: -o wide has all.\n", enumerate.Count(left, "more finding"))
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
	fmt.Fprintln(out)
	for _, note := range install.Notes {
		fmt.Fprintln(out, "- "+note)
	}
}
