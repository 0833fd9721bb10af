package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/internal/testkit/clustertest"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// broken is an API server with a cluster in which something is wrong.
type broken struct{ *clustertest.API }

// endProbe ends a pod of kubectl grid prove, after its connections reached the endpoint of its own node.
func endProbe(pod *unstructured.Unstructured) {
	node, _, _ := unstructured.NestedString(pod.Object, "spec", "nodeName")
	address := map[string]string{"edge0": "10.244.0.1:80", "edge1": "10.244.1.1:80"}[node]
	message := fmt.Sprintf(`{"asked":20,"reached":{%q:20}}`, address)
	if address == "" {
		message = `{"asked":20,"nobody":20}`
	}
	pod.SetName("prove-" + node)
	pod.Object["status"] = map[string]any{"containerStatuses": []any{map[string]any{"name": "probe",
		"state": map[string]any{"terminated": map[string]any{"message": message}}}}}
}

// service is a Service of two sites with a pod in each, as a ServiceGrid makes it, and CoreDNS in each site.
const service = `
{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: echo, namespace: shop, generation: 1}, spec: {gridUniqKey: zone1},
  status: {observedGeneration: 1, sites: 2, conditions: [{type: Ready, status: "True", reason: Ready}]}}
---
apiVersion: v1
kind: Service
metadata:
  {name: echo-svc, namespace: shop, labels: {superedge.io/grid-selector: echo}, annotations: {topologyKeys: '["zone1"]'},
   ownerReferences: [{apiVersion: superedge.io/v1, kind: ServiceGrid, name: echo, uid: u, controller: true}]}
spec: {clusterIP: 10.96.0.9, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: echo-svc-1, namespace: shop, labels: {kubernetes.io/service-name: echo-svc}}
addressType: IPv4
ports: [{name: "", port: 80, protocol: TCP}]
endpoints:
  - {addresses: [10.244.0.1], nodeName: edge0, conditions: {ready: true}, targetRef: {kind: Pod, name: echo-0}}
  - {addresses: [10.244.1.1], nodeName: edge1, conditions: {ready: true}, targetRef: {kind: Pod, name: echo-1}}
---
apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system, annotations: {topologyKeys: '["kubernetes.io/hostname", "zone1"]'}}
spec: {clusterIP: 10.96.0.10, ports: [{port: 53, protocol: UDP}]}
`

