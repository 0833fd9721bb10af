package filters

import (
	"net/http"
	"net/url"
)

// WithoutCrossOrigin refuses requests that a browser sends for a page of another site: those whose Origin is not one of
// the hosts (or, with TLS, the requested host), and those whose Sec-Fetch-Site is cross-site or same-site.
// WithAllowedHosts does not stop them, because such a page requests the wrapper by a correct name.
//
// Browsers send Origin with all requests except plain GETs and HEADs, and Sec-Fetch-Site with all requests to the
// loopback and over TLS. Clients of Kubernetes send neither.
func WithoutCrossOrigin(hosts Hosts) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		for _, site := range r.Header.Values("Sec-Fetch-Site") {
			// A user who types the address, or opens a bookmark, sends none.
			if site != "same-origin" && site != "none" {
				refuse(w, r, "Sec-Fetch-Site: %s, as browsers send it for a page or a link of another site. Ask with "+
					"a client that is not a browser, or open the address itself", short(site))
				return
			}
		}
		for _, origin := range r.Header.Values("Origin") {
			if !isOwnOrigin(r, hosts, origin) {
				refuse(w, r, "Origin: %s, which is neither of the loopback nor one of --allowed-hosts. Ask with a "+
					"client that is not a browser, or start the wrapper with --allowed-hosts=NAME", short(origin))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isOwnOrigin reports whether the host of an origin is one of the hosts. Over TLS it may also be the requested host:
// the serving certificate has its name, or the browser would not have sent a request.
func isOwnOrigin(r *http.Request, hosts Hosts, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || (u.Path != "" && u.Path != "/") {
		return false // also "null", which is the origin of a file and of a frame in a sandbox
	}
	return hosts.Contain(u.Host) || (r.TLS != nil && u.Scheme == "https" && u.Host == r.Host)
}
