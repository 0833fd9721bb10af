// Package kubeadm starts a cluster on this machine as an operator would make it: `kubeadm init` and `kubeadm join` on
// nodes with a kubelet, containerd and runc, a CNI network, and control plane, kube-proxy and CoreDNS in pods. Package
// cluster, its sibling, starts faster, and has no containers.
//
// A node is a process in namespaces of its own (network, mounts, processes, host name, IPC, cgroups) with its own disk,
// a directory of the cluster's. Its process 1 keeps containerd and the kubelet running; killing that is a power cut,
// and the disk is what the node finds again. The nodes are linked by a bridge in a further network namespace, which is
// also their router. Nothing is downloaded: the images are made of the binaries that the embedded cluster is made of,
// and imported.
//
// Package k3s starts a distribution of another shape on the same nodes.
//
// Everything ends with the program that started it, also when that is killed. What the kernel keeps then (names of
// namespaces, directories of cgroups and files) is removed by the next Start.
package kubeadm
