package check

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// The distributions that make a difference.
const (
	k0sMade   = "k0s"
	gkeMade   = "GKE"
	eksMade   = "EKS"
	aksMade   = "AKS"
	openShift = "OpenShift"
)

// signs are the signs of a node's distribution, the most reliable first.
var signs = []struct {
	distribution string
	// One of these: the prefix of a label's or annotation's key, or a part of the kubelet's version.
	key, version string
}{
	{distribution: setup.RKE2, version: "+rke2"},
	{distribution: setup.RKE2, key: "rke2.io/"},
	{distribution: setup.K3s, version: "+k3s"},
	{distribution: setup.K3s, key: "k3s.io/node-args"},
	{distribution: k0sMade, version: "+k0s"},
	{distribution: setup.MicroK8s, key: "microk8s.io/cluster"},
	{distribution: openShift, key: "node.openshift.io/"},
	{distribution: gkeMade, version: "-gke."},
	{distribution: gkeMade, key: "cloud.google.com/gke-"},
	{distribution: eksMade, version: "-eks-"},
	{distribution: eksMade, key: "eks.amazonaws.com/"},
	{distribution: aksMade, key: "kubernetes.azure.com/"},
	{distribution: setup.Kubeadm, key: "kubeadm.alpha.kubernetes.io/"},
}

// managed are the distributions whose kube-proxy belongs to the provider, who reverts changes.
var managed = map[string]bool{gkeMade: true, eksMade: true, aksMade: true, openShift: true}

// ownProxy are the distributions that run kube-proxy inside of their own process.
var ownProxy = map[string]bool{setup.K3s: true, setup.MicroK8s: true}

// distributionOf returns the distribution of a node and its sign; empty if no sign was found.
func distributionOf(n *corev1.Node) (distribution, because string) {
	kubelet := n.Status.NodeInfo.KubeletVersion
	keys := slices.AppendSeq(slices.Collect(maps.Keys(n.Labels)), maps.Keys(n.Annotations))
	for _, sign := range signs {
		if sign.version != "" && strings.Contains(kubelet, sign.version) {
			return sign.distribution, "kubelet " + kubelet
		}
		for _, key := range keys {
			if sign.key != "" && strings.HasPrefix(key, sign.key) {
				return sign.distribution, key
			}
		}
	}
	return "", ""
}

// distribution returns the distribution of most nodes, and its sign. Where nodes have no sign, kubeadm's ConfigMap is
// used: nodes that kubeadm has joined have had none since 1.34.
func (c *Cluster) distribution() (name, because string) {
	counts, signs := map[string]int{}, map[string]string{}
	for _, n := range c.nodes {
		of, sign := n.distribution, "node "+n.Name+" has "+n.because
		if of == "" && c.kubeadm {
			of, sign = setup.Kubeadm, "there is a ConfigMap kube-system/kubeadm-config"
		}
		if of != "" {
			counts[of]++
			signs[of] = cmp.Or(signs[of], sign)
		}
	}
	for _, of := range slices.Sorted(maps.Keys(counts)) {
		if counts[of] > counts[name] {
			name = of
		}
	}
	return name, signs[name]
}

// kind returns the properties of the cluster on which the files to install depend.
func (c *Cluster) kind() setup.Kind {
	var kind setup.Kind
	kind.Distribution, _ = c.distribution()
	kind.Minor, _ = minor(c.Server.Version)
	kind.Cilium = c.ciliumAlone()
	for _, w := range c.running(kubeProxyProgram) {
		if !w.selectsEdge {
			kind.KubeProxy, kind.KubeProxyTag = repository(w.image), tagOf(w.image)
		}
	}
	return kind
}
