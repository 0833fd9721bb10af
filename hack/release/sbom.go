package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// licenses are the SPDX identifiers of the licences of each module.
type licenses map[string][]string

func readLicenses(file string) (licenses, error) {
	data, err := os.ReadFile(file) //nolint:gosec // what the caller says
	if err != nil {
		return nil, fmt.Errorf("--licences: %w", err)
	}
	var of licenses
	if err := json.Unmarshal(data, &of); err != nil {
		return nil, fmt.Errorf("--licences %s: %w", file, err)
	}
	return of, nil
}

// standardLibrary is the name that purl and vulnerability databases have for it.
const standardLibrary = "std"

// billOfMaterials writes the bill of materials of the programs in one file of the release, next to that file, as
// CycloneDX 1.6 in JSON. It reads what the Go linker has written into each program.
func (r *release) billOfMaterials(artifact string, binaries []string) error {
	bill, err := r.bill(artifact, binaries)
	if err != nil {
		return fmt.Errorf("the bill of materials of %s: %w", artifact, err)
	}
	out, err := os.Create(r.file(artifact + ".cdx.json"))
	if err != nil {
		return err
	}
	defer out.Close()
	err = cyclonedx.NewBOMEncoder(out,
		cyclonedx.BOMFileFormatJSON).SetPretty(true).SetEscapeHTML(false).EncodeVersion(bill, cyclonedx.SpecVersion1_6)
	return errors.Join(err, out.Close())
}

func (r *release) bill(artifact string, binaries []string) (*cyclonedx.BOM, error) {
	sum, err := sumOf(filepath.Join(r.output, artifact))
	if err != nil {
		return nil, err
	}
	whole := &cyclonedx.Component{
		BOMRef: "file:" + artifact, Type: cyclonedx.ComponentTypeFile, Name: artifact, Version: r.version,
		Hashes:   &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}},
		Licenses: licenseOf([]string{"Apache-2.0"}),
	}
	components := map[string]cyclonedx.Component{}
	dependencies := map[string][]string{}
	for _, binary := range binaries {
		program, modules, err := r.program(binary)
		if err != nil {
			return nil, err
		}
		components[program.BOMRef] = program
		dependencies[whole.BOMRef] = append(dependencies[whole.BOMRef], program.BOMRef)
		for _, module := range modules {
			components[module.BOMRef] = module
			dependencies[program.BOMRef] = append(dependencies[program.BOMRef], module.BOMRef)
		}
	}
	bill := cyclonedx.NewBOM()
	// A UUID of version 8 (RFC 9562), made of the content rather than of chance.
	bill.SerialNumber = fmt.Sprintf("urn:uuid:%s-%s-8%s-a%s-%s", sum[:8], sum[8:12], sum[13:16], sum[17:20], sum[20:32])
	bill.Metadata = &cyclonedx.Metadata{Timestamp: r.time.Format(time.RFC3339), Component: whole}
	bill.Components = &[]cyclonedx.Component{}
	for _, ref := range slices.Sorted(maps.Keys(components)) {
		*bill.Components = append(*bill.Components, components[ref])
	}
	bill.Dependencies = &[]cyclonedx.Dependency{}
	for _, ref := range slices.Sorted(maps.Keys(dependencies)) {
		on := slices.Compact(slices.Sorted(slices.Values(dependencies[ref])))
		*bill.Dependencies = append(*bill.Dependencies, cyclonedx.Dependency{Ref: ref, Dependencies: &on})
	}
	return bill, nil
}

// program is a binary as a component, and the modules that are linked into it.
func (r *release) program(binary string) (cyclonedx.Component, []cyclonedx.Component, error) {
	none := cyclonedx.Component{}
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return none, nil, err
	}
	sum, err := sumOf(binary)
	if err != nil {
		return none, nil, err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	// Programs of several platforms may be in one bill.
	platform := strings.Trim(strings.Join([]string{settings["GOOS"], settings["GOARCH"], settings["GOARM"]}, "/"), "/")
	name := filepath.Base(binary)
	program := cyclonedx.Component{
		BOMRef: fmt.Sprintf("%s?%s",
			purl(info.Main.Path, r.version)+"#cmd/"+strings.TrimSuffix(name, ".exe"), platform),
		Type: cyclonedx.ComponentTypeApplication, Name: name, Version: r.version,
		PackageURL: fmt.Sprintf("%s?goos=%s&goarch=%s#cmd/%s",
			purl(info.Main.Path, r.version), settings["GOOS"], settings["GOARCH"], strings.TrimSuffix(name, ".exe")),
		Hashes:   &[]cyclonedx.Hash{{Algorithm: cyclonedx.HashAlgoSHA256, Value: sum}},
		Licenses: licenseOf([]string{"Apache-2.0"}),
		Properties: &[]cyclonedx.Property{
			{Name: "go:version", Value: info.GoVersion}, {Name: "go:platform", Value: platform},
		},
	}
	modules := []cyclonedx.Component{{
		Name: standardLibrary, Version: strings.TrimPrefix(info.GoVersion, "go"),
	}}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		if module.Version == "" || module.Sum == "" {
			return none, nil, fmt.Errorf("%s has module %s from a directory", binary, module.Path)
		}
		modules = append(modules, cyclonedx.Component{
			Name:       module.Path,
			Version:    module.Version,
			Properties: &[]cyclonedx.Property{{Name: "go:sum", Value: module.Sum}},
		})
	}
	for i := range modules {
		m := &modules[i]
		of := r.licensesOf[m.Name]
		if len(of) == 0 {
			return none, nil, fmt.Errorf("the licence of %s is not known, which is in %s", m.Name, binary)
		}
		m.Type, m.PackageURL, m.Licenses = cyclonedx.ComponentTypeLibrary, purl(m.Name, m.Version), licenseOf(of)
		m.BOMRef = m.PackageURL
	}
	slices.SortFunc(modules, func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	return program, modules, nil
}

// purl is the package URL of a Go module (https://github.com/package-url/purl-spec).
func purl(module, version string) string {
	return "pkg:golang/" + strings.ToLower(module) + "@" + url.PathEscape(version)
}

// licenseOf are the licences that all apply to a component.
func licenseOf(names []string) *cyclonedx.Licenses {
	if len(names) == 1 {
		return &cyclonedx.Licenses{{License: &cyclonedx.License{ID: names[0]}}}
	}
	return &cyclonedx.Licenses{{Expression: strings.Join(names, " AND ")}}
}

// sumOf is the SHA-256 of a file, in hexadecimal.
func sumOf(file string) (string, error) {
	data, err := os.ReadFile(file) //nolint:gosec // a file of the release
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}
