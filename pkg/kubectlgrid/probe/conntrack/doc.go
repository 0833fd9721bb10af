// Package conntrack asks the kernel where a connection of this network namespace was sent. kube-proxy's rules replace a
// Service's address by that of an endpoint, which the client cannot see; the kernel's connection tracking table has
// both. A query is for one connection, so its cost does not grow with the table. It needs the capability NET_ADMIN in
// the network namespace. Cilium replaces the address already when a socket connects; the table of sockets has the
// endpoint's then.
package conntrack
