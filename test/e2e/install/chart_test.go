package install

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const chart = "../../../charts/application-grid"

// helm runs the real helm, and returns what it prints.
func helm(ctx context.Context, t *testing.T, args ...string) (string, error) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.CommandContext(ctx, suite.Binary(t, "helm"), args...)
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CACHE_HOME="+home, "XDG_CONFIG_HOME="+home, "XDG_DATA_HOME="+home)
	return suite.Output(cmd)
}

// chartImages are the values for the images of the overlays.
var chartImages = []string{"--set=image.registry=registry.example.org", "--set=image.tag=v1",
	"--set=kubeProxy.image=registry.k8s.io/kube-proxy:v1.37.1",
	"--set=coreDNS.image=registry.k8s.io/coredns/coredns:v1.14.6"}

// templated are the objects that helm makes of the chart, by what identifies them.
func templated(t *testing.T, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, err := helm(t.Context(), t, append([]string{"template", "application-grid", chart, "--namespace=kube-system",
		"--include-crds"}, args...)...)
	suite.Must(t, err)
	all := objects(t, strings.Split("\n"+out, "\n---\n"))
	maps.DeleteFunc(all, func(_ string, o *unstructured.Unstructured) bool { // what is there at a removal only
		return o.GetAnnotations()["helm.sh/hook"] != ""
	})
	return all
}

// objects are documents by apiVersion, kind, namespace and name.
func objects(t *testing.T, documents []string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := map[string]*unstructured.Unstructured{}
	for _, document := range documents {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if object.Object == nil {
			continue
		}
		name := fmt.Sprintf("%s %s %s/%s", object.GetAPIVersion(), object.GetKind(), object.GetNamespace(),
			object.GetName())
		if all[name] != nil {
			t.Errorf("%s is there twice", name)
		}
		all[name] = object
	}
	return all
}

// kustomize are the objects of a kustomization of a user's own, by what identifies them.
func kustomize(t *testing.T, kustomization string, files map[string]string) map[string]*unstructured.Unstructured {
	t.Helper()
	return objects(t, build(t, writeKustomization(t, kustomization, files)))
}

// writeKustomization writes a kustomization with these files beside it, and returns their directory.
func writeKustomization(t *testing.T, kustomization string, files map[string]string) string {
	t.Helper()
	overlay := t.TempDir()
	absolute, err := filepath.Abs(manifests)
	suite.Must(t, err)
	base, err := filepath.Rel(overlay, absolute) // kustomize wants it relative
	suite.Must(t, err)
	all := map[string]string{"kustomization.yaml": strings.ReplaceAll(kustomization, "../manifests", base)}
	maps.Copy(all, files)
	for name, content := range all {
		suite.Must(t, os.WriteFile(filepath.Join(overlay, name), []byte(content), 0o600))
	}
	return overlay
}

// textOf are objects as YAML.
func textOf(t *testing.T, all map[string]*unstructured.Unstructured) string {
	t.Helper()
	var text strings.Builder
	for _, object := range all {
		document, err := yaml.Marshal(object.Object)
		suite.Must(t, err)
		text.Write(document)
	}
	return text.String()
}

// images is the part of a user's kustomization that names them.
const images = `
images:
  - {name: application-grid-controller, newName: registry.example.org/application-grid-controller, newTag: v1}
  - {name: application-grid-hub, newName: registry.example.org/application-grid-hub, newTag: v1}
  - {name: application-grid-wrapper, newName: registry.example.org/application-grid-wrapper, newTag: v1}
  - {name: statefulset-grid-daemon, newName: registry.example.org/statefulset-grid-daemon, newTag: v1}
  - {name: registry.k8s.io/kube-proxy, newTag: v1.37.1}
`

const kustomizationHead = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"

// plain is the kustomization of docs/other-clusters.md, with its address of the API server.
const (
	plain = kustomizationHead + `resources: [../manifests/crds, ../manifests/application-grid-controller, ../manifests/application-grid-wrapper, ../manifests/statefulset-grid-daemon, ../manifests/flow-control, ../manifests/edge-node-policy]
configMapGenerator:
  - name: application-grid-wrapper
    namespace: kube-system
    behavior: replace
    files: [kubeconfig.conf]
generatorOptions: {disableNameSuffixHash: true}
`
	plainServer = "https://192.0.2.1:6443"
)

