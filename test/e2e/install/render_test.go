package install

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/suite"
)

const manifests = "../../../manifests"

// render is what kustomize makes of a directory of manifests/, as YAML documents.
func render(t *testing.T, directory string) []string {
	t.Helper()
	return build(t, filepath.Join(manifests, directory))
}

// build is what kustomize makes of a directory, as YAML documents.
func build(t *testing.T, directory string) []string {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), directory)
	if err != nil {
		t.Fatalf("%s: %v", directory, err)
	}
	var documents []string
	for _, resource := range resources.Resources() {
		document, err := resource.AsYAML()
		suite.Must(t, err)
		documents = append(documents, string(document))
	}
	return documents
}

// kustomizations are the directories of manifests/ that `kubectl apply -k` takes.
func kustomizations(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(manifests, "*", "kustomization.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no kustomizations: %v", err)
	}
	var directories []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		suite.Must(t, err)
		if strings.Contains(string(data), "kind: Component\n") {
			continue // a part of another one
		}
		directories = append(directories, filepath.Base(filepath.Dir(file)))
	}
	return directories
}

// TestLabels: every object says what it belongs to, by the labels that Kubernetes recommends; and selectors are what
// they were in the first release, as they cannot be changed.
func TestLabels(t *testing.T) {
	selectors := map[string]bool{}
	for name, object := range kustomize(t,
		kustomizationHead+"resources: [../manifests/crds, ../manifests/kubeadm, ../manifests/application-grid-hub]\ncomponents: [../manifests/monitoring]\n", nil) {
		labels := object.GetLabels()
		if labels["app.kubernetes.io/part-of"] != "application-grid" || labels["app.kubernetes.io/name"] == "" ||
			labels["app.kubernetes.io/component"] == "" {
			t.Errorf("%s has the labels %v", name, labels)
		}
		selector, found, err := unstructured.NestedStringMap(object.Object, "spec", "selector", "matchLabels")
		suite.Must(t, err)
		of, isWorkload, err := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "labels")
		suite.Must(t, err)
		if isWorkload {
			selectors[object.GetName()] = true
			for _, label := range []string{"app", "app.kubernetes.io/name", "app.kubernetes.io/component",
				"app.kubernetes.io/part-of"} {
				if of[label] == "" || of[label] != labels[label] {
					t.Errorf("the pods of %s have %s=%q, it has %q", name, label, of[label], labels[label])
				}
			}
		}
		if found && !maps.Equal(selector, map[string]string{"app": object.GetName()}) {
			t.Errorf("%s selects %v", name, selector)
		}
	}
	if len(selectors) != 5 {
		t.Errorf("only %v were seen", selectors)
	}
}

// podOf is the pod of a Deployment or DaemonSet; kind is "" for everything else.
func podOf(t *testing.T, document string) (kind, name string, template corev1.PodTemplateSpec) {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return "", "", template // a CRD
	}
	if err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	switch o := object.(type) {
	case *appsv1.Deployment:
		return "Deployment", o.Name, o.Spec.Template
	case *appsv1.DaemonSet:
		return "DaemonSet", o.Name, o.Spec.Template
	}
	return "", "", template
}

// TestEveryCRDIsListed: a new CRD must not be forgotten in the kustomization.
func TestEveryCRDIsListed(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(manifests, "crds", "superedge.io_*.yaml"))
	suite.Must(t, err)
	if got := len(render(t, "crds")); got != len(files) || got == 0 {
		t.Errorf("the kustomization of the CRDs makes %d of %d", got, len(files))
	}
}

