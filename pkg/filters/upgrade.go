package filters

import (
	"net/http"

	"github.com/application-grid/application-grid/pkg/serve"
)

// isUpgrade reports whether a request asks to upgrade its connection, as exec, attach and port-forward do: with both
// headers, as a GET or POST, and without a body. The data after such a request is passed on only once the upstream has
// answered 101.
func isUpgrade(r *http.Request) bool {
	return r.Header.Get("Upgrade") != "" && serve.HeaderHas(r, "Connection", "upgrade") && r.ContentLength == 0 &&
		(r.Method == http.MethodGet || r.Method == http.MethodPost)
}

// WithoutFalseUpgrades removes the Upgrade header from requests for which isUpgrade is false. A server that does not
// want to change the protocol may ignore it (RFC 9110, 7.8). So exactly those requests are passed on as upgrades that
// WithBodyLimit exempts from its limits.
func WithoutFalseUpgrades() Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Upgrade") != "" && !isUpgrade(r) {
			r = r.Clone(r.Context())
			r.Header.Del("Upgrade")
		}
		next.ServeHTTP(w, r)
	})
}
