// Package exchange lets the wrappers of a site tell each other two facts while the cloud is away: that they are alive,
// and how the pods of their nodes are.
//
// Each wrapper asks each neighbour every second or two over one kept connection: how are your pods, of which
// I know this version? The answer to the newest version is a few bytes. An answer means that the node is alive. A
// refused or broken connection means that its machine is. Three times no answer means that it is silent, unless its
// wrapper has said that it stops. While the cloud is there each neighbour is asked every 5 minutes, so that /readyz
// says in time whether it would work.
//
// The facts say which nodes are neighbours. A node is believed about itself only, because it is asked at the address
// that it has in the cluster, and shows that it has the key of the site (link.go). Without a key nothing is sent and no
// port is opened.
//
// An Exchange passes nothing on by itself: package livepods decides when a neighbour's word counts, package
// storage/view what a silent neighbour means for what is shown, and package proxy connects them.
package exchange
