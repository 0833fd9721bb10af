// Package prove shows on a user's own cluster from which sites a Service is reached in which sites, for `kubectl grid
// prove`. It finds the endpoints that each site may reach, by the wrapper's rules, and runs `probe` of package probe on
// a node of each site. The Proof is whether only these endpoints were reached.
//
// For a probe it starts a short pod in the node's network, where the kernel knows where it sent each connection. The
// result is in the pod's status, not in its log: for a log the API server would have to reach the kubelet, and edge
// nodes are often behind a NAT.
package prove
