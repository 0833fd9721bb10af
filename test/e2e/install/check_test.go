package install

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// checkReport is what kubectl grid check -o json prints.
type checkReport struct {
	APIVersion, Kind string
	Findings         []struct {
		Severity, Check, Message, Action string
		Object                           struct{ Kind, Namespace, Name string }
	}
	Install *struct{ Kustomization, Values string }
}

// trouble is a line for every finding that is not ok, in order.
func (r *checkReport) trouble() []string {
	var lines []string
	for _, f := range r.Findings {
		if f.Severity == "ok" {
			continue
		}
		name := f.Object.Name
		if f.Object.Namespace != "" && name != "" {
			name = f.Object.Namespace + "/" + name
		}
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s %s %s %s", f.Severity, f.Check, f.Object.Kind, name)))
	}
	slices.Sort(lines)
	return lines
}

// plugin runs kubectl grid and returns what it prints and its exit code.
func (f *fixture) plugin(args ...string) (stdout, stderr string, code int) {
	f.Helper()
	return suite.Run(f, f.Plugin(f.ctx, args...))
}

// check runs kubectl grid check -o json.
func (f *fixture) check(args ...string) (*checkReport, int, error) {
	f.Helper()
	stdout, stderr, code := f.plugin(append([]string{"check", "-o", "json"}, args...)...)
	var report checkReport
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		return nil, code, fmt.Errorf("%w: exit code %d, %s%s", err, code, stdout, stderr)
	}
	return &report, code, nil
}

// expectCheck waits until the check finds exactly this trouble, and ends with this code.
func (f *fixture) expectCheck(what string, want []string, code int, args ...string) *checkReport {
	f.Helper()
	slices.Sort(want)
	var last *checkReport
	f.Eventually(what, func() error {
		report, got, err := f.check(args...)
		if err != nil {
			return err
		}
		if last = report; !slices.Equal(report.trouble(), want) || got != code {
			return fmt.Errorf("exit code %d, want %d; it finds\n  %s\nnot\n  %s", got, code,
				strings.Join(report.trouble(), "\n  "), strings.Join(want, "\n  "))
		}
		return nil
	})
	return last
}

// temporarily applies YAML, and deletes it when the test ends.
func (f *fixture) temporarily(manifest string) {
	f.Helper()
	_, err := f.tryKubectl(manifest, "apply", "-f", "-")
	f.Must(err)
	f.Cleanup(func() {
		if _, err := f.tryKubectl(manifest, "delete", "-f", "-", "--ignore-not-found", "--wait=false"); err != nil {
			f.Error(err)
		}
	})
}

// always is what no API server can tell before an installation.
const always = "unknown Images Node"

