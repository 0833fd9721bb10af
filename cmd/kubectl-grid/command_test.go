package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// server is an API server that has these answers by path, and refuses some paths.
type server struct {
	objects   map[string]any
	forbidden string
}

// serving is a server with the objects of manifests, the collections that they are in, and these collections of all
// namespaces or without objects.
func serving(t *testing.T, manifests string, collections ...string) server {
	t.Helper()
	s := server{objects: map[string]any{}}
	for _, path := range collections {
		s.objects[path] = list{Items: []map[string]any{}}
	}
	inNamespace := regexp.MustCompile(`/namespaces/[^/]+/`)
	objects := clustertest.New(t, manifests).Objects
	for _, path := range slices.Sorted(maps.Keys(objects)) {
		object, collection := objects[path].Object, filepath.Dir(path)
		s.objects[path] = object
		in, _ := s.objects[collection].(list)
		s.objects[collection] = list{append(in.Items, object)}
		everywhere := inNamespace.ReplaceAllString(collection, "/")
		if in, ok := s.objects[everywhere].(list); ok && everywhere != collection {
			s.objects[everywhere] = list{append(in.Items, object)}
		}
	}
	return s
}

// list is a list as JSON.
type list struct {
	Items []map[string]any `json:"items"`
}

func (s server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.forbidden != "" && strings.Contains(r.URL.Path, s.forbidden) {
		answer(w, http.StatusForbidden, failure(http.StatusForbidden, metav1.StatusReasonForbidden,
			`nodes is forbidden: User "jane" cannot list resource "nodes"`, ""))
		return
	}
	object, ok := s.objects[r.URL.Path]
	switch {
	case ok && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
		var items []any
		for _, item := range object.(list).Items {
			items = append(items, map[string]any{"metadata": item["metadata"]})
		}
		answer(w, http.StatusOK, map[string]any{"kind": "PartialObjectMetadataList",
			"apiVersion": "meta.k8s.io/v1", "items": items})
	case ok:
		answer(w, http.StatusOK, object)
	case strings.Contains(r.URL.Path, "/services/") || strings.Contains(r.URL.Path, "/servicegrids/"):
		name := filepath.Base(r.URL.Path)
		answer(w, http.StatusNotFound, failure(http.StatusNotFound, metav1.StatusReasonNotFound,
			`services "`+name+`" not found`, name))
	default:
		http.NotFound(w, r) // as kube-apiserver answers for what it does not serve
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	data, err := json.Marshal(object)
	if err != nil {
		panic(err) // an object of the test's
	}
	_, _ = w.Write(data)
}

type result struct {
	code           int
	stdout, stderr string
}

// call runs a command line against an API server.
func call(t *testing.T, s http.Handler, args ...string) result {
	t.Helper()
	api := httptest.NewServer(s)
	defer api.Close()
	t.Setenv("KUBECONFIG", writeKubeconfig(t, api.URL))
	return callBare(t, args...)
}

func callBare(t *testing.T, args ...string) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

func writeKubeconfig(t *testing.T, url string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: '" + url + "'}}]\n" +
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: shop}}]\n" +
		"current-context: x\n" +
		"users: [{name: u, user: {}}]\n"
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// shop is a server with a grid of two sites, one of which lacks a pod, and its Service.
func shop(t *testing.T, more ...string) server {
	t.Helper()
	return serving(t, `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: echo, namespace: shop}
spec: {gridUniqKey: zone1, templatePool: {small: {selector: {matchLabels: {app: echo}}}}}
status:
  sites: 2
  states:
    east: {phase: Ready, replicas: 2, readyReplicas: 2, updatedReplicas: 2, availableReplicas: 2}
    west: {phase: Progressing, replicas: 2, readyReplicas: 1, updatedReplicas: 2, availableReplicas: 1, template: small}
  conditions: [{type: Ready, status: "True", reason: Ready}]
---
apiVersion: superedge.io/v1
kind: ServiceGrid
metadata: {name: echo, namespace: shop}
spec: {gridUniqKey: zone1}
status: {sites: 2, conditions: [{type: Ready, status: "True", reason: Ready}]}
---
apiVersion: v1
kind: Service
metadata:
  name: echo-svc
  namespace: shop
  annotations: {topologyKeys: '["zone1"]'}
  ownerReferences: [{kind: ServiceGrid, name: echo, uid: u, controller: true}]
---
apiVersion: v1
kind: Pod
metadata: {name: echo-west-1, namespace: shop}
spec: {nodeSelector: {zone1: west}}
status:
  conditions: [{type: PodScheduled, status: "False", reason: Unschedulable, message: "0/2 nodes\nare available"}]
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone1: east}}}
---
{apiVersion: v1, kind: Node, metadata: {name: n2, labels: {zone1: west}}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: echo-east, namespace: shop,
 ownerReferences: [{kind: DeploymentGrid, name: echo, uid: u, controller: true}]}}
---
{apiVersion: apps/v1, kind: Deployment, metadata: {name: echo-west, namespace: shop,
 ownerReferences: [{kind: DeploymentGrid, name: echo, uid: u, controller: true}]}}
---
`+strings.Join(more, "---\n"), "/apis/superedge.io/v1/namespaces/shop/statefulsetgrids",
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices")
}

// squeeze returns a text without the spaces between columns, and without what the server does not answer: few of these
// have all that kubectl grid check looks at, and TestAgreement has one.
func squeeze(text string) string {
	var lines []string
	text, _, _ = strings.Cut(text, "\nUNKNOWN")
	text = strings.TrimSuffix(text, "\n")
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return strings.Join(lines, "\n")
}

func TestStatus(t *testing.T) {
	// SuperEdge's cluster has no DaemonSetGrid: that is no failure.
	o := call(t, shop(t), "status")
	want := `KIND GRID KEY SITE DESIRED READY UPDATED STATE
DeploymentGrid echo zone1 east 2 2 2 Ready
DeploymentGrid echo zone1 west 2 1 2 Progressing: 1 of 2 pods not ready; pod echo-west-1: Unschedulable: 0/2 nodes are available
ServiceGrid echo zone1 <all> - - - Ready: Service echo-svc for 2 sites`
	if o.code != exitProblems || squeeze(o.stdout) != want || o.stderr != "" {
		t.Errorf("got %d\n%s\n%s", o.code, o.stdout, o.stderr)
	}
	o = call(t, shop(t), "status", "dg/echo", "-o", "wide", "--problems")
	want = `KIND GRID KEY SITE DESIRED READY UPDATED AVAILABLE NODES TEMPLATE CHILD OTHERS OWN STATE
DeploymentGrid echo zone1 west 2 1 2 1 1 small echo-west - Progressing: 1 of 2 pods not ready; pod echo-west-1: Unschedulable: 0/2 nodes are available`
	if o.code != exitProblems || squeeze(o.stdout) != want {
		t.Errorf("got %d\n%s\n%s", o.code, o.stdout, o.stderr)
	}
	if o = call(t, shop(t), "status", "servicegrids"); o.code != flags.ExitFailure {
		t.Errorf("a healthy grid of a cluster that cannot be read: got %+v", o)
	}
	if o = call(t, shop(t), "status", "sg", "--problems"); o.code != flags.ExitFailure || squeeze(o.stdout) != "" || o.stderr != "" {
		t.Errorf("got %+v", o)
	}
	if o = call(t, shop(t), "status", "ssg"); o.code != 0 || o.stderr != "No grids found in shop namespace.\n" {
		t.Errorf("none is no problem: got %+v", o)
	}
	if o = call(t, shop(t), "status", "ssg", "-o", "json"); o.code != 0 ||
		squeeze(o.stdout) != "{\n\"kind\": \"GridStatusList\",\n\"apiVersion\": "+
			"\"kubectl-grid.superedge.io/v1alpha1\",\n\"grids\": []\n}" {
		t.Errorf("got %+v", o)
	}
}

// TestEncodings: JSON and YAML say the same, and have the names that are documented.
func TestEncodings(t *testing.T) {
	for _, args := range []string{"status dg", "view echo-svc"} {
		asJSON := call(t, shop(t), append(strings.Fields(args), "-ojson")...)
		asYAML := call(t, shop(t), append(strings.Fields(args), "-oyaml")...)
		converted, err := yaml.YAMLToJSON([]byte(asYAML.stdout))
		if err != nil {
			t.Fatal(err)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, []byte(asJSON.stdout)); err != nil {
			t.Fatal(err)
		}
		var a, b any
		if json.Unmarshal(converted, &a) != nil || json.Unmarshal(compact.Bytes(), &b) != nil ||
			asJSON.code != asYAML.code || asJSON.code == 0 {
			t.Errorf("%s: got %+v, %+v", args, asJSON, asYAML)
		}
		for _, name := range []string{
			`{"kind":"GridStatusList","apiVersion":"kubectl-grid.superedge.io/v1alpha1","grids":[{"kind":"DeploymentGrid"`,
			`"gridUniqKey":"zone1"`, `"phase":"Progressing"`,
			`"problem":"1 of 2 pods not ready; pod echo-west-1: Unschedulable: 0/2 nodes\nare available"`,
			`"healthy":false`,
		} {
			if args == "status dg" && !strings.Contains(compact.String(), name) {
				t.Errorf("no %s in %s", name, compact.String())
			}
		}
		for _, name := range []string{
			`{"kind":"ServiceView","apiVersion":"kubectl-grid.superedge.io/v1alpha1","namespace":"shop"`,
			`"topologyKeys":["zone1"]`, `"closed":false`, `"verdict":{"edgeNodes":0,"keeping":0,"open":2}`, `"nodes":["n1"]`,
			`"endpoints":[]`,
		} {
			if args != "status dg" && !strings.Contains(compact.String(), name) {
				t.Errorf("no %s in %s", name, compact.String())
			}
		}
	}
}

func TestView(t *testing.T) {
	want := `Service shop/echo-svc of ServiceGrid echo, topologyKeys ["zone1"]

SITE NODES VERDICT KEY READY ENDPOINT POD ON NODE STATE
east n1 open zone1 0/0 <none> - - -
west n2 open zone1 0/0 <none> - - -

No endpoint is ready anywhere.`
	for _, name := range []string{"echo-svc", "echo", "sg/echo", "svc/echo-svc"} {
		if o := call(t, shop(t), "view", name); o.code != flags.ExitFailure || squeeze(o.stdout) != want || o.stderr != "" {
			t.Errorf("%s: got %+v", name, o)
		}
	}
	for _, test := range []struct {
		annotation, value string
		code              int
		says              string
	}{
		{"topologyKeys", "zone1", exitProblems, "ERROR: annotation topologyKeys=zone1 is not a JSON array"},
		{"openyurt.io/topologyKeys", "openyurt.io/nodepool", flags.ExitFailure,
			`topologyKeys ["apps.openyurt.io/nodepool"] (annotation openyurt.io/topologyKeys)`},
		{"openyurt.io/topologyKeys", "zone1", exitProblems,
			"ERROR: annotation openyurt.io/topologyKeys=zone1 is not one of"},
		{"else", "", 0, "is not governed"},
		{"else", "", 0, "No endpoint is ready anywhere."},
	} {
		s := shop(t, fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: plain, namespace: shop,
 annotations: {%s: %s}}}`, test.annotation, strconv.Quote(test.value)))
		if o := call(t, s, "view", "plain"); o.code != test.code || !strings.Contains(o.stdout, test.says) {
			t.Errorf("%+v: got %+v", test, o)
		}
	}
}

// TestFailures: a sentence that says what to change, and a code of its own.
func TestFailures(t *testing.T) {
	noNodes := shop(t)
	noNodes.forbidden = "/nodes"
	noPods := shop(t)
	noPods.forbidden = "/pods"
	noGrids := shop(t)
	noGrids.forbidden = "/deploymentgrids"
	for _, test := range []struct {
		name   string
		server server
		args   string
		code   int
		says   string
	}{
		{"no CRDs", server{}, "status", flags.ExitFailure, "the server has no superedge.io/v1: install " +
			"application-grid-controller"},
		{"no CRD of the kind", server{}, "status dsg", flags.ExitFailure, "the server has no superedge.io/v1"},
		{"no such grid", shop(t), "status dg/absent", flags.ExitFailure,
			`deploymentgrids "absent" not found in namespace shop`},
		{"no such grids", shop(t), "status dg echo absent", flags.ExitFailure, `deploymentgrids "absent" not found`},
		{"no such Service", shop(t), "view absent", flags.ExitFailure,
			"no Service and no ServiceGrid absent exists in namespace shop"},
		{"no such Service, by kind", shop(t), "view svc/absent", flags.ExitFailure, `services "absent" not found`},
		{"forbidden", noGrids, "status", flags.ExitFailure, "forbidden"},
		{"nodes forbidden, which a status can do without", noNodes, "status", exitProblems,
			"Warning: the sites are those that the controller has reported, as nodes could not be read: nodes is forbidden"},
		{"pods forbidden", noPods, "status dg", exitProblems, "Warning: why pods are not ready is left out, as they " +
			"could not be read"},
		{"nodes forbidden, which a view needs", noNodes, "view echo", flags.ExitFailure,
			"asking for nodes, whose labels are the sites: it could not be read"},
		{"no such kind", shop(t), "status pods", flags.ExitUsage,
			`"pods" is not a kind of grid: must be one of deploymentgrids (dg), `},
		{"no name", shop(t), "status dg/", flags.ExitUsage, "give one KIND/NAME"},
		{"two names", shop(t), "status dg/a dg/b", flags.ExitUsage, "give one KIND/NAME"},
		{"a name in all namespaces", shop(t), "status dg/a -A", flags.ExitUsage, "leave out -A and -l, or the name"},
		{"a name and labels", shop(t), "status dg a -l x=y", flags.ExitUsage, "leave out -A and -l, or the name"},
		{"a selector that is none", shop(t), "status -l =,=", flags.ExitUsage, "--selector"},
		{"no such output", shop(t), "status -o xml", flags.ExitUsage, "must be table, wide, json or yaml"},
		{"no Service", shop(t), "view", flags.ExitUsage, "give the name of one Service"},
		{"neither Service nor ServiceGrid", shop(t), "view dg/echo", flags.ExitUsage,
			"neither a Service (svc/NAME) nor a ServiceGrid (sg/NAME)"},
		{"no such flag", shop(t), "view --no-such-flag", flags.ExitUsage, "--no-such-flag"},
		{"a mistyped command", shop(t), "statsu", flags.ExitUsage, "Did you mean this?\n\tstatus"},
		{"no such command", shop(t), "look", flags.ExitUsage, `unknown command "look"`},
		{"no such context", shop(t), "status --context absent", flags.ExitFailure, `context "absent" does not exist`},
		{"no such kubeconfig", shop(t), "status --kubeconfig /absent", flags.ExitFailure, "/absent"},
	} {
		if o := call(t, test.server, strings.Fields(test.args)...); o.code != test.code ||
			!strings.Contains(o.stderr, test.says) {
			t.Errorf("%s: got %+v", test.name, o)
		}
	}
}

func TestVersionAndHelp(t *testing.T) {
	if o := callBare(t, "--version"); o.code != 0 || !strings.HasPrefix(o.stdout, "kubectl-grid ") {
		t.Errorf("got %+v", o)
	}
	for _, args := range []string{"", "--help", "status --help", "view --help", "check --help", "prove --help"} {
		if o := callBare(t, strings.Fields(args)...); o.code != 0 || !strings.Contains(o.stdout, "kubectl grid") ||
			!strings.Contains(o.stdout, "Exit codes: 0") {
			t.Errorf("%q: got %+v", args, o)
		}
	}
	if o := callBare(t, "view", "--help"); strings.Contains(o.stdout, "--kubeconfig") ||
		!strings.Contains(o.stdout, "--output") || !strings.Contains(o.stdout, "kubectl grid options") {
		t.Errorf("the help of a command has other flags than its own: %s", o.stdout)
	}
	if o := callBare(t, "options"); !strings.Contains(o.stdout, "--kubeconfig") || strings.Contains(o.stdout, "--output") {
		t.Errorf("the flags that all commands have: %s", o.stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if o := callBare(t, "completion", shell); o.code != 0 || len(o.stdout) < 1000 {
			t.Errorf("%s: got %d bytes, %s", shell, len(o.stdout), o.stderr)
		}
	}
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"status |":               "deploymentgrids statefulsetgrids daemonsetgrids servicegrids",
		"status dg/|":            "dg/echo",
		"status dg |":            "echo",
		"status dg echo |":       "",
		"status pods |":          "",
		"status -o |":            "table wide json yaml",
		"view |":                 "echo-svc",
		"view sg/|":              "sg/echo",
		"view svc/|":             "svc/echo-svc",
		"view echo-svc |":        "",
		"view -n elsewhere |":    "",
		"view -n shop |":         "echo-svc",
		"view -n shop ec|":       "echo-svc",
		"status --context |":     "x",
		"check |":                "",
		"check -o |":             "table wide json yaml kustomization values",
		"prove |":                "echo-svc",
		"prove sg/|":             "sg/echo",
		"prove -o |":             "table json yaml",
		"prove --requests |":     "",
		"status --all-names|":    "--all-namespaces",
		"status --kubeconfig=|/": "",
	} {
		before, word, _ := strings.Cut(line, "|")
		fields := strings.Fields(before)
		if !strings.HasSuffix(before, " ") {
			word, fields = fields[len(fields)-1]+word, fields[:len(fields)-1]
		}
		o := call(t, shop(t), append(append([]string{"__complete"}, fields...), word)...)
		var got []string
		for suggestion := range strings.Lines(o.stdout) {
			if suggestion = strings.TrimSpace(suggestion); !strings.HasPrefix(suggestion, ":") {
				suggestion, _, _ = strings.Cut(suggestion, "\t")
				got = append(got, suggestion)
			}
		}
		if o.code != 0 || strings.Join(got, " ") != want {
			t.Errorf("%s: got %q (%d, %s), want %q", line, got, o.code, o.stderr, want)
		}
	}
}
