package main

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the commands and flags as they are.
func TestFlagsReference(t *testing.T) {
	root := newRoot(io.Discard, io.Discard)
	var b strings.Builder
	for _, c := range root.Commands() {
		if c.Name() == "completion" || c.Name() == "help" {
			continue
		}
		fmt.Fprintf(&b, "**kubectl grid %s**: %s\n\n%s\n", docstest.Cell(c.Use), c.Short,
			docstest.FlagTable(c.LocalNonPersistentFlags()))
		for _, sub := range c.Commands() {
			fmt.Fprintf(&b, "**kubectl grid %s %s**: %s\n\n%s\n", c.Name(), docstest.Cell(sub.Use), sub.Short,
				docstest.FlagTable(sub.LocalNonPersistentFlags()))
		}
	}
	fmt.Fprintf(&b, "**Of all**, as kubectl has them\n\n%s", docstest.FlagTable(root.PersistentFlags()))
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of kubectl-grid", b.String())
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, "kubectl-grid", newRoot(io.Discard, io.Discard))
}