// TestCheck makes and breaks a cluster, and asks kubectl grid check about it: before the installation, after it with
// what it printed to install with, and with each of the defects. The control plane is real; the pods are kwok's, which
// the API server cannot tell from others.
func TestCheck(t *testing.T) {
	t.Parallel()
	f := start(t, cluster.Options{APIViewOnly: true,
		Nodes: []cluster.NodeSpec{{Name: "edge1"}, {Name: "edge2"}, {Name: "cloud1"}}})
	f.kubectl("delete", "-k", filepath.Join(manifests, "kubeadm"), "--ignore-not-found")
	for _, node := range []string{"edge1", "edge2", "cloud1"} { // what a kubelet says of itself
		_, err := f.client.CoreV1().Nodes().Patch(f.ctx, node, types.MergePatchType,
			[]byte(`{"status":{"nodeInfo":{"kubeletVersion":"v1.37.1","operatingSystem":"linux","architecture":"amd64","machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeProxyVersion":""}}}`),
			metav1.PatchOptions{}, "status")
		f.Must(err)
	}

	// Nothing is there but nodes.
	f.expectCheck("check --pre: no kube-proxy, nothing known", []string{
		always, "failure KubeProxy DaemonSet kube-system/kube-proxy", "warning Distribution Node",
	}, 3, "--pre")
	f.kubectl("-n", "kube-system", "create", "configmap", "kubeadm-config")
	f.writeKubeadmsKubeProxy("apply")
	f.expectPods("kube-proxy", "k8s-app", "cloud1 edge1 edge2")
	before := f.expectCheck("check --pre: ready for it", []string{always}, 0, "--pre")
	if before.Kind != "Preflight" || !strings.HasPrefix(before.APIVersion, "kubectl-grid.superedge.io/") ||
		before.Install == nil {
		t.Errorf("got %+v", before)
	}
	f.breakBefore()

	// What is printed to install with is installed.
	edge := f.TempDir()
	f.Must(os.CopyFS(filepath.Join(edge, "manifests"), os.DirFS(manifests)))
	f.Must(os.Mkdir(filepath.Join(edge, "edge"), 0o755))
	stdout, stderr, code := f.plugin("check", "--pre", "--registry=registry.example.org", "--tag=v1", "-o",
		"kustomization")
	if code != 0 || !strings.Contains(stderr, "0 failures") {
		t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
	}
	f.Must(os.WriteFile(filepath.Join(edge, "edge", "kustomization.yaml"), []byte(stdout), 0o600))
	f.kubectl("apply", "-k", filepath.Join(manifests, "crds"))
	f.kubectl("apply", "-k", filepath.Join(edge, "edge"), "--validate=strict")
	f.kubectl("-n", "kube-system", "patch", "daemonset", "kube-proxy", "--patch-file",
		filepath.Join(manifests, "kubeadm", "kube-proxy-away.yaml"))
	f.expectCheck("check: no edge node yet", []string{"warning EdgeLabel Node"}, 0)
	f.kubectl("label", "nodes", "edge1", "edge2", v1.LabelEdgeNode+"=true", v1.LabelKubeProxy+"="+v1.KubeProxyEdge)
	for _, app := range []string{"application-grid-wrapper", "statefulset-grid-daemon", "kube-proxy-edge"} {
		f.expectPods(app, "app", "edge1 edge2")
	}
	f.expectCheck("check: all is well", nil, 0)
	stdout, _, code = f.plugin("check")
	if code != 0 || !strings.Contains(stdout, "the wrapper is ready on each of 2 edge nodes") ||
		!strings.Contains(stdout, "\n0 failures, 0 warnings, 0 unknown, ") {
		t.Errorf("exit code %d\n%s", code, stdout)
	}
	f.breakAfter()
	f.expectCheck("check: all is well again", nil, 0)
}

// breakBefore lets the check find what speaks against an installation.
func (f *fixture) breakBefore() {
	for name, defect := range map[string]struct {
		manifest string
		want     []string
		code     int
		args     []string
	}{
		"Cilium in kube-proxy's place": {ciliumManifest,
			[]string{always, "warning KubeProxyReplacement DaemonSet kube-system/cilium"}, 0, nil},
		"the port is taken": {portManifest, []string{always, "warning Port DaemonSet default/grabber"}, 0, nil},
		"SuperEdge is there": {superEdgeManifest,
			[]string{always, "failure OtherWorkloads DaemonSet edge-system/application-grid-wrapper"}, 3, nil},
		"no rights": {"", []string{
			always, "unknown Read Node", "unknown Read Pod", "unknown Read DaemonSet", "unknown Read Deployment",
			"unknown Read StatefulSet",
			"unknown Read ConfigMap kube-system/kubeadm-config", "unknown Read CiliumNodeConfig",
			"unknown Read MutatingAdmissionPolicy kube-proxy.superedge.io",
			"unknown Read APIService v1alpha1.hub.superedge.io", "unknown Read Service",
			"unknown KubeProxyReplacement DaemonSet",
		}, 3, []string{"--token=" + f.Cluster.Token(cluster.RoleNobody)}},
	} {
		f.Step(name, func() {
			want := defect.want
			if defect.manifest != "" {
				f.temporarily(defect.manifest)
			} else {
				report, _, err := f.check("--pre", defect.args[0])
				f.Must(err)
				denied := 0
				for _, finding := range report.Findings {
					if finding.Check == "Rights" &&
						strings.Contains(finding.Message, "you may not create daemonsets.apps in kube-system") {
						denied++
					}
				}
				if denied != 1 {
					f.Errorf("it does not say what is denied: %+v", report.Findings)
				}
				for _, line := range report.trouble() {
					if strings.Contains(line, " Rights ") {
						want = append(want, line)
					}
				}
			}
			f.expectCheck(name, want, defect.code, append([]string{"--pre"}, defect.args...)...)
		})
	}
	f.Step("ipvs", func() {
		f.proxyConfig("kube-proxy", "config.conf",
			"mode: ipvs\nclientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}")
		f.expectCheck("ipvs", []string{always, "warning KubeProxyMode DaemonSet kube-system/kube-proxy"}, 0, "--pre")
	})
	f.expectCheck("check --pre: ready again", []string{always}, 0, "--pre")
}

