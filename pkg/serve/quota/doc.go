// Package quota divides a number of places (connections, watches, bytes) among callers so that none can lock the others
// out, and finds out who a caller is. Its users, package proxy and package filters, decide what a place is.
package quota
