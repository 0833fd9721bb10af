package docstest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// OperatePage has the log lines that matter.
const OperatePage = "docs/operate.md"

// described is a metric as the program or the page has it.
type described struct{ kind, labels string }

// descText reads a prometheus.Desc, which has no other way to read its name.
var descText = regexp.MustCompile(`fqName: "([^"]*)".*variableLabels: \{([^}]*)\}`)

// metricText reads the line of a metric: its names, its type, its labels.
var metricText = regexp.MustCompile("^((?:`[^`]*`(?:, )?)+) \\((\\w+)(?:, by ([^)]*))?\\): ")

// CompareMetrics fails the test where the list of docs/reference.md under a program's heading and what the program
// registers differ: in names, labels, and, of those that have a value now, types. Go's and the process' own metrics
// are left out.
func CompareMetrics(t *testing.T, program string, registered prometheus.Collector) {
	t.Helper()
	is := registeredMetrics(t, registered)
	said := map[string]described{}
	for _, line := range List(t, ReferencePage, "### Metrics of "+program) {
		parts := metricText.FindStringSubmatch(line)
		if parts == nil {
			t.Errorf("%s: unreadable: %s", ReferencePage, line)
			continue
		}
		for _, name := range Quoted(parts[1]) { // those of one type with the same labels share a line
			said[name] = described{parts[2], strings.Join(slices.Sorted(slices.Values(Quoted(parts[3]))), ",")}
		}
	}
	for name, m := range is {
		s, ok := said[name]
		switch {
		case !ok:
			t.Errorf("%s does not name %s (labels %q)", ReferencePage, name, m.labels)
		case s.labels != m.labels:
			t.Errorf("%s: the labels of %s are %q, not %q", ReferencePage, name, m.labels, s.labels)
		case m.kind != "" && s.kind != m.kind:
			t.Errorf("%s: %s is a %s, not a %s", ReferencePage, name, m.kind, s.kind)
		}
	}
	for name := range said {
		if _, ok := is[name]; !ok {
			t.Errorf("%s names %s, which %s does not have", ReferencePage, name, program)
		}
	}
	if len(is) == 0 {
		t.Error("nothing is registered")
	}
}

func registeredMetrics(t *testing.T, registered prometheus.Collector) map[string]described {
	t.Helper()
	metrics := map[string]described{}
	descs := make(chan *prometheus.Desc)
	go func() {
		registered.Describe(descs)
		close(descs)
	}()
	for desc := range descs {
		parts := descText.FindStringSubmatch(desc.String())
		if parts == nil {
			t.Errorf("unreadable: %s", desc)
			continue
		}
		if strings.HasPrefix(parts[1], "go_") || strings.HasPrefix(parts[1], "process_") {
			continue
		}
		metrics[parts[1]] = described{labels: strings.Join(slices.Sorted(strings.SplitSeq(parts[2], ",")), ",")}
	}
	gatherer, ok := registered.(prometheus.Gatherer)
	if !ok {
		registry := prometheus.NewRegistry()
		registry.MustRegister(registered)
		gatherer = registry
	}
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if m, ok := metrics[family.GetName()]; ok {
			m.kind = strings.ToLower(family.GetType().String())
			metrics[family.GetName()] = m
		}
	}
	return metrics
}
