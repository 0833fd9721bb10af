// Package filters holds the filters of the wrapper's server, one file each. A filter wraps a handler: it
// answers the requests that are its own and leaves the rest to the next. Their order stands in one place,
// package proxy.
package filters

import "net/http"

// Filter wraps a handler.
type Filter func(next http.Handler) http.Handler