// TestChartIsTheKustomizations: for each kind of cluster helm makes of the chart, object by object, what kustomize
// makes of manifests/.
func TestChartIsTheKustomizations(t *testing.T) {
	shipped, err := os.ReadFile(filepath.Join(manifests, "application-grid-wrapper", "kubeconfig.conf"))
	suite.Must(t, err)
	kubeconfig := strings.ReplaceAll(string(shipped), "https://set-this-to-your-api-server.invalid:6443", plainServer)
	monitored := []string{"--set=monitoring.podMonitor.enabled=true", "--set=monitoring.rules.enabled=true",
		"--set=monitoring.dashboard.enabled=true"}
	// A kustomization for kubeadm with these further directories, and the values for it.
	kubeadm := func(resources, components string) string {
		list := func(names string) string {
			return strings.Join(strings.Fields(strings.ReplaceAll(" "+names, " ", " ../manifests/")), ", ")
		}
		text := kustomizationHead + "resources: [" + list(strings.TrimSpace("crds kubeadm "+resources)) + "]\n"
		if components != "" {
			text += "components: [" + list(components) + "]\n"
		}
		return text
	}
	onKubeadm := func(values ...string) []string {
		args := []string{"--set=distribution=kubeadm"}
		for _, value := range values {
			args = append(args, "--set="+value)
		}
		return args
	}
	for _, test := range []struct {
		name, kustomization string
		values              []string
	}{
		{"kubeadm", kubeadm("", ""), onKubeadm()},
		{"kubeadm, with the hub", kubeadm("application-grid-hub", ""), onKubeadm("hub.enabled=true")},
		{"kubeadm, with nothing but the hub", kubeadm("application-grid-hub", "hub-require hub-autoscaling"),
			onKubeadm("hub.enabled=true", "hub.require=true", "hub.autoscaling=true")},
		{"kubeadm, with the exchange of sites", kubeadm("", "site-exchange"), onKubeadm("siteExchange.enabled=true")},
		{"kubeadm, with a CoreDNS in each site", kubeadm("", "coredns-edge"), onKubeadm("coreDNS.enabled=true")},
		{"kubeadm, with the policy for approvals", kubeadm("approval-policy", ""), onKubeadm("approvalPolicy.enabled=true")},
		{"kubeadm, with a controller for two namespaces",
			strings.Replace(kubeadm("", "controller-namespaces controller-without-crds"), "kubeadm]", "kubeadm, bindings.yaml]", 1) + `patches:
  - target: {kind: Deployment, name: application-grid-controller}
    patch: |
      - {op: add, path: /spec/template/spec/containers/0/args/1, value: "--namespaces=shop,mall"}
`, onKubeadm("controller.namespaces={shop,mall}", "controller.manageCRDs=false")},
		{"k3s", kustomizationHead + "resources: [../manifests/crds, ../manifests/k3s]\n",
			[]string{"--set=distribution=k3s"}},
		{"plain", plain, []string{"--set=distribution=plain", "--set=wrapper.server=" + plainServer}},
		{"plain, with Cilium", plain + "components: [../manifests/cilium]\n", []string{"--set=distribution=plain",
			"--set=wrapper.server=" + plainServer, "--set=cilium.enabled=true"}},
		{"kubeadm, monitored", kubeadm("", "monitoring"), append(onKubeadm(), monitored...)},
		{"k3s, monitored", kustomizationHead + "resources: [../manifests/crds, ../manifests/k3s]\n" +
			"components: [../manifests/monitoring]\n", append([]string{"--set=distribution=k3s"}, monitored...)},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := kustomize(t, test.kustomization+images,
				map[string]string{"kubeconfig.conf": kubeconfig, "bindings.yaml": controllerBinding("shop", "mall")})
			expectSame(t, want, templated(t, append(chartImages, test.values...)...))
		})
	}
	t.Run("systemd", func(t *testing.T) { // no pods on nodes, and nothing for them
		want := kustomize(t, plain+images, map[string]string{"kubeconfig.conf": kubeconfig})
		maps.DeleteFunc(want, func(_ string, o *unstructured.Unstructured) bool {
			return o.GetKind() == "DaemonSet" || o.GetKind() == "ConfigMap"
		})
		expectSame(t, want, templated(t, append(chartImages, "--set=distribution=systemd")...))
	})
}