// proxyConfig changes a key of a ConfigMap of kube-proxy until the test ends.
func (f *fixture) proxyConfig(name, key, text string) {
	f.Helper()
	f.Eventually("the second in which the pods have started is over", func() error { // times have no fractions
		pods, err := f.client.CoreV1().Pods("kube-system").List(f.ctx,
			metav1.ListOptions{LabelSelector: "app=kube-proxy-edge"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, status := range pod.Status.ContainerStatuses {
				if running := status.State.Running; running == nil || time.Since(running.StartedAt.Time) < time.Second {
					return fmt.Errorf("pod %s is young", pod.Name)
				}
			}
		}
		return nil
	})
	maps := f.client.CoreV1().ConfigMaps("kube-system")
	before, err := maps.Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	set := func(text string) error {
		patch, err := json.Marshal(map[string]any{"data": map[string]string{key: text}})
		if err == nil {
			_, err = maps.Patch(f.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	f.Must(set(text))
	f.Cleanup(func() {
		if err := set(before.Data[key]); err != nil {
			f.Error(err)
		}
		// A ConfigMap that was written is younger than the pods that have it.
		f.kubectl("-n", "kube-system", "rollout", "restart", "daemonset", "-l", "app=kube-proxy-edge")
		f.kubectl("-n", "kube-system", "rollout", "status", "daemonset", "-l", "app=kube-proxy-edge", "--timeout=60s")
	})
}

// edgeProxies are a finding of a check on each pod of kube-proxy-edge.
func (f *fixture) edgeProxies(severity, check string) []string {
	f.Helper()
	var lines []string
	for _, pod := range f.podsOf("kube-proxy-edge") {
		lines = append(lines, severity+" "+check+" Pod kube-system/"+pod)
	}
	return lines
}

// defects are ways to break the installation.
var defects = []struct {
	name string
	// spoil breaks it until the test ends, and returns what the check has to find.
	spoil func(f *fixture) []string
	code  int
	// role is who asks, "" for an administrator.
	role cluster.Role
}{
	{"no wrapper on a node", func(f *fixture) []string {
		f.patch("daemonset", "application-grid-wrapper",
			`{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[{"key":"kubernetes.io/hostname","operator":"NotIn","values":["edge1"]}]}]}}}}}}}`,
			`{"spec":{"template":{"spec":{"affinity":null}}}}`)
		return []string{"failure Wrapper Node edge1"}
	}, 3, ""},
	{"kube-proxy asks past the wrapper", func(f *fixture) []string {
		f.proxyConfig("kube-proxy-edge", "kubeconfig.conf",
			"{clusters: [{name: a, cluster: {server: 'https://192.0.2.1:6443'}}], contexts: [{name: a, context: {cluster: a}}], current-context: a}")
		return f.edgeProxies("failure", "KubeProxy")
	}, 3, ""},
	{"kube-proxy's kubeconfig was changed since", func(f *fixture) []string {
		f.proxyConfig("kube-proxy-edge", "kubeconfig.conf",
			"{clusters: [{name: b, cluster: {server: 'http://127.0.0.1:51006'}}], contexts: [{name: b, context: {cluster: b}}], current-context: b}")
		return f.edgeProxies("warning", "KubeProxy")
	}, 0, ""},
	{"two kube-proxies on a node", func(f *fixture) []string {
		f.secondPod("kube-proxy", "edge1")
		return []string{"failure KubeProxy Node edge1", "failure KubeProxy Pod kube-system/second-kube-proxy"}
	}, 3, ""},
	{"ipvs", func(f *fixture) []string {
		f.proxyConfig("kube-proxy", "config.conf",
			"mode: ipvs\nclientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf}")
		return append(f.edgeProxies("warning", "KubeProxy"), "warning KubeProxyMode DaemonSet kube-system/kube-proxy",
			"warning KubeProxyMode DaemonSet kube-system/kube-proxy-edge")
	}, 0, ""},
	{"Cilium in kube-proxy's place", func(f *fixture) []string {
		f.temporarily(ciliumManifest)
		f.patch("daemonset", "kube-proxy-edge", `{"spec":{"template":{"spec":{"nodeSelector":{"no":"where"}}}}}`,
			`{"spec":{"template":{"spec":{"nodeSelector":{"no":null}}}}}`)
		return []string{"failure KubeProxyReplacement Node edge1", "failure KubeProxyReplacement Node edge2"}
	}, 3, ""},
	{"a CRD of SuperEdge's, and an older one", func(f *fixture) []string {
		for name, version := range map[string]string{"servicegrids": "null", "deploymentgrids": `"1"`} {
			ours := f.kubectl("get", "crd", name+".superedge.io", "-o",
				`jsonpath={.metadata.annotations.superedge\.io/crd-version}`)
			f.patchIn("", "crd", name+".superedge.io",
				`{"metadata":{"annotations":{"superedge.io/crd-version":`+version+`}}}`,
				`{"metadata":{"annotations":{"superedge.io/crd-version":"`+ours+`"}}}`)
		}
		return []string{"failure CRDs CustomResourceDefinition servicegrids.superedge.io",
			"failure CRDs CustomResourceDefinition deploymentgrids.superedge.io"}
	}, 3, ""},
	{"wrappers of two versions", func(f *fixture) []string {
		// As while an offline site keeps the old one.
		f.patch("daemonset", "application-grid-wrapper",
			`{"spec":{"updateStrategy":{"$patch":"replace","type":"OnDelete"},"template":{"spec":{"containers":[{"name":"application-grid-wrapper","image":"registry.example.org/application-grid-wrapper:v2"}]}}}}`,
			`{"spec":{"updateStrategy":{"$patch":"replace","type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"100%"}},"template":{"spec":{"containers":[{"name":"application-grid-wrapper","image":"registry.example.org/application-grid-wrapper:v1"}]}}}}`)
		f.kubectl("-n", "kube-system", "delete", "pod", "-l", "app=application-grid-wrapper",
			"--field-selector=spec.nodeName=edge1")
		return []string{"warning ProgramVersions DaemonSet"}
	}, 0, ""},
	{"a token that ends soon", func(f *fixture) []string {
		token := strings.TrimSpace(f.kubectl("-n", "kube-system", "create", "token", "application-grid-wrapper",
			"--duration=2h"))
		text, err := yaml.Marshal(map[string]any{
			"clusters": []any{map[string]any{"name": "a",
				"cluster": map[string]any{"server": "https://192.0.2.1:6443"}}},
			"users": []any{map[string]any{"name": "own", "user": map[string]any{"token": token}}},
			"contexts": []any{map[string]any{"name": "a",
				"context": map[string]any{"cluster": "a", "user": "own"}}},
			"current-context": "a",
		})
		f.Must(err)
		f.proxyConfig("kube-proxy", "kubeconfig.conf", string(text))
		return append(f.edgeProxies("warning", "KubeProxy"), "warning Credentials ConfigMap kube-system/kube-proxy")
	}, 0, ""},
	{"no rights", func(*fixture) []string {
		lost := []string{"Node", "Pod", "DaemonSet", "Deployment", "StatefulSet",
			"ConfigMap kube-system/kubeadm-config", "ConfigMap kube-system/kube-root-ca.crt", "Service",
			"MutatingAdmissionPolicy kube-proxy.superedge.io", "APIService v1alpha1.hub.superedge.io", "CiliumNodeConfig"}
		for _, kind := range v1.Kinds {
			lost = append(lost, "CustomResourceDefinition "+kind.Plural+".superedge.io")
		}
		for i := range lost {
			lost[i] = "unknown Read " + lost[i]
		}
		return append(lost, "unknown KubeProxyReplacement DaemonSet")
	}, 1, cluster.RoleNobody},
	{"NodeLocal DNSCache", func(f *fixture) []string {
		f.temporarily(nodeLocalManifest)
		return []string{"warning NodeLocalDNS DaemonSet kube-system/node-local-dns"}
	}, 0, ""},
	{"the port is taken", func(f *fixture) []string {
		f.temporarily(portManifest)
		f.Eventually("the others run", func() error {
			if pods := f.podsOfIn("default", "grabber"); len(pods) != 3 {
				return fmt.Errorf("%q", pods)
			}
			return nil
		})
		want := []string{"warning Port DaemonSet default/grabber"}
		pods, err := f.client.CoreV1().Pods("default").List(f.ctx, metav1.ListOptions{LabelSelector: "app=grabber"})
		f.Must(err)
		for _, pod := range pods.Items {
			if pod.Spec.NodeName != "cloud1" {
				want = append(want, "failure Port Pod default/"+pod.Name)
			}
		}
		return want
	}, 3, ""},
	{"the policy is gone", func(f *fixture) []string {
		f.kubectl("delete", "mutatingadmissionpolicybinding", "kube-proxy.superedge.io")
		f.Cleanup(func() {
			f.kubectl("apply", "-f", filepath.Join(manifests, "kubeadm", "kube-proxy-policy.yaml"))
		})
		return []string{"failure KubeProxyPlacement MutatingAdmissionPolicy kube-proxy.superedge.io"}
	}, 3, ""},
	{"the wrapper under systemd", func(f *fixture) []string {
		f.kubectl("label", "node", "edge1", "--overwrite", v1.LabelEdgeNode+"=systemd")
		f.Cleanup(func() { f.kubectl("label", "node", "edge1", "--overwrite", v1.LabelEdgeNode+"=true") })
		return []string{"unknown Wrapper Node edge1", "unknown Credentials Node edge1"}
	}, 0, ""},
	{"the wrapper under systemd, and in a pod", func(f *fixture) []string {
		f.kubectl("label", "node", "edge1", "--overwrite", v1.LabelEdgeNode+"=systemd")
		f.Cleanup(func() { f.kubectl("label", "node", "edge1", "--overwrite", v1.LabelEdgeNode+"=true") })
		f.secondPod("application-grid-wrapper", "edge1") // the DaemonSet's ends with the label
		return []string{"failure Wrapper Pod kube-system/second-application-grid-wrapper",
			"unknown Credentials Node edge1"}
	}, 3, ""},
	{"kube-proxy waits for a wrapper that is not ready, and moves only with its label", func(f *fixture) []string {
		f.kubectl("label", "node", "edge1", v1.LabelKubeProxy+"-")
		f.Cleanup(func() { f.kubectl("label", "node", "edge1", v1.LabelKubeProxy+"="+v1.KubeProxyEdge) })
		var pod string
		f.Eventually("kubeadm's kube-proxy is back", func() error {
			pods, err := f.client.CoreV1().Pods("kube-system").List(f.ctx, metav1.ListOptions{
				LabelSelector: "k8s-app=kube-proxy", FieldSelector: "spec.nodeName=edge1"})
			if err == nil && len(pods.Items) != 1 {
				err = fmt.Errorf("there are %d", len(pods.Items))
			}
			if err != nil {
				return err
			}
			pod = pods.Items[0].Name
			return nil
		})
		return []string{"failure KubeProxy Pod kube-system/" + pod}
	}, 3, ""},
	{"a node of a site that is no edge node, and an edge node in no site", func(f *fixture) []string {
		f.temporarily(sitesManifest)
		f.kubectl("label", "nodes", "edge1", "cloud1", "zone1=east")
		f.Cleanup(func() { f.kubectl("label", "nodes", "edge1", "cloud1", "zone1-") })
		return []string{"failure Site Node cloud1", "failure Site Node edge2"}
	}, 3, ""},
	{"an ingress controller, and a hub that nobody asks", func(f *fixture) []string {
		f.temporarily(bypassManifest)
		return []string{"warning Bypass Deployment default/traefik", "warning Hub Deployment default/application-grid-hub"}
	}, 0, ""},
	{"a grid that is stalled, and a Service that no node sees", func(f *fixture) []string {
		f.temporarily(gridManifest)
		f.kubectl("patch", "deploymentgrid", "echo", "--subresource=status", "--type=merge", "-p",
			`{"status":{"observedGeneration":1,"sites":0,"readySites":0,"conditions":[{"type":"Ready","status":"False","reason":"SitesStalled","message":"m","lastTransitionTime":"2026-01-01T00:00:00Z"},{"type":"Stalled","status":"True","reason":"SitesStalled","message":"site east makes no progress","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`)
		return []string{"failure Grids DeploymentGrid default/echo", "failure Services Service default/bad"}
	}, 3, ""},
}

// breakAfter breaks the installation in one way after the other, and mends it again.
func (f *fixture) breakAfter() {
	for _, defect := range defects {
		f.Step(defect.name, func() { // and what mends it
			var args []string
			if defect.role != "" {
				args = append(args, "--token="+f.Cluster.Token(defect.role))
			}
			f.expectCheck(defect.name, defect.spoil(f), defect.code, args...)
		})
		f.expectCheck("all is well after: "+defect.name, nil, 0)
	}
}

// podsOf are the names of a DaemonSet's pods that are not ending.
func (f *fixture) podsOf(set string) []string { return f.podsOfIn("kube-system", set) }

func (f *fixture) podsOfIn(namespace, set string) []string {
	f.Helper()
	pods, err := f.client.CoreV1().Pods(namespace).List(f.ctx, metav1.ListOptions{LabelSelector: "app=" + set})
	f.Must(err)
	var names []string
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
			names = append(names, pod.Name)
		}
	}
	return names
}

// patch patches an object of kube-system until the test ends.
func (f *fixture) patch(kind, name, patch, back string) {
	f.Helper()
	f.patchIn("kube-system", kind, name, patch, back)
}

func (f *fixture) patchIn(namespace, kind, name, patch, back string) {
	f.Helper()
	way := "--type=strategic"
	if kind == "crd" {
		way = "--type=merge"
	}
	args := []string{"patch", kind, name, way, "-p"}
	if namespace != "" {
		args = append([]string{"-n", namespace}, args...)
	}
	f.kubectl(append(args, patch)...)
	f.Cleanup(func() { f.kubectl(append(args, back)...) })
}

// secondPod runs a pod as a DaemonSet has them on a node, whatever the scheduler would say.
func (f *fixture) secondPod(of, node string) {
	f.Helper()
	set, err := f.client.AppsV1().DaemonSets("kube-system").Get(f.ctx, of, metav1.GetOptions{})
	f.Must(err)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "second-" + of},
		Spec: *set.Spec.Template.Spec.DeepCopy()}
	pod.Spec.NodeName, pod.Spec.Affinity, pod.Spec.NodeSelector = node, nil, nil
	_, err = f.client.CoreV1().Pods("kube-system").Create(f.ctx, pod, metav1.CreateOptions{})
	f.Must(err)
	f.Cleanup(func() { f.kubectl("-n", "kube-system", "delete", "pod", pod.Name, "--now") })
}

