package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"

	"golang.org/x/mod/semver"
)

// changelogFile is where every release has a section: "## [1.2.3] - 2027-01-31".
const changelogFile = "CHANGELOG.md"

var (
	versionHeading = regexp.MustCompile(`(?m)^## \[([^\]]+)\](.*)$`)
	releaseDate    = regexp.MustCompile(`^ - \d{4}-\d{2}-\d{2}$`)
)

// unreleased is the section of what no release has yet. Pre-releases have it for theirs.
const unreleased = "Unreleased"

// notesOf is what a changelog says of a version, which begins with v. It is an error if the version has no section with
// a date and some text.
func notesOf(changelog, version string) (string, error) {
	number := strings.TrimPrefix(version, "v")
	if semver.Prerelease(version) != "" {
		number = unreleased
	}
	headings := versionHeading.FindAllStringSubmatchIndex(changelog, -1)
	for i, h := range headings {
		if changelog[h[2]:h[3]] != number {
			continue
		}
		if rest := changelog[h[4]:h[5]]; number != unreleased && !releaseDate.MatchString(rest) {
			return "", fmt.Errorf("%s: the heading of %s has no date: want ## [%s] - 2027-01-31",
				changelogFile, number, number)
		}
		end := len(changelog)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		notes := strings.TrimSpace(changelog[h[1]:end])
		if notes == "" {
			return "", fmt.Errorf("%s says nothing of %s", changelogFile, number)
		}
		return notes, nil
	}
	return "", fmt.Errorf("%s has no section of %s: want ## [%s] - 2027-01-31", changelogFile, number, number)
}

func readNotes(version string) (string, error) {
	data, err := os.ReadFile(changelogFile)
	if err != nil {
		return "", err
	}
	return notesOf(string(data), version)
}

// notes prints what the changelog says of a version.
func notes(_ context.Context, args []string) error {
	f := flag.NewFlagSet("notes", flag.ContinueOnError)
	version := f.String("version", "", "version of the release, such as v1.2.3")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *version == "" {
		return errors.New("--version is not set")
	}
	text, err := readNotes(*version)
	if err != nil {
		return err
	}
	fmt.Println(text)
	return nil
}
