// Package setup writes the files that install application-grid on a kind of cluster: what docs/install.md has an
// operator write. It asks no cluster; package check finds out which kind one is.
package setup

import (
	"fmt"
	"strings"
)

// Install is how to install on one cluster.
type Install struct {
	Distribution string `json:"distribution"`
	// Kustomization is the file edge/kustomization.yaml of docs/install.md, Values are those of the Helm chart.
	Kustomization string `json:"kustomization"`
	Values        string `json:"values"`
	// Kubeconfig is the file kubeconfig.conf next to the kustomization, if that names one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Notes are what there is to do besides applying.
	Notes []string `json:"notes,omitempty"`
}

// localServers are the ways to the API servers that some distributions have on every node.
var localServers = map[string]string{RKE2: "https://127.0.0.1:6443", MicroK8s: "https://127.0.0.1:16443"}

// kubeconfigTemplate is manifests/application-grid-wrapper/kubeconfig.conf with a server.
const kubeconfigTemplate = `apiVersion: v1
kind: Config
clusters:
  - name: default
    cluster:
      certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
      server: %s
users:
  - name: default
    user:
      tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
  - name: default
    context: {cluster: default, user: default}
current-context: default
`

// The distributions that have files of their own. All others have the same.
const (
	Kubeadm  = "kubeadm"
	K3s      = "k3s"
	RKE2     = "RKE2"
	MicroK8s = "MicroK8s"
)

// The minor versions of Kubernetes 1 from which on an API server takes all of the manifests: docs/compatibility.md.
const (
	FlowControl      = 29
	ValidatingPolicy = 30
	MutatingPolicy   = 36
)

// Images say where the images come from.
type Images struct{ Registry, Tag string }

// Kind is what the files depend on of a cluster.
type Kind struct {
	// Distribution is what made the cluster; empty if it is not known.
	Distribution string
	// Minor is the API server's minor version; 0 if it is not known, which is taken for a new one.
	Minor int
	// KubeProxy and KubeProxyTag are the image of the cluster's kube-proxy and its tag; empty if they are not known.
	KubeProxy, KubeProxyTag string
}

