package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/pkg/program/flags"
)

// versioned is a server that also says of which version it is.
type versioned struct {
	server

	version string
}

func (s versioned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/version" && s.version != "" {
		answer(w, http.StatusOK, map[string]string{"gitVersion": s.version})
		return
	}
	s.server.ServeHTTP(w, r)
}

// TestCheck: findings as a table, as JSON and as YAML, and the exit codes.
func TestCheck(t *testing.T) {
	// Hardly anything may be read, and nothing is known to be wrong.
	few := versioned{serving(t, "", "/api/v1/nodes"), "v1.37.1"}
	few.forbidden = "/customresourcedefinitions"
	o := call(t, few, "check")
	if o.code != flags.ExitFailure || o.stderr != "" || !strings.Contains(o.stdout,
		"UNKNOWN  DaemonSet: it could not be read") ||
		!strings.Contains(o.stdout, "         → ask again as somebody who may read it") ||
		!strings.Contains(o.stdout, "ok       API server: it is v1.37.1") {
		t.Errorf("got %+v", o)
	}
	var report struct {
		APIVersion, Kind string
		Summary          map[string]int
		Findings         []map[string]any
	}
	o = call(t, few, "check", "--pre", "-o", "json")
	if err := json.Unmarshal([]byte(o.stdout), &report); err != nil ||
		report.APIVersion != "kubectl-grid.superedge.io/v1alpha1" || report.Kind != "Preflight" ||
		len(report.Findings) == 0 || len(report.Summary) != 4 || report.Findings[0]["severity"] != "warning" {
		t.Errorf("got %+v, %v", o, err)
	}
	if err := yaml.Unmarshal([]byte(call(t, few, "check", "-o", "yaml").stdout), &report); err != nil ||
		report.Kind != "Check" {
		t.Errorf("got %+v, %v", report, err)
	}
	// A failure counts more than what could not be read.
	old := few
	old.version = "v1.19.0"
	if o := call(t, old, "check"); o.code != exitProblems || !strings.Contains(o.stdout,
		"FAILURE  API server: it is v1.19.0") {
		t.Errorf("got %+v", o)
	}
	for args, want := range map[string]result{
		"check":                    {flags.ExitFailure, "", "asking the API server for its version"}, // it says none
		"check -o kustomization":   {flags.ExitUsage, "", "-o kustomization goes with --pre"},
		"check all":                {flags.ExitUsage, "", `unknown command "all"`},
		"check -o xml":             {flags.ExitUsage, "", "must be table, wide, json, yaml, kustomization or values"},
		"check --kubeconfig=/none": {flags.ExitFailure, "", "/none"},
	} {
		if o := call(t, server{}, strings.Fields(args)...); o.code != want.code || o.stdout != want.stdout ||
			!strings.Contains(o.stderr, want.stderr) {
			t.Errorf("%s: got %+v", args, o)
		}
	}
}

// TestCheckInstall: the files for a cluster go to stdout alone.
func TestCheckInstall(t *testing.T) {
	s := versioned{serving(t, `{apiVersion: v1, kind: Node, metadata: {name: n0},
 status: {nodeInfo: {kubeletVersion: v1.37.1+k3s1, operatingSystem: linux, architecture: amd64}}}`, "/api/v1/pods",
		"/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments", "/apis/apps/v1/statefulsets"), "v1.37.1"}
	for format, want := range map[string]string{"kustomization": "# edge/kustomization.yaml\n",
		"values": "image:\n  registry: example.org\n  tag: \"v7\"\ndistribution: k3s\n"} {
		o := call(t, s, "check", "--pre", "--registry=example.org", "--tag=v7", "-o", format)
		if !strings.HasPrefix(o.stdout, want) || strings.Contains(o.stdout, "ok ") ||
			!strings.Contains(o.stderr, "the cluster is k3s") {
			t.Errorf("%s: got %+v", format, o)
		}
	}
	if o := call(t, s, "check", "--pre"); !strings.Contains(o.stdout, "resources: [../manifests/k3s]") ||
		!strings.Contains(o.stdout, "/etc/rancher/k3s/config.yaml.d/application-grid.yaml; then restart k3s-agent") {
		t.Errorf("got %+v", o)
	}
}

// TestManyFindings: a table has the first of those that are alike, and counts the others.
func TestManyFindings(t *testing.T) {
	nodes := ""
	for i := range 30 {
		nodes += fmt.Sprintf("---\n{apiVersion: v1, kind: Node, metadata: {name: n%d, "+
			"labels: {superedge.io/application-grid: \"true\"}}}\n", i)
	}
	s := versioned{serving(t, nodes, "/api/v1/pods"), "v1.37.1"}
	narrow, wide := call(t, s, "check"), call(t, s, "check", "-o", "wide")
	if n := strings.Count(narrow.stdout, "no application-grid-wrapper runs there"); n != 10 ||
		!strings.Contains(narrow.stdout, "40 more findings like the ones above") {
		t.Errorf("%d, in\n%s", n, narrow.stdout)
	}
	if n := strings.Count(wide.stdout, "no application-grid-wrapper runs there"); n != 30 ||
		narrow.code != exitProblems {
		t.Errorf("%d of 30, exit code %d", n, narrow.code)
	}
}

// withAddress is a Service of shop that can be asked.
const withAddress = `
{apiVersion: v1, kind: Service, metadata: {name: echo-svc, namespace: shop, annotations: {topologyKeys: '["zone1"]'}},
 spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}}
---
`

