package main

import (
	"testing"

	"github.com/application-grid/application-grid/docs/docstest"
)

// TestFlagsReference: docs/reference.md has the flags as they are.
func TestFlagsReference(t *testing.T) { docstest.CompareFlags(t, program, newOptions().flags) }
