package output

import (
	"encoding/json"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// APIVersion is that of everything that kubectl grid prints as JSON or YAML.
const APIVersion = "kubectl-grid.superedge.io/v1alpha1"

// TypeMeta has the apiVersion and kind of an answer of kubectl grid.
func TypeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: kind}
}

// Format is a value of --output.
type Format string

// The formats of answers.
const (
	Table Format = "table"
	Wide  Format = "wide"
	JSON  Format = "json"
	YAML  Format = "yaml"
)

// Encoded reports whether the format is one for programs.
func (f Format) Encoded() bool { return f == JSON || f == YAML }

// Encode writes a value as JSON or, in any other format, as YAML.
func Encode(out io.Writer, value any, format Format) error {
	data, err := yaml.Marshal(value)
	if format == JSON {
		data, err = json.MarshalIndent(value, "", "    ")
		data = append(data, '\n')
	}
	if err == nil {
		_, err = out.Write(data)
	}
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}
