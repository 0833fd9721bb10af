package docs

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
	"github.com/application-grid/application-grid/pkg/topology"
)

// pages are all pages of the repository, by their path in it.
func pages(t *testing.T) []string {
	t.Helper()
	var names []string
	root := docstest.Root(t)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/dev/*.md", "charts/*/*.md"} {
		found, err := fs.Glob(os.DirFS(root), pattern)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	if len(names) < 10 {
		t.Fatalf("only %q", names)
	}
	return names
}

var (
	fence   = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ +(.*?)\s*$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are those that GitHub makes of a page's headings.
func anchors(page string) map[string]bool {
	made := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(fence.ReplaceAllString(page, ""), -1) {
		text := link.ReplaceAllStringFunc(h[1], func(s string) string { return s[1:strings.Index(s, "]")] })
		slug := strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		for made[slug] {
			slug += "-1"
		}
		made[slug] = true
	}
	return made
}

// TestLinks: every link from one page to another, or to a file, leads somewhere, and so do anchors.
func TestLinks(t *testing.T) {
	t.Parallel()
	checked := 0
	for _, name := range pages(t) {
		text := code.ReplaceAllString(fence.ReplaceAllString(docstest.Page(t, name), ""), "")
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			checked++
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(docstest.Root(t), path)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", name, match[1])
				continue
			}
			if anchor != "" && !anchors(docstest.Page(t, path))[anchor] {
				t.Errorf("%s: the link %s leads to no heading; there are %q",
					name, match[1], slices.Sorted(maps.Keys(anchors(docstest.Page(t, path)))))
			}
		}
	}
	if checked < 30 {
		t.Errorf("only %d links were checked", checked)
	}
}

// constant is a string constant, and value its value.
var constant = regexp.MustCompile(`(?m)^\t(\w+)\s*=\s*"([^"]+)"`)

// TestNamesAreDocumented: docs/reference.md names every label, annotation and reason.
func TestNamesAreDocumented(t *testing.T) {
	t.Parallel()
	names, reference := docstest.Page(t, "pkg/apis/superedge.io/v1/names.go"), docstest.Page(t, "docs/reference.md")
	found := constant.FindAllStringSubmatch(names, -1)
	for _, c := range found {
		if !strings.Contains(reference, "`"+c[2]) && !strings.Contains(reference, c[2]+"`") {
			t.Errorf("docs/reference.md does not tell of %s, %q", c[1], c[2])
		}
	}
	if len(found) < 20 {
		t.Errorf("only %d constants were found in names.go", len(found))
	}
}

// rules is what is read of a PrometheusRule.
type rules struct {
	APIVersion string         `json:"apiVersion"`
	Kind       string         `json:"kind"`
	Metadata   map[string]any `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []rule `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// TestAlerts: the file is a PrometheusRule, and its alerts are made of metrics that there are.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var r rules
	if err := yaml.UnmarshalStrict([]byte(docstest.Page(t, "manifests/monitoring/alerts.yaml")), &r); err != nil {
		t.Fatal(err)
	}
	if r.APIVersion != "monitoring.coreos.com/v1" || r.Kind != "PrometheusRule" || r.Metadata["name"] == "" ||
		len(r.Spec.Groups) != 4 {
		t.Errorf("not a PrometheusRule with a group per program: %+v", r)
	}
	seen := map[string]bool{}
	for _, group := range r.Spec.Groups {
		for _, rule := range group.Rules {
			if rule.Alert == "" || seen[rule.Alert] {
				t.Errorf("an alert called %q is there twice, or has no name", rule.Alert)
			}
			seen[rule.Alert] = true
			if _, err := time.ParseDuration(rule.For); rule.For != "" && err != nil {
				t.Errorf("%s: %v", rule.Alert, err)
			}
			if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" ||
				rule.Annotations["description"] == "" {
				t.Errorf("%s lacks a severity, a summary or a description", rule.Alert)
			}
			expectMetrics(t, rule.Alert, rule.Expr)
		}
	}
}

// TestDashboard: the file is a dashboard whose panels are made of metrics that there are, and do not overlap.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var dashboard struct {
		Title  string `json:"title"`
		Panels []struct {
			ID      int    `json:"id"`
			Title   string `json:"title"`
			Type    string `json:"type"`
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
	}
	if err := json.Unmarshal([]byte(docstest.Page(t, "manifests/monitoring/dashboard.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] || panel.Title == "" || (panel.Type != "row" && len(panel.Targets) == 0) {
			t.Errorf("panel %d %q is there twice, or has no title or query", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				at := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Fatalf("%q lies over %q, or beyond the edge", panel.Title, taken[at])
				}
				taken[at] = panel.Title
			}
		}
		for _, target := range panel.Targets {
			expectMetrics(t, panel.Title, target.Expr)
		}
	}
	if len(ids) < 15 {
		t.Errorf("only %d panels", len(ids))
	}
}

