// Package workload makes the objects that the demo and the end-to-end tests run on a cluster, and waits for
// what becomes of them. It knows nothing of how the cluster was started.
package workload
