// Package setup writes the files that install application-grid on a kind of cluster: what docs/kubeadm.md and its
// siblings have an operator write. It asks no cluster; package check finds out which kind one is.
package setup

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/application-grid/application-grid/manifests"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// Install has the files and notes for an installation on one cluster.
type Install struct {
	Distribution string `json:"distribution"`
	// Kustomization is the file edge/kustomization.yaml of docs/kubeadm.md or its siblings, Values are those of the
	// Helm chart.
	Kustomization string `json:"kustomization"`
	Values        string `json:"values"`
	// Kubeconfig is the file kubeconfig.conf next to the kustomization, if that names one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Notes are other steps besides applying.
	Notes []string `json:"notes,omitempty"`
}

// localServers are the local addresses of the API servers that some distributions have on every node.
var localServers = map[string]string{RKE2: "https://127.0.0.1:6443", MicroK8s: "https://127.0.0.1:16443"}

// unset is the server in the wrapper's kubeconfig of manifests/.
const unset = "https://set-this-to-your-api-server.invalid:6443"

// The distributions with their own files. All others have the same files.
const (
	Kubeadm  = "kubeadm"
	K3s      = "k3s"
	RKE2     = "RKE2"
	MicroK8s = "MicroK8s"
)

// The minor versions of Kubernetes 1 from which on an API server accepts the manifests (docs/compatibility.md).
const (
	FlowControl      = 29
	ValidatingPolicy = 30
	MutatingPolicy   = 36
)

// Images are the registry and the tag of the images.
type Images struct{ Registry, Tag string }

// Kind has the properties of a cluster on which the files depend.
type Kind struct {
	// Distribution is the cluster's distribution; empty if it is not known.
	Distribution string
	// Minor is the API server's minor version; 0 if it is not known, which is treated as a new one.
	Minor int
	// Cilium is set if Cilium runs in the place of kube-proxy.
	Cilium bool
	// KubeProxy and KubeProxyTag are the image of the cluster's kube-proxy and its tag; empty if they are not known.
	KubeProxy, KubeProxyTag string
}

// ways are how the kube-proxy of a distribution is pointed to the wrapper.
var ways = map[string]string{
	K3s:  rancher("k3s", "k3s-agent (k3s on a server)"),
	RKE2: rancher("rke2", "rke2-agent (rke2-server on a server)"),
	MicroK8s: labelFirst + "in /var/snap/microk8s/current/args/kube-proxy: --master=http://localhost:51006; then " +
		"snap restart microk8s.daemon-kubelite",
	"": labelFirst + "give kube-proxy the server http://localhost:51006, by its kubeconfig or by --master, and " +
		"restart it",
}

// labelFirst begins the instructions where kube-proxy does not move by itself. A kube-proxy whose wrapper does not run
// waits silently, and its node's rules do not change.
const labelFirst = "On each edge node, once it has the label " + v1.LabelEdgeNode +
	"=true and its wrapper is ready, and not before: "

// rancher returns how to point the kube-proxy of k3s and RKE2 to the wrapper.
func rancher(name, unit string) string {
	return labelFirst + "kube-proxy-arg+: [\"master=http://localhost:51006\"] in /etc/rancher/" + name +
		"/config.yaml.d/application-grid.yaml; then restart " + unit
}

