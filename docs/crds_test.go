package docs

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/manifests"
)

// TestCRDReference: docs/reference.md has the fields of the CRDs' specs as they are; kubectl explain has those of
// statuses. Kinds with the same fields share a table. What is the same in two places of a kind is described once.
func TestCRDReference(t *testing.T) {
	t.Parallel()
	files, err := fs.Glob(manifests.CRDs, "crds/superedge*.yaml")
	if err != nil || len(files) != 4 {
		t.Fatal(files, err)
	}
	var tables []string
	kinds, messages := map[string][]string{}, map[string][]string{}
	for _, file := range files {
		data, err := fs.ReadFile(manifests.CRDs, file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(data, &crd); err != nil {
			t.Fatal(err)
		}
		if len(crd.Spec.Versions) != 1 {
			t.Fatalf("%s has %d versions", crd.Name, len(crd.Spec.Versions))
		}
		schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
		var b strings.Builder
		fields(&b, "", schema, map[string]string{})
		if kinds[b.String()] == nil {
			tables = append(tables, b.String())
		}
		names := crd.Spec.Names
		kinds[b.String()] = append(kinds[b.String()], fmt.Sprintf("**%s** (`%s`, `%s`)", names.Kind, names.Plural,
			strings.Join(names.ShortNames, "`, `")))
		for _, rule := range schema.XValidations {
			if !slices.Contains(messages[b.String()], rule.Message) {
				messages[b.String()] = append(messages[b.String()], rule.Message)
			}
		}
	}
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "%s. *%s*\n\n%s\n", strings.Join(kinds[table], ", "),
			docstest.Line(strings.Join(messages[table], "; ")), table)
	}
	docstest.CompareGenerated(t, docstest.ReferencePage, "fields of the CRDs", b.String())
}

// fields are rows for what is below a path. described are the paths of the objects that have rows already, by their
// schemas.
func fields(b *strings.Builder, path string, schema *apiextensionsv1.JSONSchemaProps, described map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(schema.Properties)) {
		field := schema.Properties[name]
		if path == "" && name != "spec" {
			continue
		}
		below, suffix := strings.TrimPrefix(path+"."+name, "."), ""
		within := &field
		switch {
		case field.AdditionalProperties != nil:
			within, suffix = field.AdditionalProperties.Schema, ".{}"
		case field.Items != nil:
			within, suffix = field.Items.Schema, "[]"
		}
		meaning := strings.TrimPrefix(docstest.Line(field.Description), strings.ToUpper(name[:1])+name[1:]+" ")
		for _, verb := range []string{"is ", "are ", "has "} {
			meaning = strings.TrimPrefix(meaning, verb)
		}
		meaning = docstest.Essence(meaning)
		if checked := checks(schema, name, &field, within); checked != "" {
			meaning = strings.TrimSpace(meaning + " *" + checked + "*")
		}
		twice := false
		if _, selector := within.Properties["matchExpressions"]; selector {
			meaning += " It is a label selector, as Kubernetes has it elsewhere."
			twice = true
		} else if len(within.Properties) > 0 {
			text, err := json.Marshal(within.Properties)
			if err != nil {
				panic(err)
			}
			var same string
			if same, twice = described[string(text)]; twice {
				meaning += " Its fields are those of `" + same + "`."
			} else {
				described[string(text)] = below + suffix
			}
		}
		below += suffix
		fmt.Fprintf(b, "- `%s`: %s\n", below, meaning)
		if !twice {
			fields(b, below, within, described)
		}
	}
}

// checks are what the API server checks of a field, except lengths and patterns.
func checks(
	parent *apiextensionsv1.JSONSchemaProps, name string, field, within *apiextensionsv1.JSONSchemaProps,
) string {
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if slices.Contains(parent.Required, name) {
		add("required")
	}
	if field.Default != nil {
		add("default `%s`", field.Default.Raw)
	}
	for _, s := range slices.Compact([]*apiextensionsv1.JSONSchemaProps{field, within}) {
		if len(s.Enum) > 0 {
			values := make([]string, len(s.Enum))
			for i, value := range s.Enum {
				values[i] = string(value.Raw)
			}
			add("one of %s", strings.Join(values, ", "))
		}
		for _, rule := range s.XValidations {
			add("%s", docstest.Line(rule.Message))
		}
		if s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields {
			add("checked when it is applied")
		}
	}
	return strings.Join(all, "; ")
}
