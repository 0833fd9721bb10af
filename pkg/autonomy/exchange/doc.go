// Package exchange lets the wrappers of a site tell each other two facts while the cloud is away: that they are alive,
// and how the pods of their nodes are.
//
// Each wrapper asks each neighbour every second or two over one kept connection: how are your pods, of which
// I know this version? The answer to the newest version is a few bytes. One connection, whoever made it, serves both
// directions. A question or an answer on it means that the node is alive. A machine that takes or refuses connections,
// and says nothing more for 10 s, is suspected. Three times nothing at all means that the node is silent. While the
// cloud is there each neighbour is asked every 5 minutes, so that /readyz says in time whether it would work.
//
// The facts say which nodes are neighbours. A node is believed about itself only, because it has the address that the
// cluster knows, and shows that it has the key of the site (link.go). Whoever has not shown that yet has 2 s, and one
// of a few places that neighbours do not need. Without a key nothing is sent and no port is opened.
//
// An Exchange passes nothing on by itself: package livepods decides when a neighbour's word counts, package
// storage/view what a silent neighbour means for what is shown, and package proxy connects them.
package exchange
