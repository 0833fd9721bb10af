package dashboard

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

// policy is the Content-Security-Policy of everything that is served: the page runs the scripts and styles of this
// server only, sends requests to no other one, and is not shown in a frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// readOnly refuses requests that are not plain reads, and those that name another host than the address on which the
// server listens, or localhost. That stops DNS rebinding: a page whose name resolves to the loopback is of the same
// origin for the browser, but its requests name the page's host.
func readOnly(address string, next http.Handler) http.Handler {
	port := address[strings.LastIndexByte(address, ':'):]
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		host := strings.ToLower(r.Host)
		switch {
		case host != address && host != "localhost"+port:
			fail(w, http.StatusMisdirectedRequest,
				"the request names another host than the one that kubectl grid dashboard has printed")
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			fail(w, http.StatusMethodNotAllowed, "the dashboard is only read: GET and HEAD")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// withToken refuses requests without the token, and those of pages of other origins.
func withToken(token string, next http.Handler) http.Handler {
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Browsers send this header; curl and the like do not.
		if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" {
			fail(w, http.StatusForbidden, "the API is not for pages of other origins")
			return
		}
		given, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// The digests are compared, so that not even the time of the comparison reveals the length of the token.
		if got := sha256.Sum256([]byte(given)); subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="kubectl grid dashboard"`)
			fail(w, http.StatusUnauthorized, "the request has no valid token. Open the URL that kubectl grid "+
				"dashboard has printed; a script sends what follows token= in it as the header "+
				"Authorization: Bearer TOKEN")
			return
		}
		next.ServeHTTP(w, r)
	})
}
