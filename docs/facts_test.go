package docs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

const installPage = "docs/install.md"

// TestManifestsAreListed: the page about installing names every directory of manifests/, and no other.
func TestManifestsAreListed(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir(filepath.Join(docstest.Root(t), "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range docstest.Table(t, installPage, "## What is installed")[2:] {
		for _, name := range docstest.Quoted(row[0]) {
			listed[name] = true
		}
	}
	for _, entry := range entries {
		if entry.IsDir() && !listed[entry.Name()] {
			t.Errorf("%s does not name manifests/%s", installPage, entry.Name())
		}
		delete(listed, entry.Name())
	}
	for name := range listed {
		t.Errorf("%s names manifests/%s, which does not exist", installPage, name)
	}
}

// workload is what is read of a workload in manifests/.
type workload struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Template corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// workloads are the Deployments and DaemonSets of manifests/, by name.
func workloads(t *testing.T) map[string]workload {
	t.Helper()
	found := map[string]workload{}
	files, err := filepath.Glob(filepath.Join(docstest.Root(t), "manifests", "*", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
		for {
			document, err := documents.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			var w workload
			if yaml.Unmarshal(document, &w) == nil && (w.Kind == "Deployment" || w.Kind == "DaemonSet") {
				found[w.Metadata.Name] = w
			}
		}
	}
	if len(found) != 6 {
		t.Fatalf("manifests/ has %q", slices.Sorted(maps.Keys(found)))
	}
	return found
}

// mayRun reports whether the node selector and the required node affinity of a workload let it run on a node.
func mayRun(w workload, node map[string]string) bool {
	spec := w.Spec.Template.Spec
	for key, value := range spec.NodeSelector {
		if node[key] != value {
			return false
		}
	}
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			value, found := node[r.Key]
			switch r.Operator {
			case corev1.NodeSelectorOpIn:
				return !found || !slices.Contains(r.Values, value)
			case corev1.NodeSelectorOpDoesNotExist:
				return found
			default:
				panic("the manifests use " + r.Operator + ", which this test does not know")
			}
		})
	})
}

// TestEdgeNodes: the page says which DaemonSets have a pod on a node, for each value of the label.
func TestEdgeNodes(t *testing.T) {
	t.Parallel()
	sets, rows := workloads(t), docstest.Table(t, installPage, "## Edge nodes")
	for _, row := range rows[2:] {
		value := docstest.Quoted(row[0])[0]
		node := map[string]string{
			corev1.LabelOSStable: "linux", v1.LabelEdgeNode: value, v1.LabelKubeProxy: v1.KubeProxyEdge,
		}
		for i, cell := range row[1:] {
			name := docstest.Quoted(rows[0][1+i])[0]
			if runs := mayRun(sets[name], node); runs != strings.HasPrefix(cell, "yes") {
				t.Errorf("%s: with %s=%s %s runs: %t; the page says %q",
					installPage, v1.LabelEdgeNode, value, name, runs, cell)
			}
		}
	}
	if len(rows) != 5 {
		t.Errorf("the table has %d rows", len(rows))
	}
}

// TestWhereTheCloudRuns: the hub never runs on an edge node, and the controller only prefers others.
func TestWhereTheCloudRuns(t *testing.T) {
	t.Parallel()
	edge := map[string]string{v1.LabelEdgeNode: v1.EdgeNodePods}
	where := map[string]string{}
	for _, row := range docstest.Table(t, installPage, "## What is installed")[2:] {
		where[docstest.Quoted(row[0])[0]] = row[2]
	}
	for name, says := range map[string]string{
		"application-grid-hub": "never on edge nodes", "application-grid-controller": "preferably",
	} {
		if runs := mayRun(workloads(t)[name], edge); runs == strings.HasPrefix(says, "never") ||
			!strings.HasPrefix(where[name], says) {
			t.Errorf("%s may run on an edge node: %t; the page says %q", name, runs, where[name])
		}
	}
}

