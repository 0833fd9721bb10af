package docstest

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// MigratePage says what became of the flags of SuperEdge's programs.
const MigratePage = "docs/migrate.md"

// CompareWithSuperEdge fails the test where a program's flags are not what docs/migrate.md says. Flags of which it says
// the same share a row, and its default.
func CompareWithSuperEdge(t *testing.T, program string, set *flags.Set) {
	t.Helper()
	const ignored = "Ignored: "
	all := map[string]*pflag.Flag{}
	set.VisitSections(func(_ string, section *pflag.FlagSet) {
		section.VisitAll(func(f *pflag.Flag) { all[f.Name] = f })
	})
	documented := map[string]bool{}
	for _, row := range Table(t, MigratePage, "### "+program) {
		for _, quoted := range Quoted(row[0]) {
			name := strings.TrimPrefix(quoted, "--")
			documented[name] = true
			f := all[name]
			if f == nil {
				t.Errorf("%s: %s has no flag --%s", MigratePage, program, name)
				continue
			}
			if wrong := compareFlag(f, row[1], row[2], strings.HasPrefix(f.Usage, ignored)); wrong != "" {
				t.Errorf("%s says of --%s of %s %q: %s", MigratePage, name, program, row[2], wrong)
			}
		}
	}
	if len(documented) == 0 {
		t.Errorf("%s has no table of the flags of %s", MigratePage, program)
	}
	for name, f := range all {
		if strings.HasPrefix(f.Usage, ignored) && !documented[name] {
			t.Errorf("%s does not say that --%s of %s is ignored", MigratePage, name, program)
		}
	}
}

// compareFlag says how a flag differs from its row of the table; "" if it does not. A default in parentheses depends on
// the machine.
func compareFlag(f *pflag.Flag, defaultThere, here string, ignored bool) string {
	switch {
	case strings.HasPrefix(here, "**kept**"):
		want := strings.Join(Quoted(defaultThere), "")
		if ignored || (f.DefValue != want && !strings.HasPrefix(defaultThere, "(")) {
			return "its default there is " + want + ", and here " + f.DefValue + ": " + f.Usage
		}
	case strings.HasPrefix(here, "**ignored**"):
		if !ignored {
			return "--help does not say that: " + f.Usage
		}
	case !strings.HasPrefix(here, "**changed**: ") || ignored:
		return "it is neither kept, nor ignored, nor changed"
	}
	return ""
}