const (
	ciliumManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system}
spec:
  selector: {matchLabels: {app: cilium}}
  template:
    metadata: {labels: {app: cilium}}
    spec:
      hostNetwork: true
      containers: [{name: cilium-agent, image: "quay.io/cilium/cilium:v1.18.0", command: [cilium-agent]}]
`
	nodeLocalManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: node-local-dns, namespace: kube-system}
spec:
  selector: {matchLabels: {app: node-local-dns}}
  template:
    metadata: {labels: {app: node-local-dns}}
    spec:
      hostNetwork: true
      containers: [{name: node-cache, image: "registry.k8s.io/dns/k8s-dns-node-cache:1.26.0", args: [-localip, 169.254.20.10]}]
`
	portManifest = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: grabber, namespace: default}
spec:
  selector: {matchLabels: {app: grabber}}
  template:
    metadata: {labels: {app: grabber}}
    spec:
      hostNetwork: true
      automountServiceAccountToken: false
      containers: [{name: grabber, image: grabber, ports: [{containerPort: 51006}]}]
`
	superEdgeManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: edge-system}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: application-grid-wrapper, namespace: edge-system}
spec:
  selector: {matchLabels: {k8s-app: application-grid-wrapper}}
  template:
    metadata: {labels: {k8s-app: application-grid-wrapper}}
    spec:
      hostNetwork: true
      containers: [{name: application-grid-wrapper, image: "superedge.tencentcloudcr.com/superedge/application-grid-wrapper:v0.9.0", command: [/usr/local/bin/application-grid-wrapper, "--bind-address=127.0.0.1:51006"]}]
`
	sitesManifest = `
apiVersion: v1
kind: Service
metadata: {name: local, namespace: default, annotations: {topologyKeys: '["zone1"]'}}
spec: {ports: [{port: 80}]}
`
	bypassManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: traefik, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: traefik}}
  template: {metadata: {labels: {app: traefik}}, spec: {containers: [{name: traefik, image: "traefik:v3"}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: application-grid-hub, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: hub}}
  template: {metadata: {labels: {app: hub}}, spec: {containers: [{name: application-grid-hub, image: "hub:v1"}]}}
`
	gridManifest = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata: {name: echo, namespace: default}
spec:
  gridUniqKey: zone1
  template: {selector: {matchLabels: {app: echo}}, template: {metadata: {labels: {app: echo}}, spec: {containers: [{name: echo, image: echo}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: bad, namespace: default, annotations: {topologyKeys: zone1}}
spec: {ports: [{port: 80}]}
`
)
