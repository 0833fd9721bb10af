package filters

import (
	"fmt"
	"net/http"
	"net/url"
)

// WithoutWebPages refuses requests that a browser sends for a page of another site: those whose Origin is neither
// of the hosts nor, for TLS, the one that is asked; and those that Sec-Fetch-Site calls cross-site or same-site.
// The wrapper serves no pages that could ask it. WithHosts does not see such a page: it names the wrapper by its
// right name.
//
// Browsers send Origin with every request but plain GETs and HEADs, and Sec-Fetch-Site with every request to a host
// that they trust, as the loopback and TLS are. Clients of Kubernetes send neither.
func WithoutWebPages(hosts Hosts) Filter {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, site := range r.Header.Values("Sec-Fetch-Site") {
				// none: someone typed the address, or took it from the bookmarks.
				if site != "same-origin" && site != "none" {
					refuse(w, r, fmt.Sprintf(
						"Sec-Fetch-Site: %s, as browsers send it for a page or a link of another site. Ask with a "+
							"client that is no browser, or open the address itself",
						short(site)))
					return
				}
			}
			for _, origin := range r.Header.Values("Origin") {
				if !isOwnOrigin(r, hosts, origin) {
					refuse(w, r, fmt.Sprintf(
						"Origin: %s, which is neither of the loopback nor one of --allowed-hosts. Ask with a client "+
							"that is no browser, or start the wrapper with --allowed-hosts=NAME",
						short(origin)))
					return
				}
			}
			next.ServeHTTP(w, r)
		})
	}
}

// isOwnOrigin reports whether an origin is a host by which the wrapper may be asked. Over TLS that is also the host
// that is asked now: the serving certificate has its name, or the browser had not come this far.
func isOwnOrigin(r *http.Request, hosts Hosts, origin string) bool {
	u, err := url.Parse(origin)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.User != nil || (u.Path != "" && u.Path != "/") {
		return false // also "null", which is the origin of a file and of a frame in a sandbox
	}
	return hosts.contain(u.Host) || (r.TLS != nil && u.Scheme == "https" && u.Host == r.Host)
}
