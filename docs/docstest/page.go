package docstest

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is generated into the documentation, in place of failing where "+
	"it is stale")

// Root is the repository's directory: the one above the test's own that has the go.mod.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		above := filepath.Dir(dir)
		if above == dir {
			t.Fatal("found no go.mod above the test's directory")
		}
		dir = above
	}
}

// Page reads a page by its path in the repository.
func Page(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(Root(t), name)) //nolint:gosec // a page of this repository
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// CompareGenerated fails the test if the part of a page between the marks <!-- begin NAME --> and <!-- end NAME -->
// is not what is generated; with the flag -update it writes it there instead. Tests that write to one page must not
// run at the same time: go test -p 1.
func CompareGenerated(t *testing.T, name, part, generated string) {
	t.Helper()
	begin, end := "<!-- begin "+part+" (generated) -->\n", "<!-- end "+part+" -->\n"
	page := Page(t, name)
	before, rest, found := strings.Cut(page, begin)
	old, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no part between %q and %q", name, begin, end)
	}
	generated = "\n" + strings.Trim(generated, "\n") + "\n\n"
	switch {
	case old == generated:
	case *update:
		page := []byte(before + begin + generated + end + after)
		err := os.WriteFile(filepath.Join(Root(t), name), page, 0o644) //nolint:gosec // a page that anyone may read
		if err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s: the part %s is stale: run make generate, and commit it. It should be:\n%s", name, part, generated)
	}
}

// Table reads the rows of all tables below a heading, up to the next heading of the same or a higher level.
func Table(t *testing.T, name, heading string) [][]string {
	t.Helper()
	_, section, found := strings.Cut(Page(t, name), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", name, heading)
	}
	level, _, _ := strings.Cut(heading, " ")
	var rows [][]string
	for line := range strings.Lines(section) {
		if marks, _, ok := strings.Cut(line, " "); ok && strings.Trim(marks, "#") == "" && marks != "" &&
			len(marks) <= len(level) {
			break
		}
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows
}

// List reads the lines of all lists below a heading, up to the next heading, without their marks.
func List(t *testing.T, name, heading string) []string {
	t.Helper()
	_, section, found := strings.Cut(Page(t, name), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", name, heading)
	}
	section, _, _ = strings.Cut(section, "\n#")
	var items []string
	for line := range strings.Lines(section) {
		if item, ok := strings.CutPrefix(strings.TrimSpace(line), "- "); ok {
			items = append(items, item)
		}
	}
	return items
}

// Quoted are the texts in backquotes in a cell.
func Quoted(cell string) []string {
	var texts []string
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			texts = append(texts, part)
		}
	}
	return texts
}
