package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/program/flags"
)

// server is an API server that has these answers by path, and refuses some paths.
type server struct {
	objects   map[string]runtime.Object
	forbidden string
}

func (s server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.forbidden != "" && strings.Contains(r.URL.Path, s.forbidden) {
		answer(w, http.StatusForbidden, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusForbidden,
			Reason:  metav1.StatusReasonForbidden,
			Message: `nodes is forbidden: User "jane" cannot list resource "nodes"`,
		})
		return
	}
	object, ok := s.objects[r.URL.Path]
	switch {
	case ok && strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList"):
		answer(w, http.StatusOK, onlyMetadata(object))
	case ok:
		answer(w, http.StatusOK, object)
	case strings.Contains(r.URL.Path, "/services/") || strings.Contains(r.URL.Path, "/servicegrids/"):
		name := filepath.Base(r.URL.Path)
		answer(w, http.StatusNotFound, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: http.StatusNotFound,
			Reason:  metav1.StatusReasonNotFound,
			Message: `services "` + name + `" not found`, Details: &metav1.StatusDetails{Name: name, Kind: "services"},
		})
	default:
		http.NotFound(w, r) // as kube-apiserver answers for what it does not serve
	}
}

// onlyMetadata is a list as it is answered to who asks for metadata.
func onlyMetadata(list runtime.Object) *metav1.PartialObjectMetadataList {
	answer := &metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList",
		APIVersion: "meta.k8s.io/v1"}}
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		object := item.(metav1.ObjectMetaAccessor).GetObjectMeta()
		answer.Items = append(answer.Items, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), Labels: object.GetLabels(),
				Annotations: object.GetAnnotations(), OwnerReferences: object.GetOwnerReferences(),
				CreationTimestamp: object.GetCreationTimestamp(),
			},
		})
		return nil
	})
	return answer
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
func shop() server {
	ready := v1.SiteState{Phase: v1.SiteReady, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	missing := v1.SiteState{Phase: v1.SiteProgressing, Replicas: 2, ReadyReplicas: 1, UpdatedReplicas: 2,
		AvailableReplicas: 1, Template: "small"}
	conditions := []metav1.Condition{{Type: v1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1.ReasonReady}}
	owner := func(kind string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: "echo", UID: "u", Controller: ptr.To(true)}}
	}
	child := func(name string) metav1.PartialObjectMetadata {
		return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			OwnerReferences: owner("DeploymentGrid")}}
	}
	node := func(name, site string) corev1.Node {
		return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone1": site}}}
	}
	deploymentGrids := &v1.DeploymentGridList{Items: []v1.DeploymentGrid{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u"}, Spec: v1.WorkloadGridSpec{
			GridUniqKey:  "zone1",
			TemplatePool: map[string]v1.Template{"small": {Raw: []byte(`{"selector":{"matchLabels":{"app":"echo"}}}`)}},
		},
		Status: v1.WorkloadGridStatus{Sites: 2, States: map[string]v1.SiteState{"east": ready, "west": missing},
			Conditions: conditions},
	}}}
	service := corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "echo-svc", OwnerReferences: owner("ServiceGrid"),
		Annotations: map[string]string{"topologyKeys": `["zone1"]`},
	}}
	return server{objects: map[string]runtime.Object{
		"/apis/superedge.io/v1/namespaces/shop/deploymentgrids":  deploymentGrids,
		"/apis/superedge.io/v1/namespaces/shop/statefulsetgrids": &v1.StatefulSetGridList{},
		"/apis/superedge.io/v1/namespaces/shop/servicegrids": &v1.ServiceGridList{Items: []v1.ServiceGrid{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u"},
			Spec:       v1.ServiceGridSpec{GridUniqKey: "zone1"},
			Status:     v1.ServiceGridStatus{Sites: 2, Conditions: conditions},
		}}},
		"/apis/apps/v1/namespaces/shop/deployments": &metav1.PartialObjectMetadataList{
			Items: []metav1.PartialObjectMetadata{child("echo-east"), child("echo-west")},
		},
		"/api/v1/namespaces/shop/services":          &corev1.ServiceList{Items: []corev1.Service{service}},
		"/api/v1/namespaces/shop/services/echo-svc": &service,
		"/api/v1/namespaces/shop/pods": &corev1.PodList{Items: []corev1.Pod{{
			ObjectMeta: metav1.ObjectMeta{Name: "echo-west-1"},
			Spec:       corev1.PodSpec{NodeSelector: map[string]string{"zone1": "west"}},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled,
				Status: corev1.ConditionFalse,
				Reason: "Unschedulable", Message: "0/2 nodes\nare available"}}},
		}}},
		"/api/v1/nodes": &corev1.NodeList{Items: []corev1.Node{node("n1", "east"), node("n2", "west")}},
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices": &discoveryv1.EndpointSliceList{},
	}}
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
	o := call(t, shop(), "status")
	want := `KIND GRID KEY SITE DESIRED READY UPDATED STATE
DeploymentGrid echo zone1 east 2 2 2 Ready
DeploymentGrid echo zone1 west 2 1 2 Progressing: 1 of 2 pods not ready; pod echo-west-1: Unschedulable: 0/2 nodes are available
ServiceGrid echo zone1 <all> - - - Ready: Service echo-svc for 2 sites`
	if o.code != exitProblems || squeeze(o.stdout) != want || o.stderr != "" {
		t.Errorf("got %d\n%s\n%s", o.code, o.stdout, o.stderr)
	}
	o = call(t, shop(), "status", "dg/echo", "-o", "wide", "--problems")
	want = `KIND GRID KEY SITE DESIRED READY UPDATED AVAILABLE NODES TEMPLATE CHILD OTHERS OWN STATE
DeploymentGrid echo zone1 west 2 1 2 1 1 small echo-west - Progressing: 1 of 2 pods not ready; pod echo-west-1: Unschedulable: 0/2 nodes are available`
	if o.code != exitProblems || squeeze(o.stdout) != want {
		t.Errorf("got %d\n%s\n%s", o.code, o.stdout, o.stderr)
	}
	if o = call(t, shop(), "status", "servicegrids"); o.code != flags.ExitFailure {
		t.Errorf("a healthy grid of a cluster that cannot be read: got %+v", o)
	}
	if o = call(t, shop(), "status", "sg", "--problems"); o.code != flags.ExitFailure || squeeze(o.stdout) != "" || o.stderr != "" {
		t.Errorf("got %+v", o)
	}
	if o = call(t, shop(), "status", "ssg"); o.code != 0 || o.stderr != "No grids found in shop namespace.\n" {
		t.Errorf("none is no problem: got %+v", o)
	}
	if o = call(t, shop(), "status", "ssg", "-o", "json"); o.code != 0 ||
		squeeze(o.stdout) != "{\n\"kind\": \"GridStatusList\",\n\"apiVersion\": "+
			"\"kubectl-grid.superedge.io/v1alpha1\",\n\"grids\": []\n}" {
		t.Errorf("got %+v", o)
	}
}

