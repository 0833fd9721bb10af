package setup

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/docs/docstest"
)

var images = Images{Registry: "registry.example.org", Tag: "v1"}

// onPage is the kustomization that a page shows below a heading.
func onPage(t *testing.T, page, heading string) string {
	t.Helper()
	_, section, found := strings.Cut(docstest.Page(t, page), "\n## "+heading+"\n")
	_, block, shown := strings.Cut(section, "# edge/kustomization.yaml\n")
	if !found || !shown {
		t.Fatalf("%s: %s shows no kustomization", page, heading)
	}
	block, _, _ = strings.Cut(block, "```")
	var lines []string
	for line := range strings.Lines(block) {
		lines = append(lines, line)
	}
	indent := len(lines[0]) - len(strings.TrimLeft(lines[0], " "))
	for i := range lines {
		lines[i] = lines[i][min(indent, len(lines[i])):]
	}
	return strings.TrimRight(strings.Join(lines, ""), " ")
}

// TestAsOnThePage: what is written for a cluster is what the page has an operator write.
func TestAsOnThePage(t *testing.T) {
	kubeadms := For(Kind{Distribution: Kubeadm, Minor: 37, KubeProxy: "registry.k8s.io/kube-proxy",
		KubeProxyTag: "v1.37.1"}, images)
	if want := "# edge/kustomization.yaml\n" + onPage(t, "docs/kubeadm.md", "Install"); kubeadms.Kustomization != want {
		t.Errorf("got\n%s\nthe page has\n%s", kubeadms.Kustomization, want)
	}
	for _, distribution := range []string{RKE2, MicroK8s} {
		got, want := map[string]any{}, map[string]any{}
		install := For(Kind{Distribution: distribution, Minor: 37}, images)
		if err := yaml.Unmarshal([]byte(install.Kustomization), &got); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(onPage(t, "docs/k3s.md", "RKE2 and MicroK8s")), &want); err != nil {
			t.Fatal(err)
		}
		gotYAML, _ := yaml.Marshal(got)
		wantYAML, _ := yaml.Marshal(want)
		if string(gotYAML) != string(wantYAML) {
			t.Errorf("%s: got\n%s\nthe page has\n%s", distribution, gotYAML, wantYAML)
		}
	}
}

// TestKubeconfig: the kubeconfig that is written is the shipped one, with another server.
func TestKubeconfig(t *testing.T) {
	shipped := docstest.Page(t, "manifests/k3s/kubeconfig.conf")
	_, shipped, _ = strings.Cut(shipped, "apiVersion")
	shipped = "apiVersion" + shipped
	install := For(Kind{Distribution: RKE2}, images)
	if want := strings.Replace(shipped, "https://127.0.0.1:6444", "https://127.0.0.1:6443",
		1); install.Kubeconfig != want {
		t.Errorf("got\n%s\nwant\n%s", install.Kubeconfig, want)
	}
}

// TestValues: only values of the chart, and those that the kind of cluster needs.
func TestValues(t *testing.T) {
	for _, test := range []struct {
		kind Kind
		want string
	}{
		{Kind{Distribution: Kubeadm}, "distribution: kubeadm\n"},
		{Kind{Distribution: Kubeadm, Minor: 35, KubeProxy: "a/kube-proxy", KubeProxyTag: "v1.35.0"},
			"distribution: kubeadm\nkubeProxy:\n  image: a/kube-proxy:v1.35.0\n  policy: false\n"},
		{Kind{Distribution: K3s, Minor: 28}, "distribution: k3s\nflowControl:\n  enabled: false\nedgeNodePolicy:\n  " +
			"enabled: false\n"},
		{Kind{Distribution: MicroK8s}, "distribution: plain\nwrapper:\n  server: https://127.0.0.1:16443\n"},
		{Kind{}, "distribution: plain\nwrapper:\n  server: https://set-this-to-your-api-server.invalid:6443\n"},
	} {
		if got := For(test.kind,
			images).Values; got != "image:\n  registry: registry.example.org\n  tag: \"v1\"\n"+test.want {
			t.Errorf("%+v: got\n%s", test.kind, got)
		}
	}
}

// TestValuesAreTheCharts: every value that is written is one that the chart has.
func TestValuesAreTheCharts(t *testing.T) {
	var chart map[string]any
	if err := yaml.Unmarshal([]byte(docstest.Page(t, "charts/application-grid/values.yaml")), &chart); err != nil {
		t.Fatal(err)
	}
	var compare func(path string, written, known map[string]any)
	compare = func(path string, written, known map[string]any) {
		for key, value := range written {
			other, ok := known[key]
			if !ok {
				t.Errorf("the chart has no value %s%s", path, key)
			}
			if deeper, isMap := value.(map[string]any); isMap {
				below, _ := other.(map[string]any)
				compare(path+key+".", deeper, below)
			}
		}
	}
	for _, distribution := range []string{Kubeadm, K3s, RKE2, MicroK8s, ""} {
		for _, minor := range []int{0, 28} {
			var written map[string]any
			kind := Kind{Distribution: distribution, Minor: minor, KubeProxy: "registry.k8s.io/kube-proxy",
				KubeProxyTag: "v1.28.0"}
			if err := yaml.UnmarshalStrict([]byte(For(kind, images).Values), &written); err != nil {
				t.Fatal(err)
			}
			compare("", written, chart)
		}
	}
}
