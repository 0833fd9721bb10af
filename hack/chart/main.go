// Command chart writes what the Helm chart has in common with manifests/: the templates of all objects, the CRDs, the
// alerts and the dashboard. A template is the text of a manifest, comments included, in which a few places are replaced
// by values. So an object is described once, and a place that a change of the manifests has moved away is an error here
// rather than a value without effect.
//
//	chart -check    fails if the chart is not what it would write
//	chart -write    writes it
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// generatedMark is the first line of every template that is written here.
const generatedMark = "{{- /* Generated from manifests/ by `make generate`; do not edit. */}}\n"

func main() {
	check := flag.Bool("check", false, "fail unless the chart is as -write would write it")
	write := flag.Bool("write", false, "write the chart")
	root := flag.String("root", ".", "directory of the repository")
	flag.Parse()
	if *check == *write || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: chart -check|-write")
		os.Exit(2)
	}
	if err := run(*root, *write); err != nil {
		fmt.Fprintf(os.Stderr, "chart: %v\n", err)
		os.Exit(1)
	}
}

func run(root string, write bool) error {
	files, err := generate(os.DirFS(filepath.Join(root, "manifests")))
	if err != nil {
		return err
	}
	chart := filepath.Join(root, "charts", "application-grid")
	var stale []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		path := filepath.Join(chart, name)
		committed, err := os.ReadFile(path) //nolint:gosec // a file of the repository
		if err == nil && bytes.Equal(committed, files[name]) {
			continue
		}
		if !write {
			stale = append(stale, fmt.Errorf(
				"%s is not what manifests/ make of it: run `make generate`, and commit it", path))
			continue
		}
		//nolint:gosec // as any directory of the repository
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, files[name], 0o644); err != nil { //nolint:gosec // as any file of the repository
			return err
		}
	}
	return errors.Join(stale...)
}

// generate makes the files of the chart that come from manifests/, by their names in the chart.
func generate(manifests fs.FS) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, t := range templates {
		text, err := t.render(manifests)
		if err != nil {
			return nil, fmt.Errorf("templates/%s: %w", t.name, err)
		}
		files["templates/"+t.name] = []byte(text)
	}
	for from, to := range copies {
		data, err := fs.ReadFile(manifests, from)
		if err != nil {
			return nil, err
		}
		files[to] = data
	}
	crds, err := fs.Glob(manifests, "crds/superedge.io_*.yaml")
	if err != nil || len(crds) == 0 {
		return nil, fmt.Errorf("no CRDs: %w", err)
	}
	for _, crd := range crds {
		data, err := fs.ReadFile(manifests, crd)
		if err != nil {
			return nil, err
		}
		files[crd] = data
	}
	return files, nil
}

// template is a file of the chart that is made of manifests.
type template struct {
	name string
	// when is the condition under which there is anything of it; "" for always.
	when  string
	parts []part
}

// part is one manifest in a template.
type part struct {
	// manifest is a file of manifests/.
	manifest string
	// when is as the template's.
	when string
	// replaced are the places that are replaced by values.
	replaced []replacement
	// before and after are put around it; a kubeconfig is not an object, and becomes one so. indent is by how much the
	// manifest's lines move to the right.
	before, after string
	indent        int
}

// replacement is a place of a manifest, and what takes it in the template. The place has to occur exactly so often as
// times says, 0 meaning once.
type replacement struct {
	place, by string
	times     int
}

func (t template) render(manifests fs.FS) (string, error) {
	var b strings.Builder
	b.WriteString(generatedMark)
	if t.when != "" {
		fmt.Fprintf(&b, "{{- if %s }}\n", t.when)
	}
	for i, p := range t.parts {
		text, err := p.render(manifests)
		if err != nil {
			return "", fmt.Errorf("%s: %w", p.manifest, err)
		}
		if i > 0 && p.before == "" {
			text = "---\n" + text
		}
		if p.when != "" {
			text = fmt.Sprintf("{{- if %s }}\n%s{{- end }}\n", p.when, text)
		}
		b.WriteString(text)
	}
	if t.when != "" {
		b.WriteString("{{- end }}\n")
	}
	return b.String(), nil
}

func (p part) render(manifests fs.FS) (string, error) {
	data, err := fs.ReadFile(manifests, p.manifest)
	if err != nil {
		return "", err
	}
	text := string(data)
	if strings.Contains(text, "{{") {
		return "", errors.New("{{ would be a template's")
	}
	for _, r := range p.replaced {
		if n := strings.Count(text, r.place); n != max(r.times, 1) {
			return "", fmt.Errorf("%q is there %d times, and should be %d times", r.place, n, max(r.times, 1))
		}
		text = strings.ReplaceAll(text, r.place, r.by)
	}
	if p.indent > 0 {
		prefix := strings.Repeat(" ", p.indent)
		lines := strings.SplitAfter(text, "\n")
		for i, line := range lines {
			if strings.TrimSpace(line) != "" {
				lines[i] = prefix + line
			}
		}
		text = strings.Join(lines, "")
	}
	return p.before + text + p.after, nil
}