// controllerBinding are the RoleBindings of docs/security.md for a controller that works in these namespaces.
func controllerBinding(namespaces ...string) string {
	var all strings.Builder
	for _, namespace := range namespaces {
		all.WriteString(`---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: application-grid:controller
  namespace: ` + namespace + `
  labels:
    app.kubernetes.io/name: application-grid-controller
    app.kubernetes.io/component: controller
    app.kubernetes.io/part-of: application-grid
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: application-grid:controller}
subjects:
  - {kind: ServiceAccount, name: application-grid-controller, namespace: kube-system}
`)
	}
	return all.String()
}

// TestPrinted: kustomize takes what kubectl grid check --pre prints for each kind of cluster. It makes objects with the
// images that were asked for, none that the API server is too old for, and the same that helm makes of the chart with
// the values that are printed beside it.
func TestPrinted(t *testing.T) {
	for _, distribution := range []string{"kubeadm", "k3s", "RKE2", "MicroK8s", ""} {
		for _, minor := range []int{28, 29, 30, 35, 36, 37} {
			t.Run(fmt.Sprintf("%s 1.%d", distribution, minor), func(t *testing.T) {
				kind := setup.Kind{Distribution: distribution, Minor: minor,
					KubeProxy: "mirror.example.org:5000/kube-proxy", KubeProxyTag: "v1.28.3"}
				install := setup.For(kind, setup.Images{Registry: "registry.example.org/edge", Tag: "v7"})
				want := kustomize(t, install.Kustomization, map[string]string{"kubeconfig.conf": install.Kubeconfig})
				text := textOf(t, want)
				expect := func(part string, want bool) {
					t.Helper()
					if strings.Contains(text, part) != want {
						t.Errorf("%q is in it: %v", part, !want)
					}
				}
				expect("kind: FlowSchema", minor >= 29)
				expect("kind: ValidatingAdmissionPolicy\n", minor >= 30)
				expect("kind: MutatingAdmissionPolicy\n", minor >= 36 && distribution == "kubeadm")
				expect("kind: MutatingAdmissionPolicyBinding\n", minor >= 36 && distribution == "kubeadm")
				expect("image: mirror.example.org:5000/kube-proxy:v1.28.3", distribution == "kubeadm")
				expect("server: https://127.0.0.1:6443", distribution == "RKE2")
				expect("server: https://127.0.0.1:16443", distribution == "MicroK8s")
				expect("server: https://127.0.0.1:6444", distribution == "k3s")
				for _, program := range []string{"application-grid-controller", "application-grid-wrapper",
					"statefulset-grid-daemon"} {
					expect("image: registry.example.org/edge/"+program+":v7", true)
				}

				values := filepath.Join(t.TempDir(), "values.yaml")
				suite.Must(t, os.WriteFile(values, []byte(install.Values), 0o600))
				got := templated(t, "--values="+values, fmt.Sprintf("--kube-version=1.%d.0", minor))
				maps.DeleteFunc(got, func(_ string, o *unstructured.Unstructured) bool { return o.GetKind() == "CustomResourceDefinition" })
				withoutComments(t, got)
				withoutComments(t, want)
				expectSame(t, want, got)
			})
		}
	}
}