// agreement is a cluster on which all is well, to be broken.
func agreement(t *testing.T) broken {
	t.Helper()
	edge, err := os.ReadFile("../../pkg/kubectlgrid/check/testdata/edge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := broken{clustertest.New(t, string(edge))}
	s.Created = endProbe
	delete(s.Objects, "/apis/superedge.io/v1/namespaces/shop/deploymentgrids/echo")
	s.Add(service)
	for _, grids := range []string{"deploymentgrids", "statefulsetgrids", "daemonsetgrids", "servicegrids"} {
		s.Add(fmt.Sprintf(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition,
 metadata: {name: %s.superedge.io}}`, grids))
	}
	for _, node := range []string{"edge0", "edge1"} {
		s.Add(fmt.Sprintf(`{apiVersion: v1, kind: Pod,
 metadata: {name: dns-%s, namespace: kube-system, labels: {k8s-app: kube-dns}},
 spec: {nodeName: %s}, status: {conditions: [{type: Ready, status: "True"}]}}`, node, node))
		for _, set := range []string{"application-grid-wrapper", "kube-proxy-edge", "statefulset-grid-daemon"} {
			s.run(set, node)
		}
	}
	s.run("kube-proxy", "cloud0")
	return s
}

const system = "/api/v1/namespaces/kube-system/"

// run makes a ready pod of a DaemonSet on a node.
func (s broken) run(set, node string) {
	s.Helper()
	owner := s.Objects["/apis/apps/v1/namespaces/kube-system/daemonsets/"+set].DeepCopy()
	spec, _, err := unstructured.NestedMap(owner.Object, "spec", "template", "spec")
	if err != nil {
		s.Fatal(err)
	}
	spec["nodeName"] = node
	s.Objects[system+"pods/"+set+"-"+node] = &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": set + "-" + node, "namespace": "kube-system", "ownerReferences": []any{
			map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set, "uid": "u", "controller": true}}},
		"spec": spec, "status": map[string]any{"phase": "Running", "conditions": []any{
			map[string]any{"type": "Ready", "status": "True"}}},
	}}
}

// set changes a field of an object.
func (s broken) set(object string, value any, fields ...string) {
	s.Helper()
	if s.Objects[object] == nil {
		s.Fatalf("there is no %s", object)
	}
	if err := unstructured.SetNestedField(s.Objects[object].Object, value, fields...); err != nil {
		s.Fatal(err)
	}
}

// remove removes the objects whose path contains one of the texts.
func (s broken) remove(texts ...string) {
	maps.DeleteFunc(s.Objects, func(name string, _ *unstructured.Unstructured) bool {
		return slices.ContainsFunc(texts, func(text string) bool { return strings.Contains(name, text) })
	})
}

// notPulled makes a pod one whose image cannot be pulled.
func (s broken) notPulled(pod string) {
	s.Helper()
	waiting := map[string]any{"waiting": map[string]any{"reason": "ImagePullBackOff", "message": "no such image"}}
	statuses := []any{map[string]any{"name": "c", "state": waiting}}
	s.set(pod, map[string]any{"phase": "Pending", "containerStatuses": statuses}, "status")
}

// brokenClusters are clusters with one defect each, and the finding that every command has to have of it. grids is that
// it concerns grids, and no Service.
var brokenClusters = []struct {
	name  string
	spoil func(s broken)
	want  string
	grids bool
}{
	{"all is well", func(broken) {}, "", false},
	{"a node of a site is no edge node", func(s broken) {
		s.set("/api/v1/nodes/cloud0", map[string]any{"zone1": "east"}, "metadata", "labels")
	}, "failure Site Node cloud0", false},
	{"an edge node is in no site", func(s broken) {
		unstructured.RemoveNestedField(s.Objects["/api/v1/nodes/edge1"].Object, "metadata", "labels", "zone1")
	}, "failure Site Node edge1", false},
	{"a wrapper's image cannot be pulled", func(s broken) {
		s.notPulled(system + "pods/application-grid-wrapper-edge0")
	}, "failure Wrapper Pod kube-system/application-grid-wrapper-edge0", false},
	{"a labelled node keeps kubeadm's kube-proxy", func(s broken) {
		s.notPulled(system + "pods/application-grid-wrapper-edge0")
		s.remove("pods/kube-proxy-edge-edge0")
		s.run("kube-proxy", "edge0")
	}, "failure KubeProxy Pod kube-system/kube-proxy-edge0", false},
	{"no kube-proxy runs", func(s broken) { s.remove("pods/kube-proxy-edge-edge0") },
		"failure KubeProxy Node edge0", false},
	{"kube-proxy asks past the wrapper", func(s broken) {
		s.set(system+"configmaps/kube-proxy-edge",
			`{clusters: [{name: a, cluster: {server: "https://10.0.0.1:6443"}}],
 contexts: [{name: a, context: {cluster: a}}], current-context: a}`, "data", "kubeconfig.conf")
	}, "failure KubeProxy Pod kube-system/kube-proxy-edge-edge0", false},
	{"two kube-proxies", func(s broken) { s.run("kube-proxy", "edge0") }, "failure KubeProxy Node edge0", false},
	{"a site without CoreDNS", func(s broken) { s.remove("pods/dns-edge1") },
		"warning Names Service kube-system/kube-dns", false},
	{"a half-removed installation", func(s broken) { s.remove("application-grid-wrapper", "kube-proxy-edge") },
		"failure Removal Node", false},
	{"a hub that nobody asks", func(s broken) {
		s.Add(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: application-grid-hub, namespace: kube-system},
 spec: {replicas: 1, template: {spec: {containers: [{name: application-grid-hub, image: "x:v1"}]}}},
 status: {availableReplicas: 1}}`)
	}, "warning Hub Deployment kube-system/application-grid-hub", false},
	{"a hub that is asked and not there", func(s broken) {
		s.set("/apis/apps/v1/namespaces/kube-system/daemonsets/application-grid-wrapper", []any{map[string]any{
			"name": "application-grid-wrapper", "image": "registry.example.org/application-grid-wrapper:v1",
			"args": []any{"--hub"}}}, "spec", "template", "spec", "containers")
	}, "failure Hub Deployment kube-system/application-grid-hub", false},
	{"Cilium", func(s broken) {
		s.Add(`{apiVersion: apps/v1, kind: DaemonSet, metadata: {name: cilium, namespace: kube-system},
 spec: {template: {spec: {containers: [{name: cilium-agent, image: "cilium:v1"}]}}}}`)
	}, "failure KubeProxyReplacement Node edge0", false},
	{"an ingress controller that reads endpoints", func(s broken) {
		s.Add(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: traefik, namespace: kube-system},
 spec: {template: {spec: {containers: [{name: traefik, image: "rancher/mirrored-library-traefik:3.3"}]}}}}`)
	}, "warning Bypass Deployment kube-system/traefik", false},
	{"a controller whose image cannot be pulled", func(s broken) {
		const controller = "/apis/apps/v1/namespaces/kube-system/deployments/application-grid-controller"
		s.set(controller, int64(0), "status", "availableReplicas")
		s.set(controller, map[string]any{"matchLabels": map[string]any{"app": "c"}}, "spec", "selector")
		s.Add(`{apiVersion: v1, kind: Pod, metadata: {name: controller-0, namespace: kube-system, labels: {app: c}},
 spec: {}}`)
		s.notPulled(system + "pods/controller-0")
	}, "failure Controller Deployment kube-system/application-grid-controller", true},
}

// TestAgreement: of each of the broken clusters every command says the same, with the same command that mends it, and
// ends alike.
func TestAgreement(t *testing.T) {
	for _, test := range brokenClusters {
		t.Run(test.name, func(t *testing.T) {
			s := agreement(t)
			test.spoil(s)
			t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
			found := map[string][]gridview.Finding{}
			codes, cells := map[string]int{}, ""
			for _, command := range []string{"check", "view echo-svc", "status", "prove echo-svc --image=x",
				"preview --key zone1"} {
				var answer struct {
					Findings []gridview.Finding
					Sites    json.RawMessage
				}
				o := callBare(t, append(strings.Fields(command), "-o", "json")...)
				if err := json.Unmarshal([]byte(o.stdout), &answer); err != nil || o.stderr != "" {
					t.Fatalf("%s: %v in %+v", command, err, o)
				}
				name, _, _ := strings.Cut(command, " ")
				found[name], codes[name] = answer.Findings, o.code
				if name == "view" {
					cells = viewCells(t, answer.Sites)
				}
				if test.want == "" || name == "check" || test.grids && name != "status" {
					continue
				}
				text, about := callBare(t, strings.Fields(command)...).stdout, strings.SplitN(test.want, " ", 3)[2]
				if !strings.Contains(text, about+": ") || !strings.Contains(text, "         → ") {
					t.Errorf("%s prints\n%s", name, text)
				}
			}
			page := overviewOf(t)
			found["dashboard"] = page.Findings
			if got := page.cells("echo-svc"); got != cells {
				t.Errorf("the cells of the dashboard are %s, and view says %s", got, cells)
			}
			for _, command := range []string{"view", "status", "prove", "preview", "dashboard"} {
				want := []string{}
				if test.want != "" && (!test.grids || command == "status" || command == "dashboard") {
					want = append(want, test.want)
				}
				compare(t, command, found, want)
				failed := len(want) > 0 && strings.HasPrefix(test.want, "failure")
				if code, known := codes[command]; known && (code == exitProblems) != failed {
					t.Errorf("%s ends with %d, of\n%v", command, code, found[command])
				}
			}
			if failure := strings.HasPrefix(test.want, "failure"); failure && codes["check"] != exitProblems {
				t.Errorf("check ends with %d", codes["check"])
			}
		})
	}
}

// TestAgreementOnCoreDNS: a node of a site that is no edge node is the same failure where CoreDNS' Service alone has keys.
func TestAgreementOnCoreDNS(t *testing.T) {
	s := agreement(t)
	s.remove("/services/echo-svc", "/servicegrids/")
	s.set("/api/v1/nodes/cloud0", map[string]any{"zone1": "east"}, "metadata", "labels")
	t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
	for _, command := range []string{"check", "view kube-dns -n kube-system"} {
		o := callBare(t, strings.Fields(command)...)
		if o.code != exitProblems || !strings.Contains(o.stdout, "FAILURE  Node cloud0: it is in the site zone1=east") {
			t.Errorf("%s: got %+v", command, o)
		}
	}
}

// TestAgreementOnFallbacks: status and view say the same of a ServiceGrid whose sites are those of a fallback key.
func TestAgreementOnFallbacks(t *testing.T) {
	s := agreement(t)
	s.set("/apis/superedge.io/v1/namespaces/shop/servicegrids/echo", "kubernetes.io/hostname", "spec", "gridUniqKey")
	s.set("/apis/superedge.io/v1/namespaces/shop/servicegrids/echo", []any{"zone1"}, "spec", "fallbackKeys")
	s.set("/api/v1/namespaces/shop/services/echo-svc", map[string]any{
		"topologyKeys": `["kubernetes.io/hostname","zone1"]`}, "metadata", "annotations")
	endpoints := s.Objects["/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices/echo-svc-1"].Object
	endpoints["endpoints"] = endpoints["endpoints"].([]any)[:1]
	t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
	for _, command := range []string{"check", "view echo-svc", "status"} {
		o := callBare(t, strings.Fields(command)...)
		if o.code != exitProblems || !strings.Contains(o.stdout, "1 of 2 sites have no ready endpoint: ") {
			t.Errorf("%s: got %+v", command, o)
		}
	}
}

// TestViewOfAName: a Service that is a name of something else has no endpoints, and nothing of it is wrong, whatever
// its annotation is, and whatever is wrong on the nodes.
func TestViewOfAName(t *testing.T) {
	s := agreement(t)
	s.notPulled(system + "pods/application-grid-wrapper-edge0")
	s.Add(`{apiVersion: v1, kind: Service,
 metadata: {name: db, namespace: shop, annotations: {topologyKeys: '["zon1"]'}},
 spec: {type: ExternalName, externalName: db.example.org}}`)
	t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
	if o := callBare(t, "view", "db"); o.code != 0 ||
		o.stdout != "Service shop/db is a name of db.example.org, and has no endpoints.\n" {
		t.Errorf("got %+v", o)
	}
}

// TestProveWithoutTheLabel: a node with a wrapper is asked from, as view counts it, also without the label of edge
// nodes.
func TestProveWithoutTheLabel(t *testing.T) {
	s := agreement(t)
	unstructured.RemoveNestedField(s.Objects["/api/v1/nodes/edge1"].Object, "metadata", "labels",
		"superedge.io/application-grid")
	t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
	o := callBare(t, "prove", "echo-svc", "--image=x")
	for _, want := range []string{"east (edge0)", "west (edge1)", "The Service stays in its sites on 2 edge nodes"} {
		if !strings.Contains(o.stdout, want) {
			t.Errorf("there is no %q in %+v", want, o)
		}
	}
}

// TestPreviewOfNoServices: the exit code is that of what is found on the nodes, in every format.
func TestPreviewOfNoServices(t *testing.T) {
	s := agreement(t)
	s.notPulled(system + "pods/application-grid-wrapper-edge0")
	t.Setenv("KUBECONFIG", writeKubeconfig(t, s.Serve()))
	for _, format := range []string{"table", "json"} {
		o := callBare(t, "preview", "--key", "zone1", "-n", "empty", "-o", format)
		if o.code != exitProblems || !strings.Contains(o.stdout, "on node edge0 it is not ready") {
			t.Errorf("%s: got %+v", format, o)
		}
	}
}

// compare expects that a command has the wanted findings, and that check has all of its findings word by word. Those of
// Services are the same in all commands.
func compare(t *testing.T, command string, found map[string][]gridview.Finding, want []string) {
	t.Helper()
	var lines []string
	for _, f := range found[command] {
		lines = append(lines, fmt.Sprintf("%s %s %s", f.Severity, f.Check, f.Object))
		if !slices.Contains(found["check"], f) {
			t.Errorf("%s says %+v, and check does not", command, f)
		}
	}
	for _, line := range want {
		if !slices.Contains(lines, line) {
			t.Errorf("%s does not say %s, but %q", command, line, lines)
		}
	}
	if len(want) == 0 && len(lines) > 0 {
		t.Errorf("%s says %q", command, lines)
	}
	ofServices := slices.DeleteFunc(slices.Clone(found[command]), func(f gridview.Finding) bool {
		return f.Check == gridview.CheckController
	})
	if !slices.Equal(ofServices, found["view"]) {
		t.Errorf("%s and view differ:\n%v\n%v", command, ofServices, found["view"])
	}
}

// viewCells are the words of the sites of a view.
func viewCells(t *testing.T, data []byte) string {
	t.Helper()
	var sites []struct {
		Name    string
		Verdict gridview.Word
	}
	if err := json.Unmarshal(data, &sites); err != nil {
		t.Fatal(err)
	}
	var cells []string
	for _, site := range sites {
		if site.Name != "" {
			cells = append(cells, fmt.Sprint(site.Name, " ", site.Verdict.Word, " ", site.Verdict.Severity))
		}
	}
	slices.Sort(cells)
	return strings.Join(cells, ", ")
}

// overview is the page of kubectl grid dashboard.
type overview struct {
	Findings  []gridview.Finding
	Diagnosed bool
	Matrix    struct {
		Words []gridview.Word
		Sites []struct{ Name, Services string }
	}
	Services []gridview.ServiceSummary
}

// cells are the words of a Service in the sites.
func (o *overview) cells(service string) string {
	i := slices.IndexFunc(o.Services, func(s gridview.ServiceSummary) bool { return s.Name == service })
	var cells []string
	for _, site := range o.Matrix.Sites {
		word := o.Matrix.Words[site.Services[i]-'a']
		cells = append(cells, fmt.Sprint(site.Name, " ", word.Word, " ", word.Severity))
	}
	slices.Sort(cells)
	return strings.Join(cells, ", ")
}

func overviewOf(t *testing.T) overview {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	var group sync.WaitGroup
	defer group.Wait()
	defer stop()
	group.Go(func() { run(ctx, []string{"dashboard", "--key", "zone1"}, in, io.Discard) })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	base, token, _ := strings.Cut(strings.TrimSpace(line), "/#token=")
	for range 600 {
		var page overview
		if code, body := get(t, base+"/api/overview", token); code == http.StatusOK &&
			json.Unmarshal([]byte(body), &page) == nil && page.Diagnosed {
			return page
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the page is not complete")
	return overview{}
}
