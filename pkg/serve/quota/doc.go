// Package quota divides a number of places (connections, watches, bytes) among callers so that none can lock the others
// out, and identifies callers. Packages proxy and filters, which use it, decide what a place is. An Address is served
// with a bounded number of connections.
package quota
