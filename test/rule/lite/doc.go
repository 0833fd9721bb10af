// Package lite judges lite-apiserver's promise of docs/autonomy.md in random worlds: a kube-apiserver, a link and a
// kubelet are played here, lite-apiserver is the built program. It knows nothing of the program but its command line,
// and asks only what a node's user would notice.
package lite