// TestPrivileges: the pods of manifests/ have the privileges that the page names, and no other.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	_, said, _ := strings.Cut(docstest.Page(t, installPage), "Privileges of these pods:")
	said, _, _ = strings.Cut(strings.Join(strings.Fields(said), " "), "## ")
	for name, w := range workloads(t) {
		spec := w.Spec.Template.Spec
		var privileges []string
		if security := spec.SecurityContext; security != nil && security.RunAsUser != nil && *security.RunAsUser == 0 {
			privileges = append(privileges, "`"+name+"` runs as user 0")
		}
		for i := range spec.Containers {
			security := spec.Containers[i].SecurityContext
			if security == nil {
				t.Errorf("%s has no securityContext", name)
				continue
			}
			if security.Privileged != nil && *security.Privileged {
				privileges = append(privileges, "`"+name+"` is privileged")
			} else if security.Capabilities == nil || len(security.Capabilities.Add) > 0 {
				privileges = append(privileges, "`"+name+"` has the capability")
			}
		}
		for _, privilege := range privileges {
			if !strings.Contains(said, privilege) {
				t.Errorf("%s does not say: %s", installPage, privilege)
			}
		}
		if len(privileges) == 0 && strings.Contains(said, "`"+name+"`") {
			t.Errorf("%s names %s, which has no privileges", installPage, name)
		}
	}
}

// removal is what is read of a binding that refuses a removal.
type removal struct {
	Spec struct {
		ParamRef struct {
			Selector struct {
				MatchExpressions []struct {
					Key    string   `json:"key"`
					Values []string `json:"values"`
				} `json:"matchExpressions"`
			} `json:"selector"`
		} `json:"paramRef"`
	} `json:"spec"`
}

// TestWhatRefusesARemoval: the page names the values of the label that refuse one.
func TestWhatRefusesARemoval(t *testing.T) {
	t.Parallel()
	documents := strings.Split(docstest.Page(t, "manifests/edge-node-policy/removal.yaml"), "\n---\n")
	var binding removal
	if err := yaml.Unmarshal([]byte(documents[len(documents)-1]), &binding); err != nil {
		t.Fatal(err)
	}
	expressions := binding.Spec.ParamRef.Selector.MatchExpressions
	if len(expressions) != 1 || expressions[0].Key != v1.LabelEdgeNode {
		t.Fatalf("it selects nodes by %+v", expressions)
	}
	want := "the value `" + strings.Join(expressions[0].Values, "` or `") + "`"
	if !strings.Contains(strings.Join(strings.Fields(docstest.Page(t, "docs/upgrade.md")), " "), want) {
		t.Errorf("docs/upgrade.md does not say that nodes with %s refuse a removal", want)
	}
}

// modules are the go.mod files of what the tests run, and what the README calls it.
var modules = map[string]struct{ module, row string }{
	"test/go.mod":                    {"k8s.io/kubernetes", "Kubernetes"},
	"test/compat/kube-proxy-1.29":    {"k8s.io/kubernetes", "kube-proxy"},
	"test/compat/kube-proxy-1.34":    {"k8s.io/kubernetes", "kube-proxy"},
	"test/compat/kube-proxy-1.35":    {"k8s.io/kubernetes", "kube-proxy"},
	"test/kubeadm/containerd":        {"github.com/containerd/containerd/v2", "distribution"},
	"test/cilium/agent":              {"github.com/cilium/cilium", "network plugin"},
	"test/ingress/traefik":           {"github.com/traefik/traefik/v3", "ingress"},
	"test/takeover/superedge/go.mod": {"github.com/superedge/superedge", "migration"},
}

