package main

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are. Those of explain and probe are left to --help.
func TestFlagsReference(t *testing.T) {
	docstest.CompareFlags(t, "application-grid-wrapper", newOptions().flags)
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, program, newOptions().program().Command())
}
