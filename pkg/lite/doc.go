// Package lite is lite-apiserver: the node's own API server for its kubelet, between the kubelet and kube-apiserver.
//
// While kube-apiserver answers, requests pass through unchanged. In addition the package follows, with the kubelet's
// own credentials, what the kubelet needs to start the node's pods, and keeps it on the disk: the Node, its pods,
// Services, CSINode, CSIDrivers, RuntimeClasses, and the Secrets, ConfigMaps, claims, volumes and tokens that the pods
// name.
//
// The rule: while kube-apiserver is away, the kubelet is answered what kube-apiserver said last to this node, complete,
// with kube-apiserver's own resourceVersions, and nothing else. What was not said is 503: never 404, never an empty
// list. ServiceAccounts that are allowed are answered in the same way: each what this very account was let read, which
// is then followed with a token of its own. A pod that the kubelet has confirmed to be gone is in no answer
// again.
//
// # Parts
//
//   - Store has the objects, tokens and confirmations, in memory and on the disk (pkg/program/store). Its sets are
//     Sinks of pkg/follow.
//   - follower follows the sets that are wanted: some always, the others as the node's pods name them.
//   - accounts.go notes what accounts read; keys.go knows them by their tokens and the cluster's keys.
//   - disk.go commits what changes, and says what is not on the disk; gone.go notes which pods are gone.
//   - The Link of pkg/follow/apiclient knows whether kube-apiserver answers.
//   - refusals.go has which pods a kubelet does not start, whatever it is answered.
//   - Server passes requests on, or answers them from the Store.
package lite
