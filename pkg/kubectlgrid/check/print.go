package check

import (
	"fmt"
	"io"
	"strings"
)

// namedFindings is how many findings of one check and severity a table has; the others are counted.
const namedFindings = 10

// Many says what becomes of many findings that are alike.
type Many int

// A table for reading has the first few of those that are alike, and counts the others.
const (
	Counted Many = iota
	Listed
)

// Print writes the findings for people.
func (r *Report) Print(out io.Writer, many Many) {
	type alike struct {
		severity Severity
		check    string
	}
	seen, left := map[alike]int{}, 0
	for _, f := range r.Findings {
		if f.Severity == OK {
			fmt.Fprintf(out, "%-9s%s: %s\n", "ok", f.Object, f.Message)
			continue
		}
		if seen[alike{f.Severity, f.Check}]++; seen[alike{f.Severity, f.Check}] > namedFindings && many == Counted {
			left++
			continue
		}
		fmt.Fprintf(out, "%-9s%s: %s\n", strings.ToUpper(string(f.Severity)), f.Object, oneLine(f.Message))
		fmt.Fprintf(out, "         → %s\n", oneLine(f.Action))
	}
	if left > 0 {
		fmt.Fprintf(out, "\n%s like the ones above: -o wide has all.\n", count(left, "more finding"))
	}
	fmt.Fprintf(out, "\n%s, %s, %d unknown, %d ok\n", count(r.Summary[Failure], "failure"),
		count(r.Summary[Warning], "warning"),
		r.Summary[Unknown], r.Summary[OK])
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

// oneLine is a text without line breaks: what an API server says may have some.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
