package docstest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/flags"
)

// ReferencePage has all flags, and the fields of the CRDs.
const ReferencePage = "docs/reference.md"

// CompareFlags fails the test where docs/reference.md does not have a program's flags as they are; see
// CompareGenerated.
func CompareFlags(t *testing.T, program string, set *flags.Set) {
	t.Helper()
	var b strings.Builder
	set.VisitSections(func(title string, f *pflag.FlagSet) {
		fmt.Fprintf(&b, "**%s**\n\n%s\n", title, FlagTable(f))
	})
	CompareGenerated(t, ReferencePage, "flags of "+program, b.String())
}

// computed are the defaults that depend on the machine, or, as klog's, on what was set in this process before.
var computed = map[string]string{"worker": "number of CPUs", "v": "`0`"}

// FlagTable is a table of flags. Hidden ones are left out, and --help, which every program has.
func FlagTable(set *pflag.FlagSet) string {
	var b strings.Builder
	b.WriteString("| flag | type | default | meaning |\n| --- | --- | --- | --- |\n")
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := computed[f.Name]
		switch {
		case value != "":
		case f.DefValue != "":
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", name, f.Value.Type(), value, Cell(f.Usage))
	})
	return b.String()
}

// cellEscapes keep a text from being more than a cell of a table.
var cellEscapes = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")

// Cell is a text as a cell of a table.
func Cell(text string) string { return strings.TrimSpace(cellEscapes.Replace(text)) }