// withoutComments leaves of kubeconfigs in ConfigMaps what they say.
func withoutComments(t *testing.T, all map[string]*unstructured.Unstructured) {
	t.Helper()
	for name, object := range all {
		text, found, err := unstructured.NestedString(object.Object, "data", "kubeconfig.conf")
		suite.Must(t, err)
		if !found {
			continue
		}
		said, err := yaml.YAMLToJSONStrict([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		suite.Must(t, unstructured.SetNestedField(object.Object, string(said), "data", "kubeconfig.conf"))
	}
}

func expectSame(t *testing.T, want, got map[string]*unstructured.Unstructured) {
	t.Helper()
	if len(want) < 15 {
		t.Fatalf("only %d objects were to be expected", len(want))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] == nil {
			t.Errorf("the chart has no %s", name)
		} else if d := cmp.Diff(want[name].Object, got[name].Object); d != "" {
			t.Errorf("%s (-kustomize +helm):\n%s", name, d)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if want[name] == nil {
			t.Errorf("the chart has %s, which the kustomization has not", name)
		}
	}
}

// TestChartValues: a value gets to where the chart's page says, and nowhere else.
func TestChartValues(t *testing.T) {
	base := []string{"--set=distribution=plain", "--set=wrapper.server=" + plainServer}
	before := templated(t, append(chartImages, base...)...)
	const (
		controller = "apps/v1 Deployment kube-system/application-grid-controller"
		wrapper    = "apps/v1 DaemonSet kube-system/application-grid-wrapper"
		daemon     = "apps/v1 DaemonSet kube-system/statefulset-grid-daemon"
		budget     = "policy/v1 PodDisruptionBudget kube-system/application-grid-controller"
	)
	for value, want := range map[string]map[string]string{ // object → what it then contains, as YAML has it
		"image.pullPolicy=Always": {controller: "imagePullPolicy: Always",
			wrapper: "imagePullPolicy: Always", daemon: "imagePullPolicy: Always"},
		"imagePullSecrets[0].name=key": {controller: "imagePullSecrets:\n      - name: key",
			wrapper: "imagePullSecrets:\n      - name: key", daemon: "imagePullSecrets:\n      - name: key"},
		"controller.replicas=1":                   {controller: "replicas: 1", budget: "minAvailable: 0"},
		"controller.replicas=3":                   {controller: "replicas: 3"},
		"controller.args[0]=--manage-crds=off":    {controller: "- --leader-elect=true\n        - --manage-crds=off"},
		"controller.nodeSelector.zone=cloud":      {controller: "nodeSelector:\n        zone: cloud"},
		"controller.tolerations[0].key=dedicated": {controller: "- key: dedicated"},
		"controller.goMemLimit=1GiB":              {controller: "value: 1GiB"},
		"controller.resources.limits.memory=2Gi":  {controller: "memory: 2Gi"},
		"wrapper.args[0]=--max-watches=9":         {wrapper: "- --max-watches=9"},
		"wrapper.maxUnavailable=3":                {wrapper: "maxUnavailable: 3"},
		"wrapper.goMemLimit=180MiB":               {wrapper: "value: 180MiB"},
		"wrapper.resources.requests.cpu=1":        {wrapper: "cpu: 1"},
		"daemon.args[0]=--cluster-domain=example": {daemon: "- --cluster-domain=example"},
		"daemon.maxUnavailable=25%":               {daemon: "maxUnavailable: 25%"},
		"daemon.resources.limits.memory=1Gi":      {daemon: "memory: 1Gi"},
	} {
		t.Run(value, func(t *testing.T) {
			after := templated(t, append(append(chartImages, base...), "--set="+value)...)
			for name, object := range after {
				text, err := yaml.Marshal(object)
				suite.Must(t, err)
				changed := !cmp.Equal(before[name], object)
				if changed != (want[name] != "") {
					t.Errorf("%s: changed: %v", name, changed)
				}
				if !strings.Contains(string(text), want[name]) {
					t.Errorf("%s has no %q:\n%s", name, want[name], text)
				}
			}
		})
	}
	without := templated(t, append(append(chartImages, base...), "--set=flowControl.enabled=false")...)
	if len(before)-len(without) != 2 {
		t.Errorf("without flow control there are %d objects of %d", len(without), len(before))
	}
	without = templated(t, append(append(chartImages, base...), "--set=edgeNodePolicy.enabled=false")...)
	if len(before)-len(without) != 6 {
		t.Errorf("without the policy there are %d objects of %d", len(without), len(before))
	}
	kubeadm := templated(t, append(chartImages, "--set=distribution=kubeadm", "--set=kubeProxy.policy=false",
		"--set=kubeProxy.maxUnavailable=1",
		"--set=kubeProxy.image=registry.example.org/kube-proxy:v1.30.0", "--set=monitoring.rules.enabled=true",
		"--set=monitoring.rules.labels.release=prometheus")...)
	for name, object := range kubeadm {
		if object.GetKind() == "MutatingAdmissionPolicy" || object.GetKind() == "MutatingAdmissionPolicyBinding" {
			t.Errorf("without the policy there is %s", name)
		}
	}
	text, err := yaml.Marshal(kubeadm["apps/v1 DaemonSet kube-system/kube-proxy-edge"])
	if err != nil || !strings.Contains(string(text), "image: registry.example.org/kube-proxy:v1.30.0") ||
		!strings.Contains(string(text), "maxUnavailable: 1\n") {
		t.Errorf("kube-proxy-edge is not as the values have it: %v\n%s", err, text)
	}
	if labels := kubeadm["monitoring.coreos.com/v1 PrometheusRule kube-system/application-grid"].GetLabels(); labels["release"] != "prometheus" || labels["app.kubernetes.io/part-of"] != "application-grid" {
		t.Errorf("the rule's labels are %v", labels)
	}
}

// TestChartInAnotherNamespace: what is not kubeadm's follows the release's namespace, and nothing is left behind.
func TestChartInAnotherNamespace(t *testing.T) {
	got := templated(t, append(chartImages, "--set=distribution=k3s", "--set=monitoring.podMonitor.enabled=true",
		"--set=monitoring.rules.enabled=true",
		"--set=monitoring.dashboard.enabled=true", "--namespace=edge-system")...)
	for name, object := range got {
		text, err := yaml.Marshal(object)
		suite.Must(t, err)
		if strings.Contains(string(text), "kube-system") && object.GetKind() != "CustomResourceDefinition" {
			t.Errorf("%s names kube-system:\n%s", name, text)
		}
	}
}

// TestChartRefuses what cannot be meant, with a word on what to do.
func TestChartRefuses(t *testing.T) {
	for _, test := range []struct {
		want string
		args []string
	}{
		{"distribution", nil},
		{"'kubeadm', 'k3s', 'plain', 'systemd'", []string{"--set=distribution=openshift"}},
		{"image.tag has to be set", []string{"--set=distribution=k3s", "--set=image.tag="}},
		{"/image/tag", []string{"--set=distribution=k3s", "--set=image.tag=latest"}},
		{"/wrapper/server", []string{"--set=distribution=plain"}},
		{"/wrapper/server", []string{"--set=distribution=plain", "--set=wrapper.server=http://192.0.2.1"}},
		{"/wrapper/server", []string{"--set=distribution=k3s", "--set=wrapper.server=https://192.0.2.1"}},
		{"--namespace kube-system", []string{"--set=distribution=kubeadm", "--namespace=edge-system"}},
		{"coreDNS.image has to be set", []string{"--set=distribution=k3s", "--set=coreDNS.enabled=true", "--set=coreDNS.image="}},
		{"--namespace kube-system", []string{"--set=distribution=k3s", "--set=coreDNS.enabled=true", "--namespace=edge-system"}},
		{"kubeProxy.image has to be set", []string{"--set=distribution=kubeadm", "--set=kubeProxy.image="}},
		{"replica", []string{"--set=distribution=k3s", "--set=controller.replica=3"}},
		{"/controller/replicas", []string{"--set=distribution=k3s", "--set=controller.replicas=0"}},
		{"/wrapper/maxUnavailable", []string{"--set=distribution=k3s", "--set=wrapper.maxUnavailable=0"}},
		{"/wrapper/goMemLimit", []string{"--set=distribution=k3s", "--set=wrapper.goMemLimit=90Mi"}},
	} {
		_, err := helm(t.Context(), t, append(append([]string{"template", "application-grid", chart,
			"--namespace=kube-system"}, chartImages...), test.args...)...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: got %v, want something of %q", test.args, err, test.want)
		}
	}
	if _, err := helm(t.Context(), t, append([]string{"lint", chart, "--strict", "--namespace=kube-system",
		"--set=distribution=kubeadm"}, chartImages...)...); err != nil {
		t.Error(err)
	}
}

// TestChartOnACluster goes through the chart's page on a cluster with kubeadm's kube-proxy: install, the steps that
// helm prints, an upgrade, and the removal, after which there is what there was before.
func TestChartOnACluster(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true, Nodes: []cluster.NodeSpec{
		{Name: "edge1"}, {Name: "edge2"}, {Name: "cloud1"},
	}})
	// The embedded cluster's programs have their roles from the start.
	f.kubectl("delete", "-k", filepath.Join(manifests, "kubeadm"), "--ignore-not-found")
	f.writeKubeadmsKubeProxy("apply")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	before, err := f.inventory()
	f.Must(err)

	onEdge := func() {
		t.Helper()
		for _, app := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
			f.expectPods(app, "app", "edge1 edge2")
		}
	}

	// kube-proxy's image is the cluster's own.
	said := f.helm("install", "application-grid", chart, "--set=distribution=kubeadm",
		"--set=image.registry=registry.example.org", "--set=image.tag=v1")
	f.expectControllers()
	f.expectPods("application-grid-wrapper", "app", "")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	edge, err := f.client.AppsV1().DaemonSets("kube-system").Get(f.ctx, "kube-proxy-edge", metav1.GetOptions{})
	f.Must(err)
	if image := edge.Spec.Template.Spec.Containers[0].Image; image != "registry.k8s.io/kube-proxy:v1.37.1" {
		t.Errorf("kube-proxy-edge is of %s", image)
	}
	_, patch, found := strings.Cut(said, "--patch '")
	patch, _, closed := strings.Cut(patch, "'\n")
	if !found || !closed {
		t.Fatalf("no patch of kube-proxy in what helm says:\n%s", said)
	}
	f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch", patch)
	// kwok's pods of the controller label no nodes.
	f.kubectl("label", "nodes", "edge1", "edge2", v1.LabelEdgeNode+"=true", v1.LabelKubeProxy+"="+v1.KubeProxyEdge)
	f.expectPods("kube-proxy", "k8s-app", "cloud1")
	onEdge()

	generations := f.generations()
	f.helm("upgrade", "application-grid", chart, "--reuse-values")
	if now := f.generations(); !maps.Equal(generations, now) {
		t.Errorf("an upgrade to the same is a change: %v, was %v", now, generations)
	}
	f.helm("upgrade", "application-grid", chart, "--reuse-values", "--set=image.tag=v2",
		"--set=controller.args={--manage-crds=off}")
	f.Eventually("the upgrade is there", func() error {
		wrapper, err := f.client.AppsV1().DaemonSets("kube-system").Get(f.ctx, "application-grid-wrapper",
			metav1.GetOptions{})
		if err == nil && wrapper.Spec.Template.Spec.Containers[0].Image != "registry.example.org/application-grid-wrapper:v2" {
			err = fmt.Errorf("the wrapper is of %s", wrapper.Spec.Template.Spec.Containers[0].Image)
		}
		return err
	})
	onEdge()

	// Removing it in the wrong order is refused before anything is deleted.
	_, err = f.tryHelm("uninstall", "application-grid")
	if err == nil || !strings.Contains(err.Error(), "kubectl label nodes --all superedge.io/application-grid-") {
		t.Errorf("helm uninstall with edge nodes: %v", err)
	}
	onEdge()
	f.kubectl("label", "nodes", "--all", v1.LabelEdgeNode+"-", v1.LabelKubeProxy+"-")
	f.expectPods("kube-proxy-edge", "app", "")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	f.helm("uninstall", "application-grid", "--wait")
	f.deleteCRDs("-k", filepath.Join(manifests, "crds")) // helm leaves them
	f.expectInventory(before)
}

// helm runs helm on the test's cluster, in the namespace kube-system, and returns what it prints.
func (f *fixture) helm(args ...string) string {
	f.Helper()
	out, err := f.tryHelm(args...)
	f.Must(err)
	return out
}

func (f *fixture) tryHelm(args ...string) (string, error) {
	f.Helper()
	return helm(f.ctx, f.T, append(args, "--kubeconfig="+f.Cluster.Kubeconfig(), "--namespace=kube-system")...)
}

// generations are those of all workloads: they grow with every change of a spec.
func (f *fixture) generations() map[string]int64 {
	f.Helper()
	found := map[string]int64{}
	deployments, err := f.client.AppsV1().Deployments("kube-system").List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, d := range deployments.Items {
		found["deployment "+d.Name] = d.Generation
	}
	sets, err := f.client.AppsV1().DaemonSets("kube-system").List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, d := range sets.Items {
		found["daemonset "+d.Name] = d.Generation
	}
	return found
}