// For writes the files for a kind of cluster.
func For(kind Kind, images Images) *Install {
	distribution := kind.Distribution
	install := &Install{Distribution: distribution}
	var k, values strings.Builder
	k.WriteString("# edge/kustomization.yaml\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	older := func(than int) bool { return kind.Minor != 0 && kind.Minor < than }
	oldFlow, oldValidating, oldPolicy := older(FlowControl), older(ValidatingPolicy), older(MutatingPolicy)
	fmt.Fprintf(&values, "image:\n  registry: %s\n  tag: %q\n", images.Registry, images.Tag)
	var patches []string
	proxyName, proxyTag := "", ""
	switch distribution {
	case Kubeadm:
		k.WriteString("resources: [../manifests/kubeadm]\n")
		values.WriteString("distribution: kubeadm\n")
		proxyName, proxyTag = kind.KubeProxy, kind.KubeProxyTag
		if proxyName != "" || oldPolicy {
			values.WriteString("kubeProxy:\n")
		}
		if proxyName != "" {
			fmt.Fprintf(&values, "  image: %s:%s\n", proxyName, proxyTag)
		}
		if oldPolicy {
			values.WriteString("  policy: false\n")
			if !oldValidating {
				patches = append(patches,
					without("{group: admissionregistration.k8s.io, name: kube-proxy.superedge.io}",
						"admissionregistration.k8s.io/v1", "MutatingAdmissionPolicy", "kube-proxy.superedge.io"))
			}
			install.Notes = append(install.Notes,
				"Repeat after each upgrade by kubeadm, before anything else: kubectl -n "+
					"kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
		}
		install.Notes = append(install.Notes, "After kubectl apply -k edge: kubectl -n kube-system patch daemonset "+
			"kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
	case K3s:
		k.WriteString("resources: [../manifests/k3s]\n")
		values.WriteString("distribution: k3s\n")
		install.Notes = append(install.Notes,
			`On each edge node, in /etc/rancher/k3s/config.yaml: kube-proxy-arg: ["master=http://localhost:51006"]; `+
				"then restart k3s-agent (k3s on a server)")
	default:
		if localServers[distribution] != "" { // docs/install.md: as on k3s, with another address
			k.WriteString("resources: [../manifests/k3s]\n")
		} else {
			k.WriteString("resources:\n" +
				"  - ../manifests/application-grid-controller\n" +
				"  - ../manifests/application-grid-wrapper\n" +
				"  - ../manifests/statefulset-grid-daemon\n" +
				"  - ../manifests/flow-control\n" +
				"  - ../manifests/edge-node-policy\n")
		}
		k.WriteString("configMapGenerator:\n  - {name: application-grid-wrapper, namespace: kube-system, behavior: " +
			"replace, files: [kubeconfig.conf]}\ngeneratorOptions: {disableNameSuffixHash: true}\n")
		address := localServers[distribution]
		if address == "" {
			address = "https://set-this-to-your-api-server.invalid:6443"
			install.Notes = append(install.Notes,
				"Set the server in kubeconfig.conf: the address of the API server, or of "+
					"the lite-apiserver, as a node has it; never that of the Service kubernetes")
		}
		install.Kubeconfig = fmt.Sprintf(kubeconfigTemplate, address)
		fmt.Fprintf(&values, "distribution: plain\nwrapper:\n  server: %s\n", address)
		switch distribution {
		case RKE2:
			install.Notes = append(install.Notes,
				"On each edge node, in /etc/rancher/rke2/config.yaml: "+
					`kube-proxy-arg: ["master=http://localhost:51006"]; then restart rke2-agent`)
		case MicroK8s:
			install.Notes = append(install.Notes, "On each edge node, in /var/snap/microk8s/current/args/kube-proxy: "+
				"--master=http://localhost:51006; then snap restart microk8s.daemon-kubelite")
		default:
			install.Notes = append(install.Notes,
				"Give kube-proxy on each edge node the server http://localhost:51006, by "+
					"its kubeconfig or by --master, and restart it")
		}
	}
	k.WriteString("images:\n")
	for _, program := range []string{
		"application-grid-controller", "application-grid-wrapper", "statefulset-grid-daemon",
	} {
		fmt.Fprintf(&k, "  - {name: %s, newName: %s/%s, newTag: %s}\n", program, images.Registry, program, images.Tag)
	}
	if proxyName != "" {
		name := ""
		if proxyName != "registry.k8s.io/kube-proxy" {
			name = ", newName: " + proxyName
		}
		fmt.Fprintf(&k, "  - {name: registry.k8s.io/kube-proxy%s, newTag: %s}\n", name, proxyTag)
	}
	if oldFlow {
		values.WriteString("flowControl:\n  enabled: false\n")
	}
	if oldFlow {
		for _, kind := range []string{"PriorityLevelConfiguration", "FlowSchema"} {
			patches = append(patches, without("", "flowcontrol.apiserver.k8s.io/v1", kind, "application-grid-nodes"))
		}
	}
	if oldValidating {
		values.WriteString("edgeNodePolicy:\n  enabled: false\n")
		patches = append(patches, without("{group: admissionregistration.k8s.io}", "admissionregistration.k8s.io/v1",
			"ValidatingAdmissionPolicy", "any"))
	}
	if len(patches) > 0 {
		k.WriteString("patches:\n" + strings.Join(patches, ""))
	}
	install.Notes = append(install.Notes, "Label nodes one by one: kubectl label node NODE "+
		"superedge.io/application-grid=true")
	install.Kustomization, install.Values = k.String(), values.String()
	return install
}

// without is a patch that leaves out an object, or those of a target.
func without(target, apiVersion, kind, name string) string {
	first := "  - patch: |\n"
	if target != "" {
		first = "  - target: " + target + "\n    patch: |\n"
	}
	return first + "      apiVersion: " + apiVersion + "\n      kind: " + kind + "\n      metadata: {name: " + name +
		"}\n      $patch: delete\n"
}
