// Package cluster starts a Kubernetes cluster on this machine and supervises it: etcd, kube-apiserver,
// kube-controller-manager and kube-scheduler as real processes, kwok for the life of the pods, and per node a
// network namespace with a real kube-proxy, the application-grid-wrapper in front of it, and an HTTP echo
// server behind every pod address. `curl <clusterIP>` in a node's namespace therefore goes through the rules
// that kube-proxy made of what the wrapper served.
//
// # Isolation
//
// The control plane runs in a network namespace of its own, every node in another one that is linked to it by
// a veth pair and a bridge. Nothing is visible in the host's namespace except one relay on a loopback port
// through which the admin kubeconfig reaches kube-apiserver. Any number of clusters can run at once, with
// identical addresses.
//
// # Nothing is left behind
//
// Every process dies with the supervisor, also when that is killed with SIGKILL. Namespaces and temporary
// directories carry the supervisor's pid and start time in their names; Start removes those whose supervisor
// is gone.
//
// # What can go wrong in it
//
// A node's link to the control plane can be cut, lose packets or forget the connections that are open
// (Node.CutLink and what follows it), without touching the data path between pods. An Interposer between a wrapper
// and kube-apiserver answers wrongly, partly, late or never. A node can reboot, and the wrapper's state directory,
// which outlives it as a disk does, can be full or read-only. The kernel needs no netem for this.
//
// # What it needs
//
// The components binary (cmd/components), root, and nft, iptables and conntrack, which kube-proxy runs. With
// Options.APIViewOnly neither root nor these: everything listens on loopback, there are wrappers but no
// kube-proxy and no data plane.
//
// The package does not import k8s.io/kubernetes, so that the tests that use it link in seconds.
package cluster
