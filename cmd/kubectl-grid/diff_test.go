package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// dryRuns is an API server without grids and workloads, that answers a dry run with what it was sent, and refuses what
// has refused in its path.
type dryRuns struct {
	server
	refused string

	mu sync.Mutex // guards all below
	// asked are the dry runs, kept the requests that would have changed something.
	asked, kept []string
}

func (s *dryRuns) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		_, list := s.objects[r.URL.Path]
		if !list && strings.HasSuffix(r.URL.Path, "/controllerrevisions") {
			answer(w, http.StatusOK, &appsv1.ControllerRevisionList{
				TypeMeta: metav1.TypeMeta{Kind: "ControllerRevisionList", APIVersion: "apps/v1"},
			})
			return
		}
		if !list && (strings.Contains(r.URL.Path, "grids/") || strings.Contains(r.URL.Path, "/deployments/")) {
			answer(w, http.StatusNotFound, failure(http.StatusNotFound, metav1.StatusReasonNotFound, "not found",
				filepath.Base(r.URL.Path)))
			return
		}
		s.server.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	request := r.Method + " " + r.URL.Path
	if r.URL.Query().Get("dryRun") != metav1.DryRunAll {
		s.kept = append(s.kept, request)
	}
	s.asked = append(s.asked, request)
	if s.refused != "" && strings.Contains(r.URL.Path, s.refused) {
		answer(w, http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"it says no", filepath.Base(r.URL.Path)))
		return
	}
	u := &unstructured.Unstructured{}
	if err := json.NewDecoder(r.Body).Decode(&u.Object); err != nil {
		panic(err) // a request of the client's
	}
	u.SetUID("made-up")
	if s.objects[r.URL.Path] != nil {
		u.SetUID("u") // as all have of clustertest
	}
	answer(w, http.StatusOK, u.Object)
}

func failure(code int32, reason metav1.StatusReason, message, name string) *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: code, Reason: reason,
		Message: message,
		Details: &metav1.StatusDetails{Name: name},
	}
}

const echoGrid = `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: echo}, spec: {gridUniqKey: zone1,
 templates: {west: small}, templatePool: {small: {selector: {}}}, template: {selector: {matchLabels: {app: x}}}}}`

// noGrids is an API server with the nodes of shop, and without grids and workloads.
func noGrids(t *testing.T, refused string) *dryRuns {
	t.Helper()
	return &dryRuns{refused: refused, server: serving(t, `{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone1: east}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone1: west}}}`, "/apis/apps/v1/namespaces/shop/deployments")}
}

// kubectlReads puts a program kubectl before all others, which has read these objects, and writes its arguments to
// stderr.
func kubectlReads(t *testing.T, manifests string) {
	t.Helper()
	script := "echo \"$@\" >&2\ncat <<'END'\n"
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		object, err := yaml.YAMLToJSON([]byte(document))
		if err != nil {
			t.Fatal(err)
		}
		script += string(object) + "\n"
	}
	fakeKubectl(t, script+"END\n")
}

// TestDiff: every request that could change something is a dry run; the exit codes are as documented.
func TestDiff(t *testing.T) {
	for _, test := range []struct {
		name, manifests, refused string
		args                     []string
		code                     int
		says                     []string
	}{
		{"new grid", echoGrid, "", nil, exitDifferences, []string{
			"# DeploymentGrid shop/echo, template default, 1 site: east\n",
			"# DeploymentGrid shop/echo, template small, 1 site: west\n", "+        zone1: east\n",
		}},
		{"refused child", echoGrid, "echo-west", nil, exitProblems, []string{"1 site: west\n# REFUSED: it says no\n",
			"+  name: echo-east\n"}},
		{"refused grid", echoGrid, "deploymentgrids", nil, exitProblems,
			[]string{"# DeploymentGrid shop/echo\n# REFUSED: it says no\n"}},
		{"template that is missing", strings.Replace(echoGrid, "small: {selector: {}}", "", 1), "", nil, exitProblems,
			[]string{
				`1 site: west` + "\n" +
					`# REFUSED: there is no spec.templatePool.small (spec.templates.west names it)`,
			}},
		{"no sites", strings.Replace(echoGrid, "zone1", "rack", 1), "", nil, 0,
			[]string{"# no node has the label rack, so there is nothing to compare\n"}},
		{
			"no grids", "{apiVersion: v1, kind: ConfigMap}", "", nil, flags.ExitUsage,
			[]string{"error: found no grid in grids.yaml, -"},
		},
		{
			"others", echoGrid + "\n---\n{apiVersion: v1, kind: ConfigMap}\n---\n{apiVersion: superedge.io/v2, kind: " +
				"ServiceGrid}", "", []string{"--context", "x", "-n", "shop", "--proxy-url", ""}, exitDifferences, []string{
				"patch --local --type=merge --patch={} --output=json --context=x --filename=grids.yaml --filename=-\n",
				"Not compared: 2 objects of another kind.",
			},
		},
		{"another namespace", strings.Replace(echoGrid, "name: echo", "name: echo, namespace: mall", 1), "",
			[]string{"-n", "shop"}, flags.ExitUsage, []string{"is of namespace mall, and --namespace says shop"}},
	} {
		kubectlReads(t, test.manifests)
		s := noGrids(t, test.refused)
		o := call(t, s, append([]string{"diff", "-f", "grids.yaml", "-f", "-"}, test.args...)...)
		for _, says := range test.says {
			if !strings.Contains(o.stdout+o.stderr, says) {
				t.Errorf("%s: it does not say %q", test.name, says)
			}
		}
		if o.code != test.code || len(s.kept) > 0 {
			t.Errorf("%s: got %d, and these requests were no dry runs: %q", test.name, o.code, s.kept)
		}
		if t.Failed() {
			t.Fatalf("%s: %s%s%s", test.name, o.stdout, o.stderr, fmt.Sprint(s.asked))
		}
	}
}

// TestDiffProgram: another program compares, if the user names one. Its failure is no difference, nor is kubectl's.
func TestDiffProgram(t *testing.T) {
	kubectlReads(t, echoGrid)
	t.Setenv(externalDiff, "echo compare")
	if o := call(t, noGrids(t, ""), "diff", "-f", "-"); o.code != exitDifferences ||
		!strings.Contains(o.stdout,
			"compare LIVE/Deployment.shop.echo-east.yaml MERGED/Deployment.shop.echo-east.yaml\n") {
		t.Errorf("got %+v", o)
	}
	t.Setenv(externalDiff, "/nonexistent")
	if o := call(t, noGrids(t, ""), "diff", "-f", "-"); o.code != flags.ExitUsage ||
		!strings.Contains(o.stderr, "comparing with /nonexistent") {
		t.Errorf("got %+v", o)
	}
	fakeKubectl(t, "exit 1\n")
	if o := call(t, noGrids(t, ""), "diff", "-f", "-"); o.code != flags.ExitUsage ||
		!strings.Contains(o.stderr, "error: reading the files with kubectl: exit status 1") {
		t.Errorf("got %+v", o)
	}
}
