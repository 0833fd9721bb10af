// Package prove shows on a user's own cluster which sites a Service is reached in from which sites: what `kubectl grid
// prove` prints. Prepare reads whom each site may reach, by the rule that the wrapper applies; a Runner runs `probe` of
// package probe on a node of each site; and the Proof says whether what was reached is what may be.
//
// The Runner starts a short pod in the node's network, where the kernel knows where it sent each connection. The result
// comes back in the pod's status, not in its log, for which the API server would have to reach the kubelet: edge nodes
// are often behind a NAT.
package prove
