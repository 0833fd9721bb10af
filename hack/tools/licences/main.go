// Licences reads the licences of everything that is linked into programs, fails if one does not allow distribution
// under the Apache License, and keeps the file that carries their texts, which most of them want to go with binaries.
//
//	licences -check THIRD_PARTY_NOTICES ./cmd/...
//	licences -write THIRD_PARTY_NOTICES ./cmd/...
//	licences -spdx licences.json ./cmd/...
//
// The last writes the SPDX identifiers of each module's licences, for bills of materials.
//
// It reads what lies in the module cache, and asks no network.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	classifier "github.com/google/licenseclassifier/v2"
	"github.com/google/licenseclassifier/v2/assets"
)

// allowed are the licences whose conditions are met when the texts go with the binaries: category A of
// https://www.apache.org/legal/resolved.html. Another one is a decision to be made, and added here.
var allowed = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}

// unmodified are the licences, of category B there, that also ask binaries to say where the source of what they are for
// is: section 3.2 of the Mozilla Public License. They are allowed for modules that nothing replaces; the file says
// where their source is.
var unmodified = []string{"MPL-2.0"}

// platforms are those that releases are built for; some packages are linked on one only.
var platforms = []string{"linux/amd64", "linux/arm64", "linux/arm", "darwin/arm64", "windows/amd64"}

// unrecognised is how many lines of a licence file may be in no known licence: titles, lists of files, copyrights in
// forms that the classifier does not know. More is a licence that someone has to read.
const unrecognised = 15

// The standard library and the runtime are linked into everything. Their licence has the same text as that of the Go
// authors' modules, which is read instead: Linux distributions may leave the LICENSE out of GOROOT.
const (
	standardLibrary = "Go's standard library and runtime"
	goAuthors       = "golang.org/x/sys"
)

