package main

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) {
	docstest.CompareFlags(t, "application-grid-wrapper", newOptions().flags)
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of application-grid-wrapper explain", docstest.FlagTable((&explainCommand{}).flags()))
	docstest.CompareGenerated(t, docstest.ReferencePage, "flags of application-grid-wrapper probe", docstest.FlagTable((&probeCommand{}).flags()))
}
