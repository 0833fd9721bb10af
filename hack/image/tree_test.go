package main

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestTree: images of a directory share their one layer, keep modes and symbolic links, and have the names and programs
// that they were given. The same directory makes the same bytes, whenever its files were written.
func TestTree(t *testing.T) {
	tree := t.TempDir()
	must(t, os.Mkdir(filepath.Join(tree, "bin"), 0o755))
	must(t, os.WriteFile(filepath.Join(tree, "bin", "all"), []byte("program"), 0o755))
	must(t, os.Symlink("all", filepath.Join(tree, "bin", "one")))
	o := options{
		rootfs: tree, platform: "linux_arm_v7", archive: filepath.Join(t.TempDir(), "a.tar"),
		created: time.Unix(1700000000, 0).UTC(),
	}
	must(t, writeTree(o, []string{"registry.example.org/one:v1=/bin/one", "all:v2"}))
	first := sumOf(t, o.archive)
	must(t, os.Chtimes(filepath.Join(tree, "bin", "all"), time.Now(), time.Unix(1, 0)))
	o.archive = filepath.Join(t.TempDir(), "b.tar")
	must(t, writeTree(o, []string{"registry.example.org/one:v1=/bin/one", "all:v2"}))
	if sumOf(t, o.archive) != first {
		t.Error("the same files made other bytes")
	}

	index := open(t, o.archive)
	if err := validate.Index(index, validate.Fast); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	must(t, err)
	if len(manifest.Manifests) != 2 {
		t.Fatalf("there are %d images", len(manifest.Manifests))
	}
	for i, want := range []struct {
		name, tag string
		program   []string
	}{
		{"registry.example.org/one:v1", "v1", []string{"/bin/one"}},
		{"docker.io/library/all:v2", "v2", nil},
	} {
		descriptor := manifest.Manifests[i]
		if got := descriptor.Annotations["io.containerd.image.name"]; got != want.name {
			t.Errorf("its name is %q, not %q", got, want.name)
		}
		if got := descriptor.Annotations["org.opencontainers.image.ref.name"]; got != want.tag {
			t.Errorf("its tag is %q, not %q", got, want.tag)
		}
		if got := descriptor.Platform.String(); got != "linux/arm/v7" {
			t.Errorf("its platform is %q", got)
		}
		image, err := index.Image(descriptor.Digest)
		must(t, err)
		config, err := image.ConfigFile()
		must(t, err)
		if !slices.Equal(config.Config.Entrypoint, want.program) {
			t.Errorf("it starts %q, not %q", config.Config.Entrypoint, want.program)
		}
		layers, err := image.Layers()
		if err != nil || len(layers) != 1 {
			t.Fatalf("%d layers, %v", len(layers), err)
		}
		if kind, err := layers[0].MediaType(); err != nil || kind != types.OCIUncompressedLayer {
			t.Errorf("the layer is %s, %v", kind, err)
		}
		content, err := layers[0].Compressed() // as it is in the archive
		must(t, err)
		defer content.Close()
		var files []string
		for r := tar.NewReader(content); ; {
			header, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			files = append(files, header.FileInfo().Mode().String()+" "+header.Name+" "+header.Linkname)
		}
		if want := []string{
			"drwxr-xr-x bin/ ", "-rwxr-xr-x bin/all ", "Lrwxrwxrwx bin/one all",
		}; !slices.Equal(files, want) {
			t.Errorf("it has %q, not %q", files, want)
		}
	}
}

// TestNames: containerd keeps the name that an archive carries, and the kubelet looks for the full one.
func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"program:v1":                      "docker.io/library/program:v1",
		"team/program:v1":                 "docker.io/team/program:v1",
		"localhost/program:v1":            "localhost/program:v1",
		"registry.example.org/program:v1": "registry.example.org/program:v1",
		"registry:5000/edge/program:v1":   "registry:5000/edge/program:v1",
	} {
		got := nameAnnotations(name)
		if got["io.containerd.image.name"] != want || got["org.opencontainers.image.ref.name"] != "v1" {
			t.Errorf("%s: %v, not %s", name, got, want)
		}
	}
}
