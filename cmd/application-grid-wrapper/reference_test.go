package main

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) {
	docstest.CompareFlags(t, "application-grid-wrapper", newOptions().flags)
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of application-grid-wrapper explain",
		docstest.FlagList(newExplainCommand().Flags()))
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of application-grid-wrapper probe",
		docstest.FlagList(newProbeCommand().Flags()))
}

// TestManual: docs/man has the pages of the command line as it is.
func TestManual(t *testing.T) {
	docstest.CompareManual(t, program, newOptions().program().Command())
}
