package kubeadm

import "fmt"

// ContainerdConfig is containerd's. restrict_oom_score_adj is for machines whose root has no CAP_SYS_RESOURCE.
const ContainerdConfig = `version = 3

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "` + pauseImage + `"

[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = false
`

// podNetworkFile has networkConfig on a node.
const podNetworkFile = "etc/cni/net.d/10-pods.conflist"

// networkConfig gives pods addresses of the node's ranges, on a bridge of the node.
func networkConfig(index int, dual bool) string {
	ranges, routes := fmt.Sprintf(`[{"subnet": %q}]`, podRange(index)), `{"dst": "0.0.0.0/0"}`
	if dual {
		ranges += fmt.Sprintf(`, [{"subnet": %q}]`, podRange6(index))
		routes += `, {"dst": "::/0"}`
	}
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0", "name": "pods",
  "plugins": [{
    "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipMasq": false,
    "ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}
  }]
}
`, ranges, routes)
}

// Configuration is what is not kubeadm's default. The server's certificate is also good for the host's loopback, from
// where the cluster is used.
func Configuration(node *Node, version string) string {
	pods, services := PodNetwork, ServiceNetwork
	if node.cluster.dual() {
		pods, services = pods+","+podNetwork6, services+","+serviceNetwork6
	}
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: %[1]s}
nodeRegistration:
  name: %[2]s
  criSocket: unix:///run/containerd/containerd.sock
  imagePullPolicy: Never
  ignorePreflightErrors: [all]
  kubeletExtraArgs: [{name: node-ip, value: "%[6]s"}]
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: %[3]s
controlPlaneEndpoint: %[1]s:6443
networking: {podSubnet: "%[4]s", serviceSubnet: "%[5]s"}
apiServer: {certSANs: [127.0.0.1]}
controllerManager:
  extraArgs: [{name: allocate-node-cidrs, value: "false"}]
etcd: {local: {extraArgs: [{name: unsafe-no-fsync, value: "true"}]}}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
evictionHard: {memory.available: 1Mi, nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
imageGCHighThresholdPercent: 100
---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
conntrack: {maxPerCore: 0}
`, node.Address(), node.name, version, pods, services, node.addresses())
}

// joinConfig is a worker's.
func joinConfig(node, controlPlane *Node, token string) string {
	return fmt.Sprintf(`apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {token: %[3]s, apiServerEndpoint: "%[4]s:6443", unsafeSkipCAVerification: true}
nodeRegistration:
  name: %[2]s
  criSocket: unix:///run/containerd/containerd.sock
  imagePullPolicy: Never
  ignorePreflightErrors: [all]
  kubeletExtraArgs: [{name: node-ip, value: "%[1]s"}]
`, node.addresses(), node.name, token, controlPlane.Address())
}
