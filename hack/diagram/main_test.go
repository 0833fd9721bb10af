package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestDiagram: docs/sites.svg is well-formed XML, as it is drawn here, and has colours for a dark theme.
func TestDiagram(t *testing.T) {
	t.Parallel()
	drawn := draw()
	decoder := xml.NewDecoder(strings.NewReader(drawn))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(drawn, "prefers-color-scheme:dark") {
		t.Error("it has one theme")
	}
	stored, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file)))
	if err != nil || string(stored) != drawn {
		t.Errorf("%s is stale: run make diagram, and commit it (%v)", file, err)
	}
}
