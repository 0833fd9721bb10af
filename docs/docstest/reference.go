package docstest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// ReferencePage has all flags, and the fields of the CRDs.
const ReferencePage = "docs/reference.md"

// sharedSections are the sections of flags that every program has.
var sharedSections = []string{"Logging", "Other"}

// CompareFlags fails the test where docs/reference.md does not have a program's flags as they are; see
// CompareGenerated. Of the sections in leftToHelp, whose flags are not the project's own, the page has the names. The
// sections that all programs have are on the page once. Ignored flags are named only: docs/migrate.md says what they
// were for.
func CompareFlags(t *testing.T, program string, set *flags.Set, leftToHelp ...string) {
	t.Helper()
	var b, shared, ignored strings.Builder
	var named []string
	set.VisitSections(func(title string, f *pflag.FlagSet) {
		switch {
		case slices.Contains(sharedSections, title):
			fmt.Fprintf(&shared, "**%s**\n\n%s\n", title, FlagList(f))
		case slices.Contains(leftToHelp, title):
			named = append(named, title)
		case title == "Ignored":
			fmt.Fprintf(&ignored, "**Ignored**, for SuperEdge's manifests: %s.\n\n", flagNames(f))
		default:
			fmt.Fprintf(&b, "**%s**\n\n%s\n", title, FlagList(f))
		}
	})
	if !slices.Equal(named, leftToHelp) {
		t.Errorf("%s has the sections %q, and %q are to be left to --help", program, named, leftToHelp)
	}
	b.WriteString(ignored.String())
	if len(named) > 0 {
		fmt.Fprintf(&b, "`%s --help` has the sections %s, which are those of k8s.io/apiserver.\n", program,
			strings.Join(named, ", "))
	}
	CompareGenerated(t, ReferencePage, "flags of "+program, b.String())
	CompareGenerated(t, ReferencePage, "flags of all programs", shared.String())
}

// flagNames are the names of flags, with commas between them.
func flagNames(set *pflag.FlagSet) string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) { names = append(names, "`--"+f.Name+"`") })
	return strings.Join(names, ", ")
}

// computed are the defaults that depend on the machine, or, as klog's, on what was set in this process before.
var computed = map[string]string{"worker": "number of CPUs", "v": "`0`"}

// FlagList is a list of flags, with the defaults that say something, and the first sentence of what they mean. Hidden
// flags are left out, and --help, which every program has.
func FlagList(set *pflag.FlagSet) string {
	var b strings.Builder
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := computed[f.Name]
		if value == "" && f.DefValue != "" && f.DefValue != "[]" && f.DefValue != "false" {
			value = "`" + f.DefValue + "`"
		}
		if value != "" {
			value = " (" + value + ")"
		}
		fmt.Fprintf(&b, "- %s%s: %s\n", name, value, FirstSentence(Line(f.Usage)))
	})
	return b.String()
}

// sentenceEnd is the end of a sentence that another one follows.
var sentenceEnd = regexp.MustCompile(`[a-z0-9)"]\. [A-Z]`)

// FirstSentence is what the page has of a text that a program or kubectl explain has as a whole.
func FirstSentence(text string) string {
	if at := sentenceEnd.FindStringIndex(text); at != nil {
		return text[:at[0]+2]
	}
	return text
}

// Essence is the first sentence of a text, and those that say a default.
func Essence(text string) string {
	kept := FirstSentence(text)
	for rest := text[len(kept):]; rest != ""; {
		rest = strings.TrimSpace(rest)
		sentence := FirstSentence(rest)
		if strings.Contains(sentence, "default") || strings.Contains(sentence, "left out") {
			kept += " " + sentence
		}
		rest = rest[len(sentence):]
	}
	return kept
}

// Line is a text as a line of a list.
func Line(text string) string {
	return strings.TrimSpace(strings.NewReplacer("\n", " ", "<", "&lt;").Replace(text))
}

// cellEscapes keep a text from being more than a cell of a table.
var cellEscapes = strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;")

// Cell is a text as a cell of a table.
func Cell(text string) string { return strings.TrimSpace(cellEscapes.Replace(text)) }