// For writes the files for a kind of cluster.
func For(kind Kind, images Images) *Install {
	distribution := kind.Distribution
	install := &Install{Distribution: distribution}
	if kind.Cilium && localServers[distribution] == "" {
		distribution = "" // those of kubeadm and k3s are about their kube-proxy
	}
	var k, values, patches strings.Builder
	k.WriteString("# edge/kustomization.yaml\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	older := func(than int) bool { return kind.Minor != 0 && kind.Minor < than }
	fmt.Fprintf(&values, "image:\n  registry: %s\n  tag: %q\n", images.Registry, images.Tag)
	note := func(text string) { install.Notes = append(install.Notes, text) }
	switch distribution {
	case Kubeadm:
		kubeadm(kind, &k, &values, &patches, note)
	case K3s:
		k.WriteString("resources: [../manifests/k3s]\n")
		values.WriteString("distribution: k3s\n")
	default:
		install.Kubeconfig = plain(distribution, &k, &values, note)
	}
	if kind.Cilium {
		k.WriteString("components: [../manifests/cilium]\n")
		values.WriteString("cilium:\n  enabled: true\n")
	}
	k.WriteString("images:\n")
	for _, program := range []string{"application-grid-controller", "application-grid-wrapper",
		"statefulset-grid-daemon"} {
		fmt.Fprintf(&k, "  - {name: %s, newName: %s/%s, newTag: %s}\n", program, images.Registry, program, images.Tag)
	}
	if name := kind.KubeProxy; distribution == Kubeadm && name != "" {
		renamed := ""
		if name != "registry.k8s.io/kube-proxy" {
			renamed = ", newName: " + name
		}
		fmt.Fprintf(&k, "  - {name: registry.k8s.io/kube-proxy%s, newTag: %s}\n", renamed, kind.KubeProxyTag)
	}
	if older(FlowControl) {
		values.WriteString("flowControl:\n  enabled: false\n")
		patches.WriteString(without("{group: flowcontrol.apiserver.k8s.io}", "flowcontrol.apiserver.k8s.io/v1",
			"FlowSchema", "any"))
	}
	if older(ValidatingPolicy) {
		values.WriteString("edgeNodePolicy:\n  enabled: false\n")
		patches.WriteString(without("{group: admissionregistration.k8s.io}", "admissionregistration.k8s.io/v1",
			"ValidatingAdmissionPolicy", "any"))
	}
	if patches.Len() > 0 {
		k.WriteString("patches:\n" + patches.String())
	}
	note("Label nodes one by one: kubectl label node NODE superedge.io/application-grid=true")
	switch {
	case kind.Cilium:
		note("On each edge node approve the certificate request of its wrapper, and restart its agent of Cilium " +
			"(docs/cilium.md)")
	case distribution != Kubeadm: // whose kube-proxy moves by itself
		note(cmp.Or(ways[distribution], ways[""]))
	}
	install.Kustomization, install.Values = k.String(), values.String()
	return install
}

// kubeadm writes the parts for kubeadm clusters.
func kubeadm(kind Kind, k, values, patches *strings.Builder, note func(string)) {
	const away = "kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml"
	k.WriteString("resources: [../manifests/kubeadm]\n")
	values.WriteString("distribution: kubeadm\n")
	oldPolicy := kind.Minor != 0 && kind.Minor < MutatingPolicy
	if kind.KubeProxy != "" || oldPolicy {
		values.WriteString("kubeProxy:\n")
	}
	if kind.KubeProxy != "" {
		fmt.Fprintf(values, "  image: %s:%s\n", kind.KubeProxy, kind.KubeProxyTag)
	}
	if oldPolicy {
		values.WriteString("  policy: false\n")
		if kind.Minor >= ValidatingPolicy {
			patches.WriteString(without("{group: admissionregistration.k8s.io, name: kube-proxy.superedge.io}",
				"admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "kube-proxy.superedge.io"))
		}
		note("Repeat after each upgrade by kubeadm, before anything else: " + away)
	}
	note("After kubectl apply -k edge: " + away)
}

// plain writes the parts for clusters that need a kubeconfig of the wrapper, and returns that kubeconfig.
func plain(distribution string, k, values *strings.Builder, note func(string)) string {
	address, known := localServers[distribution]
	if known { // docs/k3s.md: as on k3s, with another address
		k.WriteString("resources: [../manifests/k3s]\n")
	} else {
		address = unset
		note("Set the server in kubeconfig.conf: the address of the API server, or of the lite-apiserver, as a node " +
			"has it; never that of the Service kubernetes")
		k.WriteString("resources:\n")
		for _, name := range []string{"application-grid-controller", "application-grid-wrapper",
			"statefulset-grid-daemon", "flow-control", "edge-node-policy"} {
			k.WriteString("  - ../manifests/" + name + "\n")
		}
	}
	k.WriteString("configMapGenerator:\n  - {name: application-grid-wrapper, namespace: kube-system, behavior: " +
		"replace, files: [kubeconfig.conf]}\ngeneratorOptions: {disableNameSuffixHash: true}\n")
	fmt.Fprintf(values, "distribution: plain\nwrapper:\n  server: %s\n", address)
	_, content, _ := strings.Cut(manifests.Kubeconfig, "apiVersion:") // without its comment
	return "apiVersion:" + strings.Replace(content, unset, address, 1)
}

// without returns a patch that leaves out the objects of a target.
func without(target, apiVersion, kind, name string) string {
	return "  - target: " + target + "\n    patch: |\n      apiVersion: " + apiVersion + "\n      kind: " + kind +
		"\n      metadata: {name: " + name + "}\n      $patch: delete\n"
}
