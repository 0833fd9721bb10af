// Package conntrack asks the kernel where a connection of this network namespace was sent: kube-proxy's rules give a
// connection to a Service the address of an endpoint, of which the client sees nothing, and the kernel's table of
// connections keeps both. It asks for one connection at a time, so that a node with many costs no more. It needs the
// capability NET_ADMIN in the network namespace.
package conntrack
