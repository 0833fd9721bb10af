// Package siteexchange lets the wrappers of a site tell each other two facts while the cloud is away: who is alive, and
// which pods each node runs.
//
// A site is this node and the nodes that share Services with it. The package does not decide which they are: a Site
// says it. hashicorp/memberlist finds out which of them are alive, and carries a few bytes about every node: the
// version of what it has to say of its pods. Whoever needs to know these asks the node itself, at the address that the
// node has in the cluster (question.go), because memberlist does not tell who has sent a message. So a node is believed
// about itself only.
//
// Everything is sealed with AES-GCM under keys from a file (keys.go). Without a key nothing is sent and no port is
// opened. Packets and connections from addresses that are not those of the site's nodes are dropped before they are
// read (network.go), and those above a limit too (door.go). What memberlist should not read although it is sealed, does
// not reach it (guard.go). What is ignored is counted by reason (reason.go).
//
// An Exchange passes nothing on by itself: package livepods decides when a neighbour's word counts, package
// storage/view what a silent neighbour means for what is shown, and package proxy connects them.
package siteexchange
