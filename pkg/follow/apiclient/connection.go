package apiclient

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// reloadInterval is the time between two reads of the kubeconfig. A read is cheap, and notices every way in which a
// file can be replaced: a rename, another link, a mount.
const reloadInterval = 5 * time.Second

// Connection connects to the API server of the current kubeconfig. When the file changes, the transports that the
// Connection made continue with the new server, certificate authority and credentials. Running requests continue,
// unless the server changes: then they are ended.
//
// client-go itself rereads the files that a kubeconfig names as tokenFile, client-certificate and client-key, and the
// token of a pod's service account.
type Connection struct {
	options Options

	mu sync.Mutex
	// loaded is the configuration in use, and sum the digest of the files that it was read from. Guarded by mu.
	loaded *rest.Config
	sum    [sha256.Size]byte
	// server is the API server's address. leave cancels left when the address changes. Guarded by mu.
	server *url.URL
	left   context.Context //nolint:containedctx // an event to react to, not the context of a call
	leave  context.CancelFunc
	// transports and changed are guarded by mu.
	transports []*transport
	changed    []func()
	// refused is why the current file is not used; nil if it is. Guarded by mu.
	refused error

	link *Link
}

// Connect reads the kubeconfig. Its errors name the flag to change. Run notices later changes of the file.
func (o Options) Connect() (*Connection, error) {
	if o.QPS <= 0 || o.Burst <= 0 {
		return nil, errors.New("--kube-qps and --kube-burst must be greater than 0")
	}
	c := &Connection{options: o}
	loaded, err := o.load()
	if err == nil {
		err = c.use(loaded)
	}
	if err == nil {
		c.link, err = c.makeLink()
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

// use starts to use a configuration. If no transport can be made from it, nothing changes.
func (c *Connection) use(loaded *rest.Config) error {
	server, _, err := rest.DefaultServerUrlFor(loaded)
	if err != nil {
		return fmt.Errorf("the API server's address: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make([]http.RoundTripper, len(c.transports))
	for i, t := range c.transports {
		if next[i], err = rest.TransportFor(t.variant(rest.CopyConfig(loaded))); err != nil {
			return fmt.Errorf("making a transport: %w", err)
		}
	}
	if c.server == nil || *c.server != *server {
		if c.leave != nil {
			defer c.leave()
		}
		c.left, c.leave = context.WithCancel(context.Background())
	}
	c.loaded, c.sum, c.server, c.refused = loaded, c.digest(loaded), server, nil
	for i, t := range c.transports {
		before := t.route.Swap(&route{next: next[i], server: server, left: c.left})
		utilnet.CloseIdleConnectionsFor(before.next)
	}
	return nil
}

// Config returns a configuration for clients with the program's own credentials, which are in its transport.
func (c *Connection) Config() (*rest.Config, error) {
	t, err := c.Transport(rest.CopyConfig)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	config := &rest.Config{
		Host: c.server.String(), Transport: t, UserAgent: c.loaded.UserAgent,
		QPS: c.options.QPS, Burst: c.options.Burst,
	}
	if !c.options.PassesOn {
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return StallGuard{Next: next, Headers: HeaderTimeout, Body: IdleTimeout}
		})
	}
	return config, nil
}

// CA returns the CAs that verify the API server, in PEM; nil for those of the system.
func (c *Connection) CA() ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	loaded := rest.CopyConfig(c.loaded)
	err := rest.LoadTLSFiles(loaded)
	return loaded.CAData, err
}

// Server returns the API server's current address. A transport redirects requests from the address at the time when the
// transport was made to the current one.
func (c *Connection) Server() *url.URL {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Transport makes a transport that follows the kubeconfig. variant gets a copy of each configuration, may change it,
// and returns the one that the transport uses.
func (c *Connection) Transport(variant func(*rest.Config) *rest.Config) (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &transport{variant: variant, first: c.server, link: c.link}
	next, err := rest.TransportFor(variant(rest.CopyConfig(c.loaded)))
	if err != nil {
		return nil, fmt.Errorf("making a transport: %w", err)
	}
	t.route.Store(&route{next: next, server: c.server, left: c.left})
	c.transports = append(c.transports, t)
	return t, nil
}

// Transports makes a transport as Transport does, and another one for requests that upgrade their connection, which
// requires HTTP/1.1.
func (c *Connection) Transports(
	variant func(*rest.Config) *rest.Config,
) (ordinary, upgrade http.RoundTripper, err error) {
	if ordinary, err = c.Transport(variant); err != nil {
		return nil, nil, err
	}
	upgrade, err = c.Transport(func(config *rest.Config) *rest.Config {
		config = variant(config)
		config.NextProtos = []string{"http/1.1"}
		return config
	})
	return ordinary, upgrade, err
}

// OnChange registers a function that is called after every change.
func (c *Connection) OnChange(changed func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = append(c.changed, changed)
}

// Credentials describes where the credentials come from, so that people know what to renew.
func (c *Connection) Credentials() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch config := c.loaded; {
	case config.BearerTokenFile != "":
		return "the token in " + config.BearerTokenFile
	case config.CertFile != "":
		return "the certificate in " + config.CertFile
	case config.ExecProvider != nil:
		return "the output of " + config.ExecProvider.Command
	case c.options.Kubeconfig == "":
		return "the credentials (none, because --kubeconfig is not set)"
	case config.BearerToken != "":
		return "the token in " + c.options.Kubeconfig
	default:
		return "the credentials in " + c.options.Kubeconfig
	}
}

// Problem returns why the current kubeconfig is not used; nil if it is used.
func (c *Connection) Problem() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused
}

