package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/mod/semver"
)

// checkVersion says what is wrong with the version of a release. It becomes a tag of images, which has no "+", and the
// version of a chart, which is that of https://semver.org.
func checkVersion(version string) error {
	switch {
	case version == "":
		return errors.New("VERSION is not set: make release VERSION=v1.2.3")
	case !strings.HasPrefix(version, "v"):
		return fmt.Errorf("VERSION=%s does not begin with v: want one like v1.2.3 or v1.2.3-rc.1", version)
	case !semver.IsValid(version):
		return fmt.Errorf("VERSION=%s is not a semantic version, such as v1.2.3 or v1.2.3-rc.1", version)
	case semver.Build(version) != "":
		return fmt.Errorf("VERSION=%s has build metadata (%s), which no tag of an image can have",
			version, semver.Build(version))
	case semver.Canonical(version) != version:
		return fmt.Errorf("VERSION=%s is not whole: %s would be", version, semver.Canonical(version))
	}
	return nil
}

// check fails unless a release of this version can be made of what is in this directory.
func check(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("check", flag.ContinueOnError)
	version := f.String("version", "", "version of the release, such as v1.2.3")
	snapshot := f.Bool("snapshot", false, "the working tree may differ from the commit")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := checkVersion(*version); err != nil || *snapshot {
		return err
	}
	status, err := exec.CommandContext(ctx, "git", "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	if len(status) > 0 {
		return fmt.Errorf(
			"the working tree differs from its commit: commit what is there, or make no more than a try with "+
				"SNAPSHOT=1\n%s",
			status,
		)
	}
	_, err = readNotes(*version)
	return err
}
