package check

import (
	"fmt"
	"io"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
)

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
	fmt.Fprintln(out)
	for _, note := range install.Notes {
		fmt.Fprintln(out, "- "+note)
	}
}