// TestEncodings: JSON and YAML say the same, and have the names that are documented.
func TestEncodings(t *testing.T) {
	for _, args := range []string{"status dg", "view echo-svc"} {
		asJSON := call(t, shop(), append(strings.Fields(args), "-ojson")...)
		asYAML := call(t, shop(), append(strings.Fields(args), "-oyaml")...)
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
		if o := call(t, shop(), "view", name); o.code != flags.ExitFailure || squeeze(o.stdout) != want || o.stderr != "" {
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
		s := shop()
		s.objects["/api/v1/namespaces/shop/services/plain"] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "plain", Annotations: map[string]string{test.annotation: test.value},
		}}
		if o := call(t, s, "view", "plain"); o.code != test.code || !strings.Contains(o.stdout, test.says) {
			t.Errorf("%+v: got %+v", test, o)
		}
	}
}

// TestFailures: a sentence that says what to change, and a code of its own.
func TestFailures(t *testing.T) {
	noNodes := shop()
	noNodes.forbidden = "/nodes"
	noPods := shop()
	noPods.forbidden = "/pods"
	noGrids := shop()
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
		{"no such grid", shop(), "status dg/absent", flags.ExitFailure,
			`deploymentgrids "absent" not found in namespace shop`},
		{"no such grids", shop(), "status dg echo absent", flags.ExitFailure, `deploymentgrids "absent" not found`},
		{"no such Service", shop(), "view absent", flags.ExitFailure,
			"no Service and no ServiceGrid absent exists in namespace shop"},
		{"no such Service, by kind", shop(), "view svc/absent", flags.ExitFailure, `services "absent" not found`},
		{"forbidden", noGrids, "status", flags.ExitFailure, "forbidden"},
		{"nodes forbidden, which a status can do without", noNodes, "status", exitProblems,
			"Warning: the sites are those that the controller has reported, as nodes could not be read: nodes is forbidden"},
		{"pods forbidden", noPods, "status dg", exitProblems, "Warning: why pods are not ready is left out, as they " +
			"could not be read"},
		{"nodes forbidden, which a view needs", noNodes, "view echo", flags.ExitFailure,
			"asking for nodes, whose labels are the sites: it could not be read"},
		{"no such kind", shop(), "status pods", flags.ExitUsage,
			`"pods" is not a kind of grid: must be one of deploymentgrids (dg), `},
		{"no name", shop(), "status dg/", flags.ExitUsage, "give one KIND/NAME"},
		{"two names", shop(), "status dg/a dg/b", flags.ExitUsage, "give one KIND/NAME"},
		{"a name in all namespaces", shop(), "status dg/a -A", flags.ExitUsage, "leave out -A and -l, or the name"},
		{"a name and labels", shop(), "status dg a -l x=y", flags.ExitUsage, "leave out -A and -l, or the name"},
		{"a selector that is none", shop(), "status -l =,=", flags.ExitUsage, "--selector"},
		{"no such output", shop(), "status -o xml", flags.ExitUsage, "must be table, wide, json or yaml"},
		{"no Service", shop(), "view", flags.ExitUsage, "give the name of one Service"},
		{"neither Service nor ServiceGrid", shop(), "view dg/echo", flags.ExitUsage,
			"neither a Service (svc/NAME) nor a ServiceGrid (sg/NAME)"},
		{"no such flag", shop(), "view --no-such-flag", flags.ExitUsage, "--no-such-flag"},
		{"a mistyped command", shop(), "statsu", flags.ExitUsage, "Did you mean this?\n\tstatus"},
		{"no such command", shop(), "look", flags.ExitUsage, `unknown command "look"`},
		{"no such context", shop(), "status --context absent", flags.ExitFailure, `context "absent" does not exist`},
		{"no such kubeconfig", shop(), "status --kubeconfig /absent", flags.ExitFailure, "/absent"},
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
		o := call(t, shop(), append(append([]string{"__complete"}, fields...), word)...)
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
