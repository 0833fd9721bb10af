// Package lite is lite-apiserver: the node's own API server for its kubelet, between the kubelet and kube-apiserver.
//
// While kube-apiserver answers, requests pass through unchanged. In addition the package follows, with the kubelet's
// own credentials, what the kubelet needs to start the node's pods, and keeps it on the disk: the Node, its pods,
// Services, CSINode, CSIDrivers, RuntimeClasses, and the Secrets, ConfigMaps, claims, volumes and tokens that the pods
// name.
//
// The rule: while kube-apiserver is away, the kubelet gets kube-apiserver's last answers to this node, complete, with
// kube-apiserver's own resourceVersions; of Services, what a kubelet reads. Who watches from an older version has to
// list again. Everything else is answered with 503: never with an empty list, and with 404 only if kube-apiserver has
// said that an object which a pod names does not exist. Allowed ServiceAccounts are answered in the same way, but for
// the 404, and with 429 while too many answers are not read. Each gets only objects that kube-apiserver has let this
// account read, and that are then followed with a token of the account. A pod that the kubelet has confirmed to be gone
// is never in an answer again.
//
// # Parts
//
//   - Store has the objects, tokens and confirmations, in memory and on the disk (pkg/program/store). A sink
//     is the Sink of pkg/follow of one of its sets.
//   - follower follows the wanted sets: some always, the others as the node's pods name them.
//   - accounts.go notes the accounts' reads; keys.go identifies accounts by their tokens and the cluster's keys.
//   - disk.go commits changes, and reports those that are not on the disk; removal.go notes which pods are removed.
//   - The Link of pkg/follow/apiclient knows whether kube-apiserver answers.
//   - pod_start.go recognises pods that a kubelet does not start, whatever answers it gets.
//   - Server passes requests on, or answers them from the Store.
package lite
