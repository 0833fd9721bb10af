package docstest

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// ManualPages is the directory of the man pages. A release has them in its archives, and make install installs them.
const ManualPages = "docs/man"

// CompareManual fails the test where the man pages of a program, one for it and one for each of its commands, are not
// what is generated from its command line; with the flag -update it writes them instead. program is the name that the
// pages' names begin with.
func CompareManual(t *testing.T, program string, root *cobra.Command) {
	t.Helper()
	root.InitDefaultCompletionCmd("completion")
	pages := map[string]string{}
	addManual(t, root, pages)
	directory := filepath.Join(Root(t), ManualPages)
	there, err := filepath.Glob(filepath.Join(directory, program+"*.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if _, wanted := pages[filepath.Base(file)]; wanted {
			continue
		}
		if !*update {
			t.Errorf("%s is of no command: run make generate, and commit it", file)
		} else if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		file := filepath.Join(directory, name)
		if *update {
			//nolint:gosec // a page that anyone may read
			if err := os.WriteFile(file, []byte(pages[name]), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(file) //nolint:gosec // a page of this repository
		if err != nil || string(data) != pages[name] {
			t.Errorf("%s is stale: run make generate, and commit it (%v)", file, err)
		}
	}
}

// date is that of a page, which would change with every build.
var date = regexp.MustCompile(`(?m)^(\.TH "[^"]*" "1") "[^"]*"`)

// addManual adds the page of a command, and those of its commands.
func addManual(t *testing.T, cmd *cobra.Command, pages map[string]string) {
	t.Helper()
	if !cmd.IsAvailableCommand() && cmd.HasParent() {
		return
	}
	cmd.DisableAutoGenTag = true
	if cmd.Name() == "completion" {
		cmd.RemoveCommand(cmd.Commands()...) // the page says enough of the shells
	}
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if value, ok := computed[f.Name]; ok {
			f.DefValue = strings.Trim(value, "`")
		}
	})
	var b bytes.Buffer
	header := &doc.GenManHeader{
		Section: "1",
		Source:  "application-grid",
		Manual:  "application-grid",
		Date:    &time.Time{},
	}
	if err := doc.GenMan(cmd, header, &b); err != nil {
		t.Fatal(err)
	}
	pages[strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"] = date.ReplaceAllString(b.String(), `$1 ""`)
	for _, sub := range cmd.Commands() {
		addManual(t, sub, pages)
	}
}
