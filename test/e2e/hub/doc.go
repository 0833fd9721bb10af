// Package hub drives application-grid-hub behind the aggregation of a real kube-apiserver: the wrappers of the nodes
// a1, a2 and b1 follow nothing but their shares, and real kube-proxies make rules of what they show.
package hub
