package check

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
	// Kubeconfig is the file kubeconfig.conf beside the kustomization, if that names one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Notes are what there is to do beside applying.
	Notes []string `json:"notes,omitempty"`
}

// localServers are the ways to the API servers that some distributions have on every node.
var localServers = map[string]string{rke2Made: "https://127.0.0.1:6443", microMade: "https://127.0.0.1:16443"}

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

// installOn writes the files for this cluster.
func installOn(c *Cluster, options Options) *Install {
	distribution, _ := c.distribution()
	install := &Install{Distribution: distribution}
	var k, values strings.Builder
	k.WriteString("# edge/kustomization.yaml\napiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n")
	server, known := minor(c.version)
	oldFlow, oldPolicy := known && server < flowSince, known && server < policySince
	fmt.Fprintf(&values, "image:\n  registry: %s\n  tag: %q\n", options.Registry, options.Tag)
	var patches []string
	proxyName, proxyTag := "", ""
	switch distribution {
	case kubeadmMade:
		k.WriteString("resources: [../manifests/kubeadm]\n")
		values.WriteString("distribution: kubeadm\n")
		for _, w := range c.running(kubeProxyProgram) {
			if !w.selectsEdge {
				proxyName, proxyTag = repository(w.image), tagOf(w.image)
			}
		}
		if proxyName != "" || oldPolicy {
			values.WriteString("kubeProxy:\n")
		}
		if proxyName != "" {
			fmt.Fprintf(&values, "  image: %s:%s\n", proxyName, proxyTag)
		}
		if oldPolicy {
			values.WriteString("  policy: false\n")
			patches = append(patches, `  - target: {group: admissionregistration.k8s.io, name: `+policyName+`}
    patch: |
      apiVersion: admissionregistration.k8s.io/v1
      kind: MutatingAdmissionPolicy
      metadata: {name: `+policyName+`}
      $patch: delete
`)
			install.Notes = append(install.Notes, "Repeat after each upgrade by kubeadm, before anything else: kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
		}
		install.Notes = append(install.Notes, "After kubectl apply -k edge: kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
	case k3sMade:
		k.WriteString("resources: [../manifests/k3s]\n")
		values.WriteString("distribution: k3s\n")
		install.Notes = append(install.Notes, `On each edge node, in /etc/rancher/k3s/config.yaml: kube-proxy-arg: ["master=http://localhost:51006"]; then restart k3s-agent (k3s on a server)`)
	default:
		k.WriteString("namespace: kube-system\nresources: [../manifests/application-grid-controller, ../manifests/application-grid-wrapper, ../manifests/statefulset-grid-daemon")
		if !oldFlow {
			k.WriteString(", ../manifests/flow-control")
		}
		k.WriteString("]\nconfigMapGenerator:\n  - {name: application-grid-wrapper, behavior: replace, files: [kubeconfig.conf]}\ngeneratorOptions: {disableNameSuffixHash: true}\n")
		address := localServers[distribution]
		if address == "" {
			address = "https://set-this-to-your-api-server.invalid:6443"
			install.Notes = append(install.Notes, "Set the server in kubeconfig.conf: the address of the API server, or of the lite-apiserver, as a node has it; never that of the Service kubernetes")
		}
		install.Kubeconfig = fmt.Sprintf(kubeconfigTemplate, address)
		fmt.Fprintf(&values, "distribution: plain\nwrapper:\n  server: %s\n", address)
		switch distribution {
		case rke2Made:
			install.Notes = append(install.Notes, `On each edge node, in /etc/rancher/rke2/config.yaml: kube-proxy-arg: ["master=http://localhost:51006"]; then restart rke2-agent`)
		case microMade:
			install.Notes = append(install.Notes, "On each edge node, in /var/snap/microk8s/current/args/kube-proxy: --master=http://localhost:51006; then snap restart microk8s.daemon-kubelite")
		default:
			install.Notes = append(install.Notes, "Give kube-proxy on each edge node the server http://localhost:51006, by its kubeconfig or by --master, and restart it")
		}
	}
	k.WriteString("images:\n")
	for _, program := range []Program{controllerProgram, wrapperProgram, daemonProgram} {
		fmt.Fprintf(&k, "  - {name: %s, newName: %s/%s, newTag: %s}\n", program, options.Registry, program, options.Tag)
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
	if oldFlow && install.Kubeconfig == "" {
		for _, kind := range []string{"PriorityLevelConfiguration", "FlowSchema"} {
			patches = append(patches, `  - patch: |
      apiVersion: flowcontrol.apiserver.k8s.io/v1
      kind: `+kind+`
      metadata: {name: application-grid-nodes}
      $patch: delete
`)
		}
	}
	if len(patches) > 0 {
		k.WriteString("patches:\n" + strings.Join(patches, ""))
	}
	install.Notes = append(install.Notes, "Label nodes one by one: kubectl label node NODE superedge.io/application-grid=true")
	install.Kustomization, install.Values = k.String(), values.String()
	return install
}