// licence and notice are the names of files that count. A NOTICE is passed on as it is, section 4(d) of the Apache
// License; it grants nothing and forbids nothing.
var (
	licence = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-._].*)?$`)
	notice  = regexp.MustCompile(`(?i)^notice([-._].*)?$`)
	code    = regexp.MustCompile(`\.(go|s|c|h)$`)
)

func main() {
	check := flag.String("check", "", "fail unless this `file` is as -write would write it")
	write := flag.String("write", "", "write this `file`")
	spdx := flag.String("spdx", "", "write the licences of each module to this `file`, as JSON")
	flag.Parse()
	if err := run(*check, *write, *spdx, flag.Args()); err != nil {
		fmt.Fprintf(os.Stderr, "licences: %v\n", err)
		os.Exit(1)
	}
}

func run(check, write, spdx string, packages []string) error {
	file := cmp.Or(check, write, spdx)
	if file == "" || check+write+spdx != file || len(packages) == 0 {
		return errors.New("usage: licences -check FILE | -write FILE | -spdx FILE PACKAGES")
	}
	linked, err := linkedPackages(packages)
	if err != nil {
		return err
	}
	texts, err := collect(linked)
	if err != nil {
		return err
	}
	known, err := assets.DefaultClassifier()
	if err != nil {
		return fmt.Errorf("the classifier's licences: %w", err)
	}
	names, err := judge(texts, known)
	if err != nil {
		return err
	}
	if err := findSources(texts, linked, known); err != nil {
		return err
	}
	fresh := render(texts)
	if spdx != "" {
		if fresh, err = perModule(texts, modules(linked), known); err != nil {
			return err
		}
	}
	if check == "" {
		if err := os.WriteFile(file, fresh, 0o644); err != nil { //nolint:gosec // it is for everybody to read
			return err
		}
	} else if err := compare(check, fresh); err != nil {
		return err
	}
	fmt.Printf("%s: %d texts of licences and notices, all %s\n", file, len(texts), strings.Join(names, ", "))
	return nil
}

// compare fails unless a file has this content.
func compare(file string, fresh []byte) error {
	committed, err := os.ReadFile(file) //nolint:gosec // the Makefile names it
	if err != nil || !bytes.Equal(committed, fresh) {
		return errors.Join(err, fmt.Errorf(
			"%s is not what the linked modules ask for: run `make notices`, and commit it", file))
	}
	return nil
}

// linkedPackage is what `go list` says of a package.
type linkedPackage struct {
	ImportPath string
	Dir        string
	Standard   bool
	Module     *struct {
		Path    string
		Version string
		Dir     string
		Main    bool
		Replace *struct{ Path string }
	}
}

// linkedPackages are the packages that are linked into the programs on any platform; the standard library's come
// without being asked for, and count once.
func linkedPackages(packages []string) (map[string]linkedPackage, error) {
	linked := map[string]linkedPackage{}
	for _, platform := range platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		//nolint:gosec,noctx // the arguments are the Makefile's
		command := exec.Command("go",
			append([]string{"list", "-deps", "-json=ImportPath,Dir,Standard,Module"}, packages...)...)
		command.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch)
		command.Stderr = os.Stderr
		output, err := command.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", platform, err)
		}
		for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
			var p linkedPackage
			if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("what go list says for %s: %w", platform, err)
			}
			linked[p.ImportPath] = p
		}
	}
	return linked, nil
}

// text is the text of a licence or a notice, and whose it is.
type text struct {
	content string
	notice  bool
	// of are the module paths, with the directory below where that has a licence of its own.
	of []string
	// sources are where the source of each is, if the licence asks for that.
	sources []string
}

// collect reads the licence files of all packages' directories and those above, up to the module's: code that a module
// has taken over from elsewhere often has its own licence next to it.
func collect(linked map[string]linkedPackage) ([]*text, error) {
	byContent := map[string]*text{}
	seen := map[string]bool{}
	var missing []string
	read := func(dir, name string) (licences int, err error) {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, err
		}
		for _, entry := range entries {
			isLicence, isNotice := licence.MatchString(entry.Name()), notice.MatchString(entry.Name())
			if entry.IsDir() || code.MatchString(entry.Name()) || !isLicence && !isNotice {
				continue
			}
			data, err := os.ReadFile(filepath.Join(dir, entry.Name())) //nolint:gosec // in the module cache
			if err != nil {
				return 0, err
			}
			content := strings.TrimSpace(strings.ReplaceAll(string(data), "\r\n", "\n"))
			t := byContent[content]
			if t == nil {
				t = &text{content: content, notice: isNotice}
				byContent[content] = t
			}
			if !slices.Contains(t.of, name) {
				t.of = append(t.of, name)
			}
			if isLicence {
				licences++
			}
		}
		return licences, nil
	}
	for _, p := range linked {
		if p.Standard || p.Module == nil || p.Module.Main {
			continue
		}
		for dir := p.Dir; !seen[dir]; dir = filepath.Dir(dir) {
			seen[dir] = true
			below, err := filepath.Rel(p.Module.Dir, dir)
			if err != nil || strings.HasPrefix(below, "..") {
				return nil, fmt.Errorf("package %s is at %s, which is not in its module's %s",
					p.ImportPath, p.Dir, p.Module.Dir)
			}
			n, err := read(dir, path.Join(p.Module.Path, filepath.ToSlash(below)))
			if err != nil {
				return nil, err
			}
			if dir == p.Module.Dir {
				if n == 0 {
					missing = append(missing, p.Module.Path)
				}
				break
			}
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return nil, fmt.Errorf("found no licence in: %s", strings.Join(missing, " "))
	}
	texts := make([]*text, 0, len(byContent))
	for _, t := range byContent {
		if slices.Contains(t.of, goAuthors) {
			t.of = append(t.of, standardLibrary)
		}
		slices.Sort(t.of)
		texts = append(texts, t)
	}
	slices.SortFunc(texts, func(a, b *text) int {
		return cmp.Or(strings.Compare(a.of[0], b.of[0]), strings.Compare(a.content, b.content))
	})
	return texts, nil
}

// judge returns the names of all licences, or which texts are not of an allowed one.
func judge(texts []*text, known *classifier.Classifier) ([]string, error) {
	var names []string
	var failures []error
	for _, t := range texts {
		if t.notice {
			continue
		}
		found, err := t.judge(known)
		if err != nil {
			failures = append(failures, err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(failures...)
}

func (t *text) judge(known *classifier.Classifier) ([]string, error) {
	var names []string
	result := known.Match([]byte(t.content))
	inLicence := make([]bool, result.TotalInputLines+1)
	for _, match := range result.Matches {
		if match.MatchType == "License" || match.MatchType == "Header" {
			names = append(names, match.Name)
		}
		for line := match.StartLine; line <= match.EndLine && line < len(inLicence); line++ {
			inLicence[line] = true
		}
	}
	of := strings.Join(t.of, ", ")
	if len(names) == 0 {
		return nil, fmt.Errorf("no known licence in the text of %s", of)
	}
	for _, name := range names {
		if !slices.Contains(allowed, name) && !slices.Contains(unmodified, name) {
			return nil, fmt.Errorf("%s is under %s, which is not among those allowed: %s",
				of, name, strings.Join(allowed, ", "))
		}
	}
	outside := 0
	for i, line := range strings.Split(t.content, "\n") {
		if strings.TrimSpace(line) != "" && i+1 < len(inLicence) && !inLicence[i+1] {
			outside++
		}
	}
	if outside > unrecognised {
		return nil, fmt.Errorf("%d lines in the licence of %s are of no known licence: read it", outside, of)
	}
	return names, nil
}

// findSources notes where the source is of what is under a licence that asks for that.
func findSources(texts []*text, linked map[string]linkedPackage, known *classifier.Classifier) error {
	paths := modules(linked)
	source := map[string]string{}
	for _, p := range linked {
		if m := p.Module; m != nil && !m.Main && m.Replace == nil {
			source[m.Path] = fmt.Sprintf("%s %s, which go mod download fetches, and https://%s",
				m.Path, m.Version, repository.ReplaceAllString(m.Path, ""))
		}
	}
	for _, t := range texts {
		if t.notice {
			continue
		}
		names, err := t.judge(known)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(unmodified, name) }) {
			continue
		}
		for _, of := range t.of {
			where, found := source[moduleOf(of, paths)]
			if !found {
				return fmt.Errorf("%s is under %s, which is allowed only for modules that go.mod does not replace",
					of, strings.Join(names, ", "))
			}
			t.sources = append(t.sources, where)
		}
	}
	return nil
}

// repository matches what a module's path has and its repository's has not: the major version.
var repository = regexp.MustCompile(`/v[0-9]+$`)

// modules are the paths of the modules that packages are of.
func modules(linked map[string]linkedPackage) []string {
	var paths []string
	for _, p := range linked {
		if p.Module != nil && !p.Module.Main {
			paths = append(paths, p.Module.Path)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// perModule is a JSON object of module paths and the licences of what is linked of each, in the order of their names.
// The standard library is called std.
func perModule(texts []*text, modules []string, known *classifier.Classifier) ([]byte, error) {
	all := map[string][]string{}
	for _, t := range texts {
		if t.notice {
			continue
		}
		names, err := t.judge(known)
		if err != nil {
			return nil, err
		}
		for _, of := range t.of {
			module := "std"
			if of != standardLibrary {
				module = moduleOf(of, modules)
			}
			all[module] = append(all[module], names...)
		}
	}
	for module, names := range all {
		slices.Sort(names)
		all[module] = slices.Compact(names)
	}
	data, err := json.MarshalIndent(all, "", "  ")
	return append(data, '\n'), err
}

// moduleOf is the module that a directory is in: the longest of those that it may be in.
func moduleOf(directory string, modules []string) string {
	for dir := directory; dir != "."; dir = path.Dir(dir) {
		if _, found := slices.BinarySearch(modules, dir); found {
			return dir
		}
	}
	return directory
}

// render makes the file. It names versions only where a licence asks for the source: they are in every binary (go
// version -m), and a module's next release seldom changes its licence.
func render(texts []*text) []byte {
	var b bytes.Buffer
	b.WriteString("Licences and notices of the code from elsewhere that is in application-grid's binaries.\n")
	b.WriteString("Generated by `make notices`; do not edit.\n")
	for _, t := range texts {
		fmt.Fprintf(&b, "\n%s\n\n", strings.Repeat("=", 80))
		for _, name := range t.of {
			fmt.Fprintf(&b, "%s\n", name)
		}
		if len(t.sources) > 0 {
			b.WriteString("\nUnmodified. The source code is that of\n")
		}
		for _, source := range t.sources {
			fmt.Fprintf(&b, "%s\n", source)
		}
		fmt.Fprintf(&b, "\n%s\n\n%s\n", strings.Repeat("-", 80), t.content)
	}
	return b.Bytes()
}
