// Package preview reads a cluster for `kubectl grid preview`, and prints what closing its Services would change.
// Package gridview computes that. It reads Services and EndpointSlices a page at a time, keeps only counts, and
// writes nothing to the cluster.
package preview
