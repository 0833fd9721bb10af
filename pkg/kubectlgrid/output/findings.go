package output

import (
	"fmt"
	"io"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// namedFindings is how many similar findings are printed; others are counted.
const namedFindings = 10

// Finding writes a finding for people, with what to do about it.
func Finding(out io.Writer, f gridview.Finding) {
	severity := strings.ToUpper(string(f.Severity))
	if f.Severity == gridview.OK {
		severity = string(f.Severity)
	}
	fmt.Fprintf(out, "%-9s%s: %s\n", severity, f.Object, oneLine(f.Message))
	if f.Action != "" {
		fmt.Fprintf(out, "         → %s\n", oneLine(f.Action))
	}
}

// After writes the findings that concern an answer, after it.
func After(out io.Writer, findings []gridview.Finding) {
	if len(findings) > 0 {
		fmt.Fprintln(out)
	}
	Findings(out, findings)
}

// Findings writes the first few of similar findings, and counts the others.
func Findings(out io.Writer, findings []gridview.Finding) {
	seen, left := map[[2]string]int{}, 0
	for _, f := range findings {
		of := [2]string{string(f.Severity), f.Check}
		if seen[of]++; f.Severity != gridview.OK && seen[of] > namedFindings {
			left++
			continue
		}
		Finding(out, f)
	}
	if left > 0 {
		fmt.Fprintf(out, "\n%s like the ones above: kubectl grid check prints all with -o wide.\n",
			enumerate.Count(left, "more finding"))
	}
}

// oneLine returns a text without line breaks, which messages of an API server may have.
func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// WhyNot describes the error of a request that the answer can do without.
func WhyNot(err error) string {
	if apierrors.IsForbidden(err) {
		return "you may not read them: " + err.Error()
	}
	return err.Error()
}
