// Package quota divides a number of places (connections, watches) among callers so that none can lock the others
// out, and finds out who a caller is. Package proxy and package filters use it; what a place is, is their business.
package quota
