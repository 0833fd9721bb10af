package main

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) {
	docstest.CompareFlags(t, "application-grid-controller", newOptions().flags)
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, program, newOptions().program().Command())
}

// TestFlagsOfSuperEdge: docs/migrate.md says which flags were kept.
func TestFlagsOfSuperEdge(t *testing.T) {
	docstest.CompareWithSuperEdge(t, program, newOptions().flags)
}
