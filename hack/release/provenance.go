package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
)

// statement is an in-toto statement, https://in-toto.io/Statement/v1, with SLSA's predicate of provenance,
// https://slsa.dev/provenance/v1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
	// Annotations are what has no digest.
	Annotations map[string]string `json:"annotations,omitempty"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// provenanceFile is the name of the statement.
const provenanceFile = "provenance.intoto.json"

// provenance writes from what sources, by what toolchain and with what parameters all other files of the release were
// made, so that a reader can rebuild them. It has nothing that differs between two builds, such as the time. It is
// worth as much as the signature on it.
func (r *release) provenance() error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range slices.Sorted(slices.Values(r.written)) {
		sum, err := sumOf(filepath.Join(r.output, name))
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: name, Digest: map[string]string{"sha256": sum}})
	}
	definition := &s.Predicate.BuildDefinition
	definition.BuildType = r.repository + "/blob/" + r.commit + "/docs/dev/release.md"
	definition.ExternalParameters = map[string]string{"VERSION": r.version, "REGISTRY": r.registry}
	definition.InternalParameters = map[string]string{
		"SOURCE_DATE_EPOCH": strconv.FormatInt(r.time.Unix(), 10), "CGO_ENABLED": "0",
	}
	definition.ResolvedDependencies = []resource{
		{URI: "git+" + r.repository + "@refs/tags/" + r.version, Digest: map[string]string{"gitCommit": r.commit}},
		{
			Name: "go", URI: "pkg:golang/toolchain@" + runtime.Version(),
			Annotations: map[string]string{"version": runtime.Version()},
		},
	}
	s.Predicate.RunDetails.Builder.ID = r.builder
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(r.file(provenanceFile), append(data, '\n'), 0o644) //nolint:gosec // for everybody to read
}