// TestVersions: what the README says was run is what the tests' modules are.
func TestVersions(t *testing.T) {
	t.Parallel()
	rows := map[string]string{}
	for _, row := range docstest.Table(t, "README.md", "## What was tested")[2:] {
		rows[row[0]] = row[1]
	}
	for directory, m := range modules {
		version := moduleVersions(t, strings.TrimSuffix(directory, "/go.mod"))[m.module]
		if version == "" || !strings.Contains(rows[m.row], strings.TrimPrefix(version, "v")) {
			t.Errorf("the README says of %s %q; %s has %s", m.row, rows[m.row], directory, version)
		}
	}
	cluster := moduleVersions(t, "test")
	kubernetes := cluster["k8s.io/kubernetes"]
	for row, module := range map[string]string{"DNS": "github.com/coredns/coredns", "kube-proxy": "k8s.io/kubernetes",
		"distribution": "k8s.io/kubernetes"} {
		if !strings.Contains(rows[row], strings.TrimPrefix(cluster[module], "v")) {
			t.Errorf("the README says of %s %q; test/go.mod has %s", row, rows[row], cluster[module])
		}
	}
	images := map[string]string{}
	for name, w := range workloads(t) {
		_, tag, _ := strings.Cut(w.Spec.Template.Spec.Containers[0].Image, ":")
		images[name] = "newTag: " + tag + "}"
	}
	if !strings.Contains(images["kube-proxy-edge"], kubernetes) {
		t.Errorf("kube-proxy-edge has %s, and the tests run %s", images["kube-proxy-edge"], kubernetes)
	}
	for page, name := range map[string]string{"docs/kubeadm.md": "kube-proxy-edge", "docs/coredns.md": "coredns-edge"} {
		if !strings.Contains(docstest.Page(t, page), images[name]) {
			t.Errorf("%s does not show %q", page, images[name])
		}
	}
}

var port = regexp.MustCompile(`\b(5100\d|17946)\b`)

// TestPorts: the table of an edge node has every port that a program listens on there.
func TestPorts(t *testing.T) {
	t.Parallel()
	var table strings.Builder
	for _, row := range docstest.Table(t, "docs/compatibility.md", "## On each edge node") {
		table.WriteString(strings.ReplaceAll(strings.Join(row, " "), "51006-51009", "") + "\n")
	}
	listens := docstest.Page(t, docstest.ReferencePage) + docstest.Page(t, "manifests/monitoring/kustomization.yaml")
	found := map[string]bool{}
	for _, number := range port.FindAllString(listens, -1) {
		found[number] = true
	}
	delete(found, "51005") // the health service of others
	for number := range found {
		if !strings.Contains(table.String(), number) {
			t.Errorf("docs/compatibility.md does not name port %s", number)
		}
	}
	if len(found) != 6 {
		t.Errorf("programs listen on %q", slices.Sorted(maps.Keys(found)))
	}
	for _, w := range workloads(t) {
		for _, argument := range w.Spec.Template.Spec.Containers[0].Args {
			if address, ok := strings.CutPrefix(argument, "--metrics-bind-address="); ok &&
				!strings.Contains(docstest.Page(t, "docs/security.md"), "| "+w.Metadata.Name[len("application-grid-"):]+
					", metrics | `"+address+"`") {
				t.Errorf("docs/security.md does not say that %s serves metrics on %s", w.Metadata.Name, address)
			}
		}
	}
}

// TestQuickStart: what the quick start has one type to install is on the pages whose commands make test-kubeadm runs.
func TestQuickStart(t *testing.T) {
	t.Parallel()
	commands := regexp.MustCompile(`(?m)^ *(kubectl (?:apply -k|.* patch|label) .*|make local-images .*)$`)
	quick := commands.FindAllStringSubmatch(docstest.Page(t, "docs/quickstart.md"), -1)
	run := docstest.Page(t, "docs/kubeadm.md") + docstest.Page(t, installPage) + docstest.Page(t, "docs/concepts.md")
	for _, match := range quick {
		command := strings.ReplaceAll(match[1], "node0 node1", "node0")
		if !strings.Contains(run, command) && !strings.Contains(command, "node1 zone1=west") {
			t.Errorf("no page that is run has: %s", command)
		}
	}
	if len(quick) != 7 {
		t.Errorf("%d commands were found: %q", len(quick), quick)
	}
}

var forWhom = regexp.MustCompile(`\A# [^\n]+\n\nFor `)

// TestForWhom: each page begins with whom it is for.
func TestForWhom(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(docstest.Root(t), "docs", "*.md"))
	if err != nil || len(files) < 15 {
		t.Fatalf("%q, %v", files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil || !forWhom.Match(data) {
			t.Errorf("%s does not begin with whom it is for (%v)", filepath.Base(file), err)
		}
	}
}