// TestPodsAreConfined: what runs on others' nodes has no privilege, a limit of memory, and its place.
func TestPodsAreConfined(t *testing.T) {
	seen := map[string]bool{}
	for _, directory := range kustomizations(t) {
		for _, document := range render(t, directory) {
			kind, name, template := podOf(t, document)
			if kind == "" {
				continue
			}
			seen[name] = true
			pod := template.Spec
			check := func(what string, ok bool) {
				t.Helper()
				if !ok {
					t.Errorf("%s: %s %s: %s", directory, kind, name, what)
				}
			}
			check("has a priority class of the system", strings.HasPrefix(pod.PriorityClassName, "system-"))
			if kind == "DaemonSet" {
				chosen := pod.NodeSelector[v1.LabelEdgeNode] == "true"
				if name == "kube-proxy-edge" { // also where the wrapper is no pod
					chosen = strings.Contains(document, "key: "+v1.LabelEdgeNode)
				}
				check("only where "+v1.LabelEdgeNode+" says so", chosen)
				check("tolerates every taint",
					slices.Contains(pod.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists}))
			}
			if name == "kube-proxy-edge" {
				continue // privileged, as kubeadm's
			}
			of := pod.SecurityContext
			check("has a security context", of != nil)
			check("seccomp", of.SeccompProfile != nil &&
				of.SeccompProfile.Type == corev1.SeccompProfileTypeRuntimeDefault)
			if name == "statefulset-grid-daemon" {
				check("is root, whose directory /data/edge is", *of.RunAsUser == 0)
			} else {
				check("is not root", *of.RunAsNonRoot && *of.RunAsUser != 0)
			}
			for _, c := range pod.Containers {
				check("memory is limited", !c.Resources.Limits.Memory().IsZero() &&
					!c.Resources.Requests.Memory().IsZero())
				check("the CPU is requested, not limited", !c.Resources.Requests.Cpu().IsZero() &&
					c.Resources.Limits.Cpu().IsZero())
				check("probes", c.LivenessProbe != nil && c.ReadinessProbe != nil)
				s := c.SecurityContext
				check("no privilege", s.Privileged == nil && !*s.AllowPrivilegeEscalation)
				check("read-only root", *s.ReadOnlyRootFilesystem)
				check("no capability", slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) &&
					len(s.Capabilities.Add) == 0)
			}
		}
	}
	for _, name := range []string{"application-grid-controller", "application-grid-hub", "application-grid-wrapper",
		"statefulset-grid-daemon", "kube-proxy-edge"} {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// TestShippedCommandLines: the programs know every flag that the manifests give them. --version is answered only
// if they do. kube-proxy-edge's are run by TestPermissions.
func TestShippedCommandLines(t *testing.T) {
	documents := map[string][]string{}
	for _, directory := range kustomizations(t) {
		documents[directory] = render(t, directory)
	}
	for _, object := range kustomize(t, kustomizationHead+"resources: [../manifests/kubeadm]\ncomponents: [../manifests/monitoring]\n", nil) {
		text, err := yaml.Marshal(object)
		suite.Must(t, err)
		documents["monitoring"] = append(documents["monitoring"], string(text))
	}
	for directory, all := range documents {
		for _, document := range all {
			kind, name, template := podOf(t, document)
			if kind == "" || name == "kube-proxy-edge" {
				continue
			}
			for _, c := range template.Spec.Containers {
				args := slices.Clone(c.Args)
				for i := range args {
					args[i] = strings.NewReplacer("$(NODE_NAME)", "node0", "$(HOST_IP)", "192.0.2.1").Replace(args[i])
				}
				out, err := exec.Command(suite.Binary(t, c.Name), append(args, "--version")...).CombinedOutput()
				if err != nil || !strings.Contains(string(out), "go1.") {
					t.Errorf("%s: %s %q: %v: %s", directory, name, args, err, out)
				}
			}
		}
	}
}

// TestTheWrapperDoesNotNeedKubeProxy: its way to the API server is not the Service, which kube-proxy would have to
// program after having asked the wrapper.
func TestTheWrapperDoesNotNeedKubeProxy(t *testing.T) {
	for _, directory := range []string{"application-grid-wrapper", "kubeadm", "k3s"} {
		for _, document := range render(t, directory) {
			_, name, template := podOf(t, document)
			if name != "application-grid-wrapper" {
				continue
			}
			if !slices.Contains(template.Spec.Containers[0].Args,
				"--kubeconfig=/etc/application-grid-wrapper/kubeconfig.conf") {
				t.Errorf("%s: it takes the address of the Service: %q", directory, template.Spec.Containers[0].Args)
			}
		}
	}
}

// introduced are the minor versions of Kubernetes 1 in which what the manifests use became what they use it as.
var introduced = map[string]int{
	"v1 ConfigMap": 0, "v1 ServiceAccount": 0, "apps/v1 DaemonSet": 9, "apps/v1 Deployment": 9,
	"policy/v1 PodDisruptionBudget":            21,
	"rbac.authorization.k8s.io/v1 ClusterRole": 8, "rbac.authorization.k8s.io/v1 ClusterRoleBinding": 8,
	"rbac.authorization.k8s.io/v1 Role": 8, "rbac.authorization.k8s.io/v1 RoleBinding": 8,
	"coordination.k8s.io/v1 Lease":                                     14,
	"apiextensions.k8s.io/v1 CustomResourceDefinition":                 16,
	"flowcontrol.apiserver.k8s.io/v1 FlowSchema":                       29,
	"flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration":       29,
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":        30,
	"admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding": 30,
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicy":          36,
	"admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding":   36,
	"v1 Service": 1, "v1 Secret": 1, "apiregistration.k8s.io/v1 APIService": 10,
	"matchLabelKeys": 27, "x-kubernetes-validations": 25,
	"discovery.k8s.io": 21, // which roles name no version of
}

// TestKubernetesVersions: docs/compatibility.md says for every kustomization from which version on it can be applied.
func TestKubernetesVersions(t *testing.T) {
	page, err := os.ReadFile("../../../docs/compatibility.md")
	suite.Must(t, err)
	for _, directory := range kustomizations(t) {
		needs := 0
		for _, document := range render(t, directory) {
			var kind metav1.TypeMeta
			suite.Must(t, yaml.Unmarshal([]byte(document), &kind))
			used := []string{kind.APIVersion + " " + kind.Kind}
			for _, word := range []string{"matchLabelKeys", "x-kubernetes-validations", "discovery.k8s.io"} {
				if strings.Contains(document, word) {
					used = append(used, word)
				}
			}
			for _, what := range used {
				minor, ok := introduced[what]
				if !ok {
					t.Errorf("%s uses %s: since when is that there?", directory, what)
				}
				needs = max(needs, minor)
			}
		}
		row := regexp.MustCompile("(?m)^\\| .*`manifests/" + directory + "`.* \\| 1\\.([0-9]+) \\|").FindSubmatch(page)
		if row == nil {
			t.Errorf("docs/compatibility.md does not say what %s needs", directory)
			continue
		}
		if says, _ := strconv.Atoi(string(row[1])); says != max(needs, 21) { // older ones have no EndpointSlices
			t.Errorf("docs/compatibility.md says that %s needs 1.%d; it is 1.%d", directory, says, needs)
		}
	}
}

// TestPageKustomizations: each kustomization that the pages about installing show can be built, and makes what they say
// of it.
func TestPageKustomizations(t *testing.T) {
	var page []byte
	for _, name := range []string{"kubeadm", "k3s", "other-clusters"} {
		text, err := os.ReadFile("../../../docs/" + name + ".md")
		suite.Must(t, err)
		page = append(page, text...)
	}
	const address = "https://127.0.0.1:16443"
	kubeconfig, err := os.ReadFile(filepath.Join(manifests, "k3s", "kubeconfig.conf"))
	suite.Must(t, err)
	build := func(kustomization string) string {
		t.Helper()
		return textOf(t, kustomize(t, kustomization, map[string]string{
			"kubeconfig.conf": strings.ReplaceAll(string(kubeconfig), "https://127.0.0.1:6444", address),
		}))
	}
	blocks := regexp.MustCompile("(?s)\n( *)```yaml\n *# edge/kustomization.yaml\n(.*?)\n *```").FindAllStringSubmatch(string(page), -1)
	if len(blocks) != 4 {
		t.Fatalf("the pages show %d kustomizations, for kubeadm, k3s, RKE2 and any other cluster", len(blocks))
	}
	var kubeadm string
	for i, block := range blocks {
		kustomization := strings.TrimPrefix(strings.ReplaceAll("\n"+block[2], "\n"+block[1], "\n"), "\n")
		built := build(kustomization)
		if i == 0 {
			kubeadm = kustomization
		} else if strings.Contains(kustomization, "kubeconfig.conf") && !strings.Contains(built, address) {
			t.Errorf("the wrapper does not have the address in kubeconfig.conf:\n%s", kustomization)
		}
		if images := strings.Contains(kustomization, "\nimages:"); images != strings.Contains(built,
			"image: registry.example.org/application-grid-wrapper:v1") {
			t.Errorf("the wrapper's image is not the one of\n%s", kustomization)
		}
	}
	older := regexp.MustCompile("(?s)## Before 1.36\n.*?```yaml\n(patches:.*?)\n```").FindStringSubmatch(string(page))
	if older == nil {
		t.Fatal("the page does not show how to leave out the policy")
	}
	if built := build(kubeadm + "\n" + older[1] + "\n"); strings.Contains(built, "MutatingAdmissionPolicy") ||
		!strings.Contains(built, "ValidatingAdmissionPolicy") {
		t.Errorf("without the policy there is\n%s", built)
	}
}
