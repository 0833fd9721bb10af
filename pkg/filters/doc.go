// Package filters has the filters of the wrapper's server, one file each. A filter wraps a handler: it answers the
// requests that it is for, and passes the others to the next handler. Package proxy puts the filters in order
// (chain.go).
package filters

import "net/http"

// Filter wraps a handler.
type Filter func(next http.Handler) http.Handler
