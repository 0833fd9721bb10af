// Package k3s starts a cluster of the shape of k3s on the nodes of package kubeadm: a server and agents, each
// one process
// with the real kubelet and kube-proxy, which is a stand-in (package standin): k3s itself is not there. What
// an operator
// does on a node of k3s has the same effect: config.yaml and config.yaml.d, systemctl restart k3s-agent, k3s ctr.
//
// Certificates are made by kubeadm. CoreDNS is missing.
package k3s
