package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// paths are where things are that are built already, and where the release goes.
type paths struct {
	// root is the directory of the repository.
	root string
	// binaries has a directory per platform with all programs, plugins one with kubectl-grid alone for platforms that
	// have nothing else; images are OCI archives.
	binaries, plugins, images string
	// licences is what `licences -spdx` wrote.
	licences string
	output   string
}

// release is a release in the making.
type release struct {
	source
	paths

	licensesOf licenses
	// written are the files of the release, without their directory.
	written []string
}

const (
	product = "application-grid"
	plugin  = "kubectl-grid"
)

// inImages are the programs that have an image, programs are all that is built, as they are named in cmd/.
var (
	inImages = []string{
		"application-grid-controller", "application-grid-hub", "application-grid-wrapper", "statefulset-grid-daemon",
	}
	programs = append(slices.Clone(inImages), plugin, "lite-apiserver")
)

// makeRelease makes the files of a release.
func makeRelease(_ context.Context, args []string) error {
	r := &release{}
	f := flag.NewFlagSet("make", flag.ContinueOnError)
	r.flags(f)
	f.StringVar(&r.root, "root", ".", "directory of the repository")
	f.StringVar(&r.binaries, "binaries", "dist/bin", "directory with a directory of programs per platform")
	f.StringVar(&r.plugins, "plugins", "dist/plugins",
		"the same of kubectl-grid, for platforms that have no other program")
	f.StringVar(&r.images, "images", "dist/images", "directory with OCI archives")
	f.StringVar(&r.licences, "licences", "dist/licences.json", "file with the licences of modules")
	f.StringVar(&r.output, "output", "dist/release", "directory of the release; what is in it is removed")
	if err := f.Parse(args); err != nil {
		return err
	}
	if err := r.complete(); err != nil {
		return err
	}
	//nolint:gosec // as any directory of a build
	if err := errors.Join(os.RemoveAll(r.output), os.MkdirAll(r.output, 0o755)); err != nil {
		return err
	}
	var err error
	if r.licensesOf, err = readLicenses(r.licences); err != nil {
		return err
	}
	for _, step := range []func() error{
		r.programArchives, r.pluginArchives, r.imageArchives, r.manifestArchive, r.chartArchive, r.airgapBundle,
		r.krewManifest,
		r.provenance, r.checksums,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	fmt.Printf("%s: %d files\n", r.output, len(r.written))
	return nil
}

// file is the path of a file of the release, which is counted as written.
func (r *release) file(name string) string {
	r.written = append(r.written, name)
	return filepath.Join(r.output, name)
}

// path is a file of the repository.
func (r *release) path(name string) string { return filepath.Join(r.root, name) }

// platforms are the directories of binaries for them, in the order of their names.
func platforms(directory string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, err
	}
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, nil
}

// legal goes with all binaries.
func (r *release) legal(below string) []entry {
	return []entry{
		{name: below + "LICENSE", from: r.path("LICENSE")},
		{name: below + "THIRD_PARTY_NOTICES", from: r.path("THIRD_PARTY_NOTICES")},
	}
}

// programArchives writes an archive per platform with all programs, and what hack/install.sh installs with them.
func (r *release) programArchives() error {
	names, err := platforms(r.binaries)
	if err != nil {
		return err
	}
	for _, platform := range names {
		below := fmt.Sprintf("%s_%s_%s/", product, r.version, platform)
		entries := append(r.legal(below),
			entry{name: below + "hack/install.sh", from: r.path("hack/install.sh"), executable: true},
			entry{
				name:       below + "hack/kubectl_complete-grid",
				from:       r.path("hack/kubectl_complete-grid"),
				executable: true,
			},
			entry{name: below + "docs/systemd.md", from: r.path("docs/systemd.md")})
		units, err := tree(r.path("manifests/systemd"), below+"manifests/systemd")
		if err != nil {
			return err
		}
		pages, err := r.manual(below, "")
		if err != nil {
			return err
		}
		entries = append(append(entries, units...), pages...)
		var binaries []string
		for _, program := range programs {
			binary := filepath.Join(r.binaries, platform, program)
			binaries = append(binaries, binary)
			entries = append(entries, entry{name: below + "bin/" + program, from: binary, executable: true})
		}
		name := strings.TrimSuffix(below, "/") + ".tar.gz"
		if err := writeArchive(r.file(name), entries, r.time); err != nil {
			return err
		}
		if err := r.billOfMaterials(name, binaries); err != nil {
			return err
		}
	}
	return nil
}

// manual are the man pages whose names begin with this, and go below docs/man.
func (r *release) manual(below, prefix string) ([]entry, error) {
	pages, err := tree(r.path("docs/man"), below+"docs/man")
	if err != nil {
		return nil, err
	}
	pages = slices.DeleteFunc(pages, func(e entry) bool { return !strings.HasPrefix(path.Base(e.name), prefix) })
	if len(pages) == 0 {
		return nil, fmt.Errorf("docs/man has no page %s*", prefix)
	}
	return pages, nil
}

// pluginArchives writes an archive per platform with kubectl-grid alone, as krew wants it.
func (r *release) pluginArchives() error {
	for _, directory := range []string{r.binaries, r.plugins} {
		names, err := platforms(directory)
		if err != nil {
			return err
		}
		for _, platform := range names {
			program, name := plugin, pluginArchive(r.version, platform)
			if strings.HasPrefix(platform, "windows_") {
				program += ".exe"
			}
			binary := filepath.Join(directory, platform, program)
			entries := append(r.legal(""), entry{name: program, from: binary, executable: true})
			if !strings.HasPrefix(platform, "windows_") {
				pages, err := r.manual("", plugin)
				if err != nil {
					return err
				}
				entries = append(entries, pages...)
			}
			if err := writeArchive(r.file(name), entries, r.time); err != nil {
				return err
			}
			if err := r.billOfMaterials(name, []string{binary}); err != nil {
				return err
			}
		}
	}
	return nil
}

// pluginArchive is the name of an archive of kubectl-grid.
func pluginArchive(version, platform string) string {
	name := fmt.Sprintf("%s_%s_%s", plugin, version, platform)
	if strings.HasPrefix(platform, "windows_") {
		return name + ".zip"
	}
	return name + ".tar.gz"
}

// manifestArchive writes manifests/ with the images of this release.
func (r *release) manifestArchive() error {
	entries, err := r.manifests(fmt.Sprintf("%s_%s/", product, r.version))
	if err != nil {
		return err
	}
	return writeArchive(r.file(fmt.Sprintf("%s_%s_manifests.tar.gz", product, r.version)), entries, r.time)
}

// manifests are the files of manifests/ that a cluster applies or an operator reads, with the images of this release.
func (r *release) manifests(below string) ([]entry, error) {
	entries, err := tree(r.path("manifests"), below+"manifests")
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool { return strings.HasSuffix(e.name, ".go") })
	replaced := 0
	for i, e := range entries {
		data, err := os.ReadFile(e.from)
		if err != nil {
			return nil, err
		}
		text := string(data)
		for _, program := range inImages {
			place := fmt.Sprintf("image: %s:latest # yours\n", program)
			replaced += strings.Count(text, place)
			text = strings.ReplaceAll(text, place, fmt.Sprintf("image: %s\n", r.image(program)))
		}
		entries[i].data, entries[i].from = []byte(text), ""
	}
	if replaced != len(inImages) {
		return nil, fmt.Errorf("manifests/ name %d images of this product, and there are %d", replaced, len(inImages))
	}
	return append(entries, r.legal(below)[0]), nil
}
