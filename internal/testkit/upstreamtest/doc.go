// Package upstreamtest is an API server for unit tests. It lists and watches what a test puts into it, remembers
// what it was asked, and misbehaves on demand in the ways that real upstreams do. Only tests import it.
package upstreamtest
