// Package exchange lets the wrappers of a site report two facts to each other while the cloud is away: that they are
// alive, and the state of their nodes' pods.
//
// Each wrapper asks each neighbour every second or two for the state of its pods, and sends the version that it has. If
// that is the newest, the answer is a few bytes. The questions and answers of two nodes share one kept connection,
// whichever of them made it. A question or an answer on it means that the node is alive. A node whose machine accepts
// or refuses connections, but which has not answered for 10 s, is suspected. A node whose machine has sent nothing at
// all after three questions is silent. While the cloud is reachable each neighbour is asked every 5 minutes, so that
// /readyz shows in time whether the exchange would work.
//
// The facts say which nodes are neighbours. A node can only report on itself: it must have the address that the cluster
// knows, and prove that it has the key of the site (link.go). A connection without that proof has 2 s, and takes one of
// a few places that neighbours do not need. Without a key nothing is sent and no port is opened. A neighbour with
// another version of the protocol is alive, and nothing is known of its pods.
//
// An Exchange does not apply the reports. Package livepods decides when a neighbour's report is used, package
// storage/view decides how the endpoints of a silent neighbour are shown, and package proxy connects the three.
package exchange
