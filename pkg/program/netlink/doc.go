// Package netlink asks the kernel about this network namespace.
package netlink
