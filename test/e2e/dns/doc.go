// Package dns has the end-to-end tests of statefulset-grid-daemon: real CoreDNS on every node, answering from the
// file that the daemon of the node keeps, and for headless Services from the node's wrapper. The cluster has
// three nodes in three sites.
//
// The grids' children are created as application-grid-controller would create them, one field at a time within
// the tests' reach.
package dns
