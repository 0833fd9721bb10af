package flagstest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// row is what a table of docs/migrate.md says of a flag. Flags of which it says the same share a row, and its default.
type row struct {
	name, defaultThere, here string
}

// cell matches the text in backquotes at the beginning of a table's cell, and name a flag in one.
var (
	cell = regexp.MustCompile("^`([^`]*)`")
	name = regexp.MustCompile("`--([^`]*)`")
)

// CompareWithSuperEdge fails the test where the program's flags are not what docs/migrate.md says. The test runs in the
// program's directory.
func CompareWithSuperEdge(t *testing.T, program string, set *flags.Set) {
	t.Helper()
	if err := set.Parse(nil); err != nil {
		t.Fatal(err)
	}
	rows := table(t, program)
	documented := map[string]bool{}
	for _, r := range rows {
		documented[r.name] = true
		f := set.Lookup(r.name)
		if f == nil {
			t.Errorf("docs/migrate.md: %s has no flag --%s", program, r.name)
			continue
		}
		ignored := strings.HasPrefix(f.Usage, "Ignored: ")
		switch {
		case strings.HasPrefix(r.here, "**kept**"):
			computed := strings.HasPrefix(r.defaultThere, "(")
			if there, _ := quoted(r.defaultThere); ignored || (!computed && f.DefValue != there) {
				t.Errorf("docs/migrate.md says that --%s of %s is kept, with default %q; it is %q: %s", r.name,
					program, there,
					f.DefValue, f.Usage)
			}
		case strings.HasPrefix(r.here, "**ignored**"):
			if !ignored {
				t.Errorf("docs/migrate.md says that --%s of %s is ignored, --help does not: %s",
					r.name, program, f.Usage)
			}
		case !strings.HasPrefix(r.here, "**changed**: ") || ignored:
			t.Errorf("docs/migrate.md: --%s of %s is neither kept, nor ignored, nor changed: %s",
				r.name, program, r.here)
		}
	}
	set.VisitAll(func(f *pflag.Flag) {
		if strings.HasPrefix(f.Usage, "Ignored: ") && !documented[f.Name] {
			t.Errorf("docs/migrate.md does not say that --%s of %s is ignored", f.Name, program)
		}
	})
}

// table reads the table of a program's flags.
func table(t *testing.T, program string) []row {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", "docs", "migrate.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(data), "\n### "+program+"\n")
	if !found {
		t.Fatalf("docs/migrate.md has no section ### %s", program)
	}
	section, _, _ = strings.Cut(section, "\n#")
	var rows []row
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		for _, match := range name.FindAllStringSubmatch(cells[0], -1) {
			rows = append(rows, row{match[1], cells[1], cells[2]})
		}
	}
	if len(rows) == 0 {
		t.Fatalf("docs/migrate.md has no table of the flags of %s", program)
	}
	return rows
}

// quoted is the text in backquotes at the beginning of a cell.
func quoted(text string) (string, bool) {
	match := cell.FindStringSubmatch(text)
	if match == nil {
		return "", false
	}
	return match[1], true
}
