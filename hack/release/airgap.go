package main

import (
	"embed"
	"fmt"
	"path/filepath"
	"strings"
)

// airgapFiles are the script of the bundle for sites without a network, and its page.
//
//go:embed airgap
var airgapFiles embed.FS

// airgapBundle writes the bundle for sites without a network: images, manifests, the chart, kubectl-grid, the sums of
// all of them, and a script that checks and imports. It is not compressed, because what is in it is.
func (r *release) airgapBundle() error {
	below := fmt.Sprintf("%s_%s_airgap/", product, r.version)
	entries, err := r.manifests(below)
	if err != nil {
		return err
	}
	var images strings.Builder
	for _, name := range r.written {
		switch {
		case strings.HasSuffix(name, "_image.tar"):
			entries = append(entries, entry{name: below + "images/" + name, from: filepath.Join(r.output, name)})
			described, err := imageIn(filepath.Join(r.output, name))
			if err != nil {
				return err
			}
			// Under this name containerd imports it, and the kubelet asks for it.
			fmt.Fprintf(&images, "%s@%s\n", described.Annotations["io.containerd.image.name"], described.Digest)
		case name == chartName(r.version):
			entries = append(entries, entry{name: below + "charts/" + name, from: filepath.Join(r.output, name)})
		case strings.HasPrefix(name, plugin+"_") && strings.Contains(name, "_linux_") &&
			strings.HasSuffix(name, ".tar.gz"):
			entries = append(entries, entry{name: below + "bin/" + name, from: filepath.Join(r.output, name)})
		}
	}
	entries = append(entries, entry{name: below + imagesFile, data: []byte(images.String())})
	for name, executable := range map[string]bool{"airgap.sh": true, "README.md": false} {
		data, err := airgapFiles.ReadFile("airgap/" + name)
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(data), "VERSION", r.version)
		entries = append(entries, entry{name: below + name, executable: executable, data: []byte(text)})
	}
	sums, err := sumsOf(entries, below)
	if err != nil {
		return err
	}
	entries = append(entries, entry{name: below + sumsFile, data: sums})
	return writeArchive(r.file(strings.TrimSuffix(below, "/")+".tar"), entries, r.time)
}
