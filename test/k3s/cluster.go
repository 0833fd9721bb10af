package k3s

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/application-grid/application-grid/test/k3s/standin"
	"github.com/application-grid/application-grid/test/kubeadm"
)

// ConfigDirectory has files that add to a node's configuration.
const ConfigDirectory = kubeadm.K3sConfig + ".d/"

// restart is systemctl on a node: it restarts k3s, whatever name of it the unit has. systemd kills only the
// main process
// of these units; process 1 of the node starts it again.
const restart = `#!/bin/sh
case "$*" in
"restart k3s" | "restart k3s-agent") kill "$(cat ` + standin.PIDFile + `)" ;;
*) echo "systemctl $*: this node has no systemd; restart k3s or k3s-agent work" >&2; exit 2 ;;
esac
`

// kubeletConfig is the kubelet's, as k3s writes it, but for limits: the nodes share the disk of this machine.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: /var/lib/rancher/k3s/agent/client-ca.crt}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://` + standin.Socket + `
clusterDomain: cluster.local
evictionHard: {memory.available: 1Mi, nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
serializeImagePulls: false
staticPodPath: /var/lib/rancher/k3s/agent/pod-manifests
`

// Start makes a cluster. The first of the nodes is the server.
func Start(ctx context.Context, options kubeadm.Options) (*kubeadm.Cluster, error) {
	options.Distribution = &kubeadm.Distribution{
		Name:    "k3s' stand-in",
		Links:   []string{"k3s", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"},
		Scripts: map[string]string{"systemctl": restart},
		Runtime: standin.Socket,
		Make:    configure,
	}
	return kubeadm.Start(ctx, options)
}

// configure writes what the server, and a server's answers to agents, have in k3s, and then the configurations, with
// which k3s starts.
func configure(ctx context.Context, c *kubeadm.Cluster) error {
	server := c.ControlPlane()
	if err := makeCertificates(ctx, server); err != nil {
		return err
	}
	for _, node := range append([]*kubeadm.Node{server}, c.Workers()...) {
		if err := configureNode(ctx, server, node); err != nil {
			return fmt.Errorf("configuring %s: %w", node.Name(), err)
		}
	}
	return c.Connect(ctx, "/etc/kubernetes/super-admin.conf")
}

// makeCertificates has kubeadm make those of the control plane, and its kubeconfigs.
func makeCertificates(ctx context.Context, server *kubeadm.Node) error {
	version, err := server.Run(ctx, "kubeadm", "version", "-o", "short")
	if err != nil {
		return err
	}
	if err := server.WriteFile(kubeadmConfig, kubeadm.Configuration(server, strings.TrimSpace(version))); err != nil {
		return err
	}
	for _, phase := range []string{"certs", "kubeconfig"} {
		if _, err := server.Run(ctx, "kubeadm", "init", "phase", phase, "all", "--config="+kubeadmConfig); err != nil {
			return err
		}
	}
	return nil
}

const kubeadmConfig = "/etc/kubeadm.yaml"

func configureNode(ctx context.Context, server, node *kubeadm.Node) error {
	const agent = "/var/lib/rancher/k3s/agent/"
	ca, err := server.ReadFile(standin.PKI + "ca.crt")
	if err != nil {
		return err
	}
	configuration := map[string]any{"node-name": node.Name(), "node-ip": node.Address(),
		"cluster-cidr": kubeadm.PodNetwork, "service-cidr": kubeadm.ServiceNetwork}
	if node != server {
		configuration["server"] = "https://" + server.Address() + ":6443"
	}
	written, err := yaml.Marshal(configuration)
	if err != nil {
		return err
	}
	files := [][2]string{
		{agent + "client-ca.crt", string(ca)},
		{agent + "etc/kubelet.yaml", kubeletConfig},
		{agent + "etc/containerd/config.toml", containerdConfig()},
	}
	for component, user := range map[string][]string{
		"kubelet":   {"--client-name=system:node:" + node.Name(), "--org=system:nodes"},
		"kubeproxy": {"--client-name=system:kube-proxy"},
	} {
		credentials, err := server.Run(ctx, "sh", "-c",
			"kubeadm kubeconfig user --config="+kubeadmConfig+" "+strings.Join(user, " ")+" 2>/var/log/kubeadm.log")
		if err != nil {
			return err
		}
		files = append(files, [2]string{standin.Credentials(component), credentials})
	}
	for _, file := range append(files, [2]string{kubeadm.K3sConfig, string(written)}) { // that last: k3s starts
		if err := node.WriteFile(file[0], file[1]); err != nil {
			return err
		}
	}
	return nil
}

// containerdConfig is containerd's with the socket and the directories of k3s.
func containerdConfig() string {
	head, rest, _ := strings.Cut(kubeadm.ContainerdConfig, "\n")
	return head + "\nroot = '/var/lib/rancher/k3s/agent/containerd'\nstate = '/run/k3s/containerd'\n[grpc]\n  address = '" +
		standin.Socket + "'\n" + rest
}
