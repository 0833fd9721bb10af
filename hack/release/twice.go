package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// twice makes a release a second time, of a copy of the sources in another directory and with an empty build cache, and
// fails unless the bytes are those of the first. The arguments are variables for make: VERSION=v1.2.3 and so on.
func twice(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("twice", flag.ContinueOnError)
	root := f.String("root", ".", "directory of the repository")
	first := f.String("first", "dist/release", "directory of the release that was made first")
	if err := f.Parse(args); err != nil {
		return err
	}
	begin := time.Now()
	work, err := os.MkdirTemp("", "release-twice-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	sources, cache := filepath.Join(work, "elsewhere"), filepath.Join(work, "cache")
	if err := copyTracked(ctx, *root, sources); err != nil {
		return err
	}
	//nolint:gosec // the caller's variables
	build := exec.CommandContext(ctx, "make",
		append([]string{"--no-print-directory", "-C", sources, "release-files"}, f.Args()...)...)
	// Variables of a make that this runs under are not this one's.
	build.Env = append(slices.DeleteFunc(os.Environ(),
		func(v string) bool { return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=") }),
		"GOCACHE="+cache)
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("making the release again: %w", err)
	}
	n, err := compare(*first, filepath.Join(sources, "dist", "release"))
	if err != nil {
		return err
	}
	fmt.Printf("made twice with equal bytes: %d files, the second time in %s\n",
		n, time.Since(begin).Round(time.Second))
	return nil
}

// copyTracked copies the files that git knows of, as they are in the working tree.
func copyTracked(ctx context.Context, root, to string) error {
	list := exec.CommandContext(ctx, "git", "ls-files", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		from := filepath.Join(root, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed, and not committed
		}
		if err != nil {
			return err
		}
		data, err := os.ReadFile(from) //nolint:gosec // a file of the repository
		if err != nil {
			return err
		}
		target := filepath.Join(to, name)
		//nolint:gosec // as any directory of a repository
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		//nolint:gosec // a copy, below a directory of our own
		if err := os.WriteFile(target, data, info.Mode().Perm()); err != nil {
			return err
		}
	}
	return nil
}

// compare fails unless two directories have the same files with the same bytes, and returns how many there are.
func compare(first, second string) (int, error) {
	sums := [2]map[string]string{}
	for i, directory := range []string{first, second} {
		sums[i] = map[string]string{}
		err := filepath.WalkDir(directory, func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(directory, file)
			if err != nil {
				return err
			}
			sum, err := sumOf(file)
			sums[i][name] = sum
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	all := maps.Clone(sums[0])
	maps.Copy(all, sums[1])
	var differences []error
	for _, name := range slices.Sorted(maps.Keys(all)) {
		switch before, after := sums[0][name], sums[1][name]; {
		case after == "":
			differences = append(differences, fmt.Errorf("%s was made the first time only", name))
		case before == "":
			differences = append(differences, fmt.Errorf("%s was made the second time only", name))
		case before != after:
			differences = append(differences, fmt.Errorf("%s differs: %s, and then %s", name, before, after))
		}
	}
	if len(sums[0]) == 0 {
		differences = append(differences, fmt.Errorf("there is nothing in %s", first))
	}
	return len(sums[0]), errors.Join(differences...)
}
