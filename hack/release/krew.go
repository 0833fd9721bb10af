package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewPlugin is a plugin's manifest, as https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/ describes it.
type krewPlugin struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec krewSpec `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	Sha256 string `json:"sha256"`
	Bin    string `json:"bin"`
}

// krewFile is the name of the manifest: that of the plugin, as `kubectl krew` wants it.
const krewFile = "grid.yaml"

// krewManifest writes the manifest with which krew installs kubectl-grid on every platform that there is an archive
// for.
func (r *release) krewManifest() error {
	plugin := krewPlugin{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin"}
	plugin.Metadata.Name = strings.TrimSuffix(krewFile, ".yaml")
	plugin.Spec = krewSpec{
		Version: r.version, Homepage: r.repository,
		ShortDescription: "Shows what application-grid does, site by site",
		Description: "Shows the state of grids per site, what a node sees of a Service and why, and\n" +
			"what applying a grid would change. Reads with your own credentials.\n",
	}
	for _, directory := range []string{r.binaries, r.plugins} {
		names, err := platforms(directory)
		if err != nil {
			return err
		}
		for _, platform := range names {
			archive := pluginArchive(r.version, platform)
			sum, err := sumOf(filepath.Join(r.output, archive))
			if err != nil {
				return err
			}
			parts := strings.Split(platform, "_")
			p := krewPlatform{
				URI:    fmt.Sprintf("%s/releases/download/%s/%s", r.repository, r.version, archive),
				Sha256: sum,
				Bin:    "kubectl-grid",
			}
			if parts[0] == "windows" {
				p.Bin += ".exe"
			}
			p.Selector.MatchLabels = map[string]string{"os": parts[0], "arch": parts[1]}
			plugin.Spec.Platforms = append(plugin.Spec.Platforms, p)
		}
	}
	data, err := yaml.Marshal(plugin)
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(krewFile), data, 0o644) //nolint:gosec // for everybody to read
}
