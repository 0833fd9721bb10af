package main

import (
	"os"
	"strings"
	"testing"
)

func TestNotesOf(t *testing.T) {
	const changelog = "# Changelog\n" +
		"\n" +
		"## [Unreleased]\n" +
		"\n" +
		"- soon\n" +
		"\n" +
		"## [1.1.0]\n" +
		"\n" +
		"- undated\n" +
		"\n" +
		"## [1.0.1] - 2027-02-01\n" +
		"\n" +
		"## [1.0.0] - 2027-01-31\n" +
		"\n" +
		"### Added\n" +
		"\n" +
		"- one\n" +
		"- two\n"
	for version, want := range map[string]string{
		"v1.0.0": "### Added\n\n- one\n- two", "v1.0.1": "error: says nothing of 1.0.1",
		"v2.0.0-rc.1": "- soon", "v1.1.0": "error: has no date",
		"v1.2.0": "error: no section of 1.2.0: want ## [1.2.0] - ", "v1.0": "error: no section of 1.0:",
	} {
		notes, err := notesOf(changelog, version)
		wrong, fails := strings.CutPrefix(want, "error: ")
		if fails && (err == nil || !strings.Contains(err.Error(), wrong)) || !fails && (err != nil || notes != want) {
			t.Errorf("%s: got %q, %v; want %q", version, notes, err, want)
		}
	}
}

// TestChangelogCanBeReleased: what is in the changelog becomes the notes of a release by a version and a date alone.
func TestChangelogCanBeReleased(t *testing.T) {
	data, err := os.ReadFile("../../" + changelogFile)
	must(t, err)
	dated := strings.Replace(string(data), "## [Unreleased]", "## [9.9.9] - 2030-01-01", 1)
	if notes, err := notesOf(dated, "v9.9.9"); err != nil || !strings.Contains(notes, "\n### ") {
		t.Errorf("got %q, %v", notes, err)
	}
}