var (
	label  = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|ignoring) \([^)]*\)`)
	word   = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)
	series = regexp.MustCompile(`_(bucket|sum|count)$`)
	// notMetrics are words of PromQL, as far as they are used here.
	notMetrics = []string{
		"sum", "min", "max", "count", "rate", "increase", "histogram_quantile", "vector", "and", "or", "unless", "by",
		"on",
	}
	// others' metrics that are used here.
	others = []string{"up", "process_resident_memory_bytes", "leader_election_master_status"}
)

// expectMetrics fails the test if an expression has a name of a metric that docs/reference.md does not tell of; that
// the page tells of those that there are is tested with the programs.
func expectMetrics(t *testing.T, where, expr string) {
	t.Helper()
	reference := docstest.Page(t, docstest.ReferencePage)
	if strings.Count(expr, "(") != strings.Count(expr, ")") || strings.Count(expr, "{") != strings.Count(expr, "}") ||
		strings.Count(expr, `"`)%2 != 0 {
		t.Errorf("%s: brackets or quotes do not match: %s", where, expr)
	}
	found := 0
	for _, name := range word.FindAllString(label.ReplaceAllString(expr, " "), -1) {
		if slices.Contains(notMetrics, name) {
			continue
		}
		found++
		if !slices.Contains(others, name) && !strings.Contains(reference, "`"+series.ReplaceAllString(name, "")+"`") {
			t.Errorf("%s: there is no metric %s: %s", where, name, expr)
		}
	}
	if found == 0 {
		t.Errorf("%s: no metric in %s", where, expr)
	}
}

// TestLogLines: the lines of docs/operate.md are ones that the programs write.
func TestLogLines(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	err := filepath.WalkDir(filepath.Join(docstest.Root(t), "pkg"),
		func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			source.Write(data)
			return err
		})
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, row := range docstest.Table(t, docstest.OperatePage, "## Log lines that matter")[2:] {
		for _, line := range docstest.Quoted(row[1]) {
			message := message.FindString(line)
			if strings.Contains(row[2], "client-go's") {
				continue
			}
			checked++
			if message == "" || !strings.Contains(source.String(), message) {
				t.Errorf("no program writes %s", line)
			}
			for _, key := range logKey.FindAllStringSubmatch(line, -1) {
				if !strings.Contains(source.String(), `"`+key[1]+`"`) {
					t.Errorf("no line of a log has %s: %s", key[1], line)
				}
			}
		}
	}
	if checked < 10 {
		t.Errorf("only %d lines were checked", checked)
	}
}

var (
	message = regexp.MustCompile(`^"[^"]*"`)
	logKey  = regexp.MustCompile(` (\w+)=`)
)

// TestTableOfTheRule: what docs/concepts.md says that nodes see is what the rule says.
func TestTableOfTheRule(t *testing.T) {
	t.Parallel()
	labels := map[string]topology.Labels{}
	ready := map[string]bool{"n1": true, "n2": true, "n3": true, "n4": false}
	for name := range ready {
		labels[name] = topology.Labels{"kubernetes.io/hostname": name}
	}
	rows := docstest.Table(t, "docs/concepts.md", "### The rule")
	nodes, checked := rows[0][1:], 0
	for _, row := range rows[2:] {
		quoted := docstest.Quoted(row[0])
		if len(row) != 5 || len(quoted) == 0 || quoted[0] == "topologyKeys" {
			continue
		}
		if !strings.HasPrefix(quoted[0], "[") { // | `zone1` | a | a | b | (none) |
			for i, value := range row[1:] {
				if value != "(none)" {
					labels[nodes[i]][quoted[0]] = value
				}
			}
			continue
		}
		keys, err := topology.ParseKeys(quoted[0])
		if err != nil {
			keys = topology.Unsatisfiable()
		}
		for i, from := range []string{"n1", "n3", "n4"} {
			checked++
			if sees := seen(keys, labels, ready, from); sees != row[1+i] {
				t.Errorf("%s: %s sees %q, not %q", row[0], from, sees, row[1+i])
			}
		}
	}
	if checked < 15 {
		t.Errorf("only %d cells were checked", checked)
	}
}

// seen are the nodes whose endpoint is seen from a node.
func seen(keys topology.Keys, labels map[string]topology.Labels, ready map[string]bool, from string) string {
	best := topology.NoRank
	for node, isReady := range ready {
		if isReady {
			best = min(best, keys.Rank(labels[from], labels[node]))
		}
	}
	decision := keys.Decide(labels[from], best)
	var sees []string
	for _, node := range slices.Sorted(maps.Keys(labels)) {
		if !keys.Governed() || decision.Keep(labels[node]) {
			sees = append(sees, node)
		}
	}
	if len(sees) == 0 {
		return "nothing"
	}
	return strings.Join(sees, " ")
}
