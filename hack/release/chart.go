package main

import (
	"fmt"
	"os"
	"strings"
)

// chartName is the name of the chart's package, which has to be so for helm.
func chartName(version string) string {
	return fmt.Sprintf("%s-%s.tgz", product, strings.TrimPrefix(version, "v"))
}

// chartArchive packages the chart with the version of this release. `helm package` would write the time of day.
func (r *release) chartArchive() error {
	entries, err := tree(r.path("charts/"+product), product)
	if err != nil {
		return err
	}
	entries = append(entries, entry{name: product + "/LICENSE", from: r.path("LICENSE")})
	for i, e := range entries {
		switch e.name {
		case product + "/Chart.yaml":
			entries[i], err = r.replaced(e, map[string]string{
				"\nversion: 0.0.0\n":         "\nversion: " + strings.TrimPrefix(r.version, "v") + "\n",
				"\nappVersion: unreleased\n": "\nappVersion: " + r.version + "\n",
			})
		case product + "/values.yaml":
			entries[i], err = r.replaced(e, map[string]string{
				"\n  registry: \"\"\n": fmt.Sprintf("\n  registry: %q\n", r.registry),
			})
		case product + "/README.md":
			entries[i], err = r.replaced(e, map[string]string{
				"](../../docs/": "](" + r.repository + "/blob/" + r.version + "/docs/",
			})
		}
		if err != nil {
			return err
		}
	}
	return writeArchive(r.file(chartName(r.version)), entries, r.time)
}

// replaced is an entry whose text is changed in places that have to be there.
func (r *release) replaced(e entry, places map[string]string) (entry, error) {
	data, err := os.ReadFile(e.from)
	if err != nil {
		return e, err
	}
	text := string(data)
	for place, by := range places {
		if !strings.Contains(text, place) {
			return e, fmt.Errorf("%s has no %q", e.from, place)
		}
		text = strings.ReplaceAll(text, place, by)
	}
	e.data, e.from = []byte(text), ""
	return e, nil
}
