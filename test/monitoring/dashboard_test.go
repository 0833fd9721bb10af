package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// dashboard is what is read of it: the queries.
type dashboard struct {
	Panels []struct {
		Title   string `json:"title"`
		Targets []struct {
			Expr         string `json:"expr"`
			LegendFormat string `json:"legendFormat"`
		} `json:"targets"`
	} `json:"panels"`
}

var legendLabel = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)

// TestDashboard asks Prometheus' engine every query of the dashboard, over time series of just the metrics that it
// names: each has an answer, and each answer has the labels that the legend shows.
func TestDashboard(t *testing.T) {
	var d dashboard
	must(t, json.Unmarshal(read(t, "dashboard.json"), &d))
	asked := 0
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			asked++
			t.Run(panel.Title+": "+target.LegendFormat, func(t *testing.T) {
				query := strings.ReplaceAll(target.Expr, "$instance", "edge-1|edge-2")
				if strings.Contains(query, "$") {
					t.Fatalf("a variable that is not known here: %s", query)
				}
				vector := ask(t, query)
				if len(vector) == 0 {
					t.Fatalf("no answer: %s", query)
				}
				for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
					if vector[0].Metric.Get(label[1]) == "" {
						t.Errorf("the legend's label %s is not in %s", label[1], vector[0].Metric)
					}
				}
			})
		}
	}
	if asked < 15 {
		t.Errorf("only %d queries", asked)
	}
}

// ask evaluates a query over an hour and a half of the series that it names.
func ask(t *testing.T, query string) promql.Vector {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	must(t, err)
	series := map[string]bool{}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		selector, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		of := map[string]string{ // whatever a metric may be labelled with
			"instance": "edge-1", "source": "services", "resource": "services", "view": "kept",
			"kind":      "DeploymentGrid",
			"namespace": "shop", "service": "echo", "code": "200",
		}
		name := ""
		for _, matcher := range selector.LabelMatchers {
			switch {
			case matcher.Name == labels.MetricName:
				name = matcher.Value
			case matcher.Type == labels.MatchEqual:
				of[matcher.Name] = matcher.Value
			case !matcher.Matches(of[matcher.Name]):
				t.Errorf("no value is known for %s", matcher)
			}
		}
		buckets := []string{""}
		if strings.HasSuffix(name, "_bucket") {
			buckets = []string{"0.1", "+Inf"}
		}
		for _, le := range buckets {
			if le != "" {
				of["le"] = le
			}
			series[fmt.Sprintf("  %s%s 0+1x90\n", name, labels.FromMap(of))] = true
		}
		return nil
	})
	db := promqltest.LoadedStorage(t, "load 1m\n"+strings.Join(slices.Sorted(maps.Keys(series)), ""))
	engine := promqltest.NewTestEngine(t, false, 5*time.Minute, 1e6)
	asked, err := engine.NewInstantQuery(t.Context(), db, nil, query, time.Unix(0, 0).Add(90*time.Minute))
	must(t, err)
	defer asked.Close()
	vector, err := asked.Exec(t.Context()).Vector()
	must(t, err)
	return vector
}
