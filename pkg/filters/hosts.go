package filters

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// Hosts are the names and addresses that requests to the wrapper may use as their host: those of the loopback, and
// those of --allowed-hosts.
type Hosts struct {
	names     map[string]bool
	addresses map[netip.Addr]bool
}

// NewHosts makes Hosts of the loopback's names and addresses, and of the given DNS names and IP addresses, which have
// no port. The error says which of them is not valid.
func NewHosts(allowed []string) (Hosts, error) {
	h := Hosts{names: map[string]bool{"localhost": true}, addresses: map[netip.Addr]bool{}}
	for _, text := range allowed {
		if address, err := netip.ParseAddr(strings.Trim(text, "[]")); err == nil && address.Zone() == "" {
			h.addresses[address.Unmap()] = true
			continue
		}
		name := canonicalName(text)
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return Hosts{}, fmt.Errorf("%q is neither an IP address nor a DNS name (without a port): %s",
				text, problems[0])
		}
		h.names[name] = true
	}
	return h, nil
}

// canonicalName returns a DNS name in lower case and without the dot of the root.
func canonicalName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// Contain reports whether the host of a Host header or of an origin, with or without a port, is one of these. It
// accepts only the forms of RFC 3986. Browsers write 127.1 and 0x7f000001 as 127.0.0.1, so the other forms are not
// needed.
func (h Hosts) Contain(hostport string) bool {
	u, err := url.Parse("//" + hostport)
	if err != nil || u.Host != hostport || u.Hostname() == "" {
		return false
	}
	bracketed := strings.HasPrefix(hostport, "[")
	if address, err := netip.ParseAddr(u.Hostname()); err == nil {
		is := address.Unmap()
		return address.Is6() == bracketed && address.Zone() == "" && (is.IsLoopback() || h.addresses[is])
	}
	return !bracketed && h.names[canonicalName(u.Hostname())]
}

// WithAllowedHosts refuses requests for other hosts than these. That stops DNS rebinding: a web page whose name
// resolves to the loopback has the same origin as the server for the browser, so it could read every answer. But its
// requests name the page's host. HTTP/1.0 requests without a host are also refused.
func WithAllowedHosts(hosts Hosts) Filter {
	return filter(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.URL.User != nil:
			refuse(w, r, "a user name in the request's URL")
		case !hosts.Contain(r.Host):
			refuse(w, r, "the host %q, which is neither of the loopback nor allowed (--allowed-hosts=NAME of the "+
				"wrapper). Ask http://localhost%s", short(r.Host), localPort(r))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// localPort returns the port to which the request came, with its colon; "" if it is not known.
func localPort(r *http.Request) string {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return ""
	}
	_, port, err := net.SplitHostPort(address.String())
	if err != nil {
		return ""
	}
	return ":" + port
}

// refuse answers 403, and names the part of the request for which it is refused.
func refuse(w http.ResponseWriter, r *http.Request, format string, args ...any) {
	with := fmt.Sprintf(format, args...)
	klog.FromContext(r.Context()).V(2).Info("Refusing a request",
		"method", r.Method, "path", r.URL.Path, "host", short(r.Host), "with", with)
	serve.WriteError(w, r, forbidden("not answering a request with %s", with))
}

// forbidden returns a 403 with a message of the wrapper's own.
func forbidden(format string, args ...any) error {
	return serve.Failure(http.StatusForbidden, metav1.StatusReasonForbidden, fmt.Sprintf(format, args...))
}

// short shortens a text of a client for a message that quotes it.
func short(text string) string {
	const most = 100
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}
