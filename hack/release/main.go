// Command release makes a release of what `make cross`, `make plugins` and `make images` have built: archives, the
// chart, a bundle for sites without a network, software bills of materials, a provenance statement, the manifest for
// krew, and checksums. Of the same commit it makes the same bytes, on any machine, at any time and in any directory:
// nothing in a release comes from a clock, and everything bears the commit's time.
//
//	release check    fails unless a release of this version can be made here
//	release make     makes it
//	release twice    makes it a second time, elsewhere and of nothing that is built already, and compares
//	release push     pushes its images to a registry
//	release notes    prints what the changelog says of it
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"
)

// commands are what the first argument can be.
var commands = map[string]func(ctx context.Context, args []string) error{
	"check": check, "make": makeRelease, "twice": twice, "push": push, "notes": notes,
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string) int {
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprintln(os.Stderr, "usage: release check|make|twice|push|notes FLAGS")
		return 2
	}
	err := commands[args[0]](ctx, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 2
	case err != nil:
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		return 1
	}
	return 0
}

// source says what a release is made of. It goes into the provenance statement.
type source struct {
	version string
	// registry comes before the images' names; it may be empty.
	registry string
	// repository is the URL of the sources, without a slash at the end; commit is what is built.
	repository, commit string
	// builder names who builds: a URL.
	builder string
	// time is the commit's, and that of everything in the release.
	time time.Time
}

// flags are those of all commands that make a release.
func (s *source) flags(f *flag.FlagSet) {
	f.StringVar(&s.version, "version", "", "version of the release, such as v1.2.3")
	f.StringVar(&s.registry, "registry", "", "what comes before the images' names, such as registry.example.org/edge")
	f.StringVar(&s.repository, "repository", "https://github.com/application-grid/application-grid",
		"URL of the sources")
	f.StringVar(&s.commit, "commit", "", "commit that is built")
	f.StringVar(&s.builder, "builder", "", "URL of who builds; the repository if it is empty")
}

// complete checks what the flags say, and adds what the environment does.
func (s *source) complete() error {
	if err := checkVersion(s.version); err != nil {
		return err
	}
	if s.commit == "" {
		return errors.New("--commit is needed: a release is made of a commit")
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH is not seconds since 1970: %w", err)
	}
	s.time = time.Unix(seconds, 0).UTC()
	s.repository = strings.TrimSuffix(s.repository, "/")
	if s.builder == "" {
		s.builder = s.repository
	}
	return nil
}
