// Package preview reads a cluster for `kubectl grid preview`, and prints what closing its Services would change. What
// that is, package gridview computes. It reads nodes, Services and EndpointSlices a page at a time, keeps numbers of
// them, and writes nothing to the cluster.
package preview
