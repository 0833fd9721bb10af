// Package soak runs the wrapper and the hub for hours under faults that do not end, as `make soak HOURS=2`: links flap
// and fall silent, nodes restart, move between sites, pods come and go, the API server restarts, etcd is compacted, and
// once restored. It prints every ten minutes what the programs hold and have written, and which connections failed that
// no fault explains, and ends with a verdict.
//
// A fault explains a failed connection only where the node that asks had its own power cut. Links, the API server, the
// hub, moves and pods of other workloads must cost no connection.
package soak
