// Package faults proves that a site survives what happens to its link, its cloud, its processes and its disk. Every
// fault is one row of a table that is printed at the end, whether all went well or not:
//
//	fault | connections tried | failed | time to converge | what was lost
//
// Each fault has a node of its own, with an application-grid-wrapper and a kube-proxy that nothing has happened to
// yet: their pauses between attempts grow with every failure and shrink only after two quiet minutes, so that faults
// one after the other on one node would measure each other. Most run at the same time. From the node a stream of new
// connections goes through kube-proxy's rules to a Service with endpoints on two healthy nodes of its site, and one
// on a node of another site, which must never answer; none may fail. While the fault lasts something changes in the
// cloud; the time to converge is from the end of the fault until the node's data plane shows it. A client watches
// through the wrapper meanwhile: it must hear of every difference, and of nothing else.
//
// Run it as root, with the binaries' paths in COMPONENTS_BIN, WRAPPER_BIN and HUB_BIN (default: bin/ of the
// repository).
// -short shortens faults and leaves out those that take minutes.
package faults
