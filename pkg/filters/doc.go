// Package filters has the filters of the wrapper's server, one file each. A filter wraps a handler: it answers the
// requests that it is for, and passes the others to the next handler. Package proxy puts the filters in order
// (chain.go).
package filters

import "net/http"

// Filter wraps a handler.
type Filter func(next http.Handler) http.Handler

// filtered is a handler with a filter before it: answer answers a request, or has next do that. A closure around answer
// would take more of the stack of each waiting request.
type filtered struct {
	answer func(w http.ResponseWriter, r *http.Request, next http.Handler)
	next   http.Handler
}

func (f *filtered) ServeHTTP(w http.ResponseWriter, r *http.Request) { f.answer(w, r, f.next) }

func filter(answer func(w http.ResponseWriter, r *http.Request, next http.Handler)) Filter {
	return func(next http.Handler) http.Handler { return &filtered{answer, next} }
}
