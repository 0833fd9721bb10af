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
	f.checkWithoutRights()

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

// checkWithoutRights expects the check before an installation to say what is denied, and what could not be read.
func (f *fixture) checkWithoutRights() {
	token := "--token=" + f.Cluster.Token(cluster.RoleNobody)
	report, _, err := f.check("--pre", token)
	f.Must(err)
	want := append(lost(), always)
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
	f.expectCheck("no rights", want, 3, "--pre", token)
}

// lost is what a check before and after an installation misses without rights.
func lost() []string {
	lost := []string{"unknown KubeProxyReplacement DaemonSet"}
	for _, read := range []string{"Node", "Pod", "DaemonSet", "Deployment", "StatefulSet", "Service",
		"ConfigMap kube-system/kubeadm-config", "CiliumNodeConfig", "MutatingAdmissionPolicy kube-proxy.superedge.io",
		"APIService v1alpha1.hub.superedge.io"} {
		lost = append(lost, "unknown Read "+read)
	}
	return lost
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

// defects are ways to break the installation that show by what the API server or a controller writes, or by whom it
// refuses. The others are in the tests of package check.
var defects = []struct {
	name string
	// spoil breaks it until the test ends, and returns what the check has to find.
	spoil func(f *fixture) []string
	code  int
	// role is who asks, "" for an administrator.
	role cluster.Role
}{
	{"kube-proxy's kubeconfig was changed since", func(f *fixture) []string {
		f.proxyConfig("kube-proxy-edge", "kubeconfig.conf",
			"{clusters: [{name: b, cluster: {server: 'http://127.0.0.1:51006'}}], contexts: [{name: b, context: {cluster: b}}], current-context: b}")
		return f.edgeProxies("warning", "KubeProxy")
	}, 0, ""},
	{"wrappers of two versions", func(f *fixture) []string {
		// As while an offline site keeps the old one.
		f.patch("daemonset", "application-grid-wrapper",
			`{"spec":{"updateStrategy":{"$patch":"replace","type":"OnDelete"},"template":{"spec":{"containers":[{"name":"application-grid-wrapper","image":"registry.example.org/application-grid-wrapper:v2"}]}}}}`,
			`{"spec":{"updateStrategy":{"$patch":"replace","type":"RollingUpdate","rollingUpdate":{"maxUnavailable":"100%"}},"template":{"spec":{"containers":[{"name":"application-grid-wrapper","image":"registry.example.org/application-grid-wrapper:v1"}]}}}}`)
		f.kubectl("-n", "kube-system", "delete", "pod", "-l", "app=application-grid-wrapper",
			"--field-selector=spec.nodeName=edge1")
		return []string{"warning ProgramVersions DaemonSet"}
	}, 0, ""},
	{"no rights", func(*fixture) []string {
		lost := append(lost(), "unknown Read ConfigMap kube-system/kube-root-ca.crt")
		for _, kind := range v1.Kinds {
			lost = append(lost, "unknown Read CustomResourceDefinition "+kind.Plural+".superedge.io")
		}
		return lost
	}, 1, cluster.RoleNobody},
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
func (f *fixture) podsOf(set string) []string {
	f.Helper()
	pods, err := f.client.CoreV1().Pods("kube-system").List(f.ctx, metav1.ListOptions{LabelSelector: "app=" + set})
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
	args := []string{"-n", "kube-system", "patch", kind, name, "--type=strategic", "-p"}
	f.kubectl(append(args, patch)...)
	f.Cleanup(func() { f.kubectl(append(args, back)...) })
}