// TestProveFailures: what cannot be proved is said before anything is made.
func TestProveFailures(t *testing.T) {
	s := serving(t, withAddress+"{apiVersion: v1, kind: Node, metadata: {name: n0, labels: {zone1: east}}}", "/api/v1/pods",
		"/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices")
	noPods := s
	noPods.forbidden = "/pods"
	for _, test := range []struct {
		name, args string
		server     http.Handler
		code       int
		says       string
	}{
		{"no Service", "prove", s, flags.ExitUsage, "give the name of one Service"},
		{"no such Service", "prove absent", s, flags.ExitFailure, "no Service and no ServiceGrid absent"},
		{"neither", "prove dg/echo", s, flags.ExitUsage, "neither a Service (svc/NAME) nor a ServiceGrid (sg/NAME)"},
		{"no requests", "prove echo-svc --requests=0", s, flags.ExitUsage, "give 1 to 10000"},
		{"no time", "prove echo-svc --timeout=0s", s, flags.ExitUsage, "more than 0"},
		{"no image", "prove echo-svc", s, flags.ExitFailure, "name an image with --image"},
		{"pods may not be read", "prove echo-svc", noPods, flags.ExitFailure, "asking for the wrappers' pods"},
		{"no such port", "prove echo-svc --port=81", s, flags.ExitFailure, "has no port 81 of TCP"},
	} {
		if o := call(t, test.server, strings.Fields(test.args)...); o.code != test.code ||
			!strings.Contains(o.stderr, test.says) || o.stdout != "" {
			t.Errorf("%s: got %+v", test.name, o)
		}
	}
	// No node is ready: there is a row that says so, and no pod is made.
	o := call(t, s, "prove", "echo-svc", "--image=x")
	if o.code != flags.ExitFailure || !strings.Contains(squeeze(o.stdout),
		"FROM east NOBODY VERDICT\neast · · unproved: none of its nodes is ready") ||
		!strings.Contains(o.stdout, "Not proved") {
		t.Errorf("got %+v", o)
	}
}

// proving is an API server on which a pod of prove ends at once, with a result.
type proving struct {
	server

	message string
	removed int
	made    *corev1.Pod
}

func (s *proving) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/kube-system/pods"):
		s.made = &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "prove-x"}}
		answer(w, http.StatusCreated, s.made)
	case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/pods/prove-x"):
		s.removed++
		answer(w, http.StatusOK, s.made)
	case strings.HasSuffix(r.URL.Path, "/pods/prove-x"):
		s.made.Status.ContainerStatuses = []corev1.ContainerStatus{
			{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: s.message}}},
		}
		answer(w, http.StatusOK, s.made)
	default:
		s.server.ServeHTTP(w, r)
	}
}

// TestProve: the table, the conclusion and the exit code, and that the pod is removed.
func TestProve(t *testing.T) {
	base := serving(t, withAddress+`
{apiVersion: v1, kind: Node, metadata: {name: n0, labels: {zone1: east, superedge.io/application-grid: static}},
 status: {conditions: [{type: Ready, status: "True"}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {zone1: west, superedge.io/application-grid: static}}}
---
{apiVersion: v1, kind: Pod, metadata: {name: w, namespace: kube-system},
 spec: {nodeName: n0, containers: [{name: application-grid-wrapper, image: "w:v1"}]}}
---
{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: echo-svc-1, namespace: shop},
 ports: [{name: "", port: 8080}], endpoints: [
 {addresses: [10.244.0.1], nodeName: n0, targetRef: {kind: Pod, name: echo-n0}},
 {addresses: [10.244.1.1], nodeName: n1, targetRef: {kind: Pod, name: echo-n1}}]}`, "/api/v1/pods")
	for _, test := range []struct {
		message string
		code    int
		says    string
	}{
		{`{"asked":20,"reached":{"10.244.0.1:8080":20}}`, flags.ExitFailure,
			"FROM east west NOBODY VERDICT\n" +
				"east (n0) 20 · · ok\n" +
				"west · · · unproved: none of its nodes is ready\n" +
				"\n" +
				"Not proved that the Service stays in its sites"},
		{`{"asked":20,"reached":{"10.244.0.1:8080":13,"10.244.1.1:8080":7}}`, exitProblems,
			"east (n0) 13 7 · LEAK: reached pod echo-n1 on node n1, of west, 7 times"},
	} {
		s := &proving{server: base, message: test.message}
		o := call(t, s, "prove", "echo-svc")
		if o.code != test.code || !strings.Contains(squeeze(o.stdout), test.says) || s.removed != 1 {
			t.Errorf("removed %d; got %d\n%s%s", s.removed, o.code, o.stdout, o.stderr)
		}
	}
	// No connection leaves its site, and not everything can be read that decides whether all do.
	nodes := base.objects["/api/v1/nodes"].(list)
	base.objects["/api/v1/nodes"] = list{nodes.Items[:1]}
	base.forbidden = "/daemonsets"
	o := call(t, &proving{server: base, message: `{"asked":20,"reached":{"10.244.0.1:8080":20}}`}, "prove", "echo-svc")
	if o.code != flags.ExitFailure || !strings.Contains(o.stdout, "No connection left its site") {
		t.Errorf("got %+v", o)
	}
}