// Run rereads the kubeconfig from time to time until ctx is done.
func (c *Connection) Run(ctx context.Context) {
	if c.options.Kubeconfig == "" && c.options.Master != "" {
		return // nothing to reread
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) { c.reload(klog.FromContext(ctx)) }, reloadInterval)
}

// reload rereads the kubeconfig, and starts to use it if it has changed.
func (c *Connection) reload(logger klog.Logger) {
	loaded, err := c.options.load()
	c.mu.Lock()
	same := err == nil && c.refused == nil && c.digest(loaded) == c.sum
	before, changed := c.refused, c.changed
	c.mu.Unlock()
	if same {
		return
	}
	if err == nil {
		err = c.use(loaded)
	}
	if err != nil {
		c.mu.Lock()
		c.refused = err
		c.mu.Unlock()
		if before == nil || before.Error() != err.Error() {
			logger.Error(err, "Cannot use the changed kubeconfig, keeping its former content",
				"file", c.options.Kubeconfig)
		}
		return
	}
	logger.Info("Using the changed kubeconfig",
		"file", c.options.Kubeconfig, "server", c.Server().Redacted())
	for _, f := range changed {
		f()
	}
}

// digest returns the digest of the files that client-go reads only once: the kubeconfig, and the certificate
// authority's file if the kubeconfig names one.
func (c *Connection) digest(loaded *rest.Config) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, path := range []string{c.options.Kubeconfig, loaded.CAFile} {
		if path == "" {
			continue
		}
		content, err := os.ReadFile(path) //nolint:gosec // the user names it
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			content = []byte(err.Error())
		}
		fmt.Fprintf(h, "%d\n", len(content))
		h.Write(content)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// route is the way from a transport to the API server until the next change.
type route struct {
	next   http.RoundTripper
	server *url.URL
	// left ends when the server's address changes.
	left context.Context //nolint:containedctx // as in Connection
}

// transport sends each request by the newest route, and reports failures to the Link.
type transport struct {
	// link is nil for the Link's own probes.
	link    *Link
	variant func(*rest.Config) *rest.Config
	// first is the server's address when the transport was made, which the URLs of requests have.
	first *url.URL
	route atomic.Pointer[route]
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.route.Load().next }

// CloseIdleConnections closes the current route's idle connections. http.Client calls it.
func (t *transport) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.route.Load().next) }

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	route := t.route.Load()
	ctx, cancel := context.WithCancel(r.Context())
	release := context.AfterFunc(route.left, cancel)
	if *route.server == *t.first {
		r = r.WithContext(ctx)
	} else {
		r = r.Clone(ctx)
		redirect(r, t.first, route.server)
	}
	response, err := route.next.RoundTrip(r)
	if t.link != nil {
		t.link.noteOutcome(ctx, response, err)
	}
	switch {
	case err != nil:
		release()
		cancel()
		return nil, err
	case response.StatusCode == http.StatusSwitchingProtocols:
		// The body is a connection, which stays with its server. It ends with the request.
		release()
		context.AfterFunc(r.Context(), cancel)
		return response, nil
	default:
		response.Body = &routedBody{ReadCloser: response.Body, end: func() {
			release()
			cancel()
		}}
		return response, nil
	}
}

// redirect changes a request's URL from one server to another.
func redirect(r *http.Request, from, to *url.URL) {
	r.URL.Scheme, r.URL.Host, r.Host = to.Scheme, to.Host, to.Host
	before, after := strings.TrimSuffix(from.Path, "/"), strings.TrimSuffix(to.Path, "/")
	r.URL.Path = after + strings.TrimPrefix(r.URL.Path, before)
	if r.URL.RawPath != "" {
		before, after = strings.TrimSuffix(from.EscapedPath(), "/"), strings.TrimSuffix(to.EscapedPath(), "/")
		r.URL.RawPath = after + strings.TrimPrefix(r.URL.RawPath, before)
	}
}

// routedBody is the body of a response that is cut off when the server's address changes.
type routedBody struct {
	io.ReadCloser

	end func()
}

func (b *routedBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}
