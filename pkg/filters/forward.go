package filters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// Target is where requests are passed on to.
type Target struct {
	// URL is the upstream's, with a path if it is served under a prefix.
	URL *url.URL
	// Transport carries ordinary requests, over HTTP/2 where the upstream speaks it.
	Transport http.RoundTripper
	// UpgradeTransport carries requests that upgrade their connection (exec, port-forward), which HTTP/2
	// cannot.
	UpgradeTransport http.RoundTripper
	// Patience is how long an answer may take to begin; 0 is for ever. It is asked with every request.
	Patience func() time.Duration
	// Stopping is done when the process will end: streams then end too, as if the upstream had ended them.
	Stopping context.Context //nolint:containedctx // an event to react to, not the context of a call
}

// Forward passes every request on. Responses are flushed as they come, so that watches and logs stream.
func Forward(target Target) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(withoutPath(target.URL))
			r.Out.URL.Path = joinPath(target.URL.Path, r.In.URL.Path)
			r.Out.URL.RawPath = joinPath(target.URL.EscapedPath(), r.In.URL.EscapedPath())
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			r.Out.Host = target.URL.Host
		},
		Transport:      roundTripper{target},
		FlushInterval:  -1,
		ErrorHandler:   forwardError,
		ModifyResponse: target.endWithProcess,
		// A response that breaks off is nothing that anybody could mend here.
		ErrorLog: klog.NewStandardLogger("INFO"),
	}
	return proxy
}

// endWithProcess lets a response that has no end of its own, such as a watch, end when the process will.
func (t Target) endWithProcess(r *http.Response) error {
	if t.Stopping == nil || r.ContentLength >= 0 || !isStream(r.Request) {
		return nil
	}
	body := &endingBody{ReadCloser: r.Body, stopping: t.Stopping}
	body.release = context.AfterFunc(t.Stopping, func() { _ = body.ReadCloser.Close() })
	r.Body = body
	return nil
}

// isStream tells whether a request asks for a watch, or to follow a log.
func isStream(r *http.Request) bool {
	query := r.URL.Query()
	return isTrue(query, "watch") || isTrue(query, "follow") || strings.Contains(r.URL.Path, "/watch/")
}

// isTrue tells whether a parameter is given and does not say no, as kube-apiserver reads it.
func isTrue(query url.Values, name string) bool {
	value := query.Get(name)
	return query.Has(name) && value != "0" && !strings.EqualFold(value, "false")
}

// endingBody is a response body that was closed under its reader when the process was told to stop; to the
// reader that is an ordinary end.
type endingBody struct {
	io.ReadCloser

	stopping context.Context //nolint:containedctx // as in Target
	release  func() bool
}

// Read implements io.Reader.
func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.stopping.Err() != nil {
		err = io.EOF
	}
	return n, err
}

// Close implements io.Closer.
func (b *endingBody) Close() error {
	b.release()
	return b.ReadCloser.Close()
}

// withoutPath is the URL's scheme and host.
func withoutPath(u *url.URL) *url.URL { return &url.URL{Scheme: u.Scheme, Host: u.Host} }

// joinPath puts the upstream's prefix before a path and leaves the path itself as it came.
func joinPath(prefix, requested string) string {
	return strings.TrimSuffix(path.Clean("/"+prefix), "/") + requested
}

// roundTripper picks the transport for a request.
type roundTripper struct{ target Target }

// errNoAnswer is why a request is given up.
var errNoAnswer = errors.New("it does not answer")

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	transport := t.target.Transport
	if isUpgrade(r) {
		transport = t.target.UpgradeTransport
	}
	patience := time.Duration(0)
	if t.target.Patience != nil {
		patience = t.target.Patience()
	}
	if patience == 0 {
		return transport.RoundTrip(r)
	}
	// The context is that of the answer's body too; the request's own, of which it is a child, ends it.
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(patience, func() { cancel(errNoAnswer) })
	response, err := transport.RoundTrip(r.WithContext(ctx))
	if !timer.Stop() && errors.Is(context.Cause(ctx), errNoAnswer) {
		if response != nil {
			_ = response.Body.Close() // it came too late
		}
		return nil, errNoAnswer
	}
	return response, err
}

// forwardError answers a request that could not be passed on.
func forwardError(w http.ResponseWriter, r *http.Request, err error) {
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		klog.FromContext(r.Context()).V(2).Info("Refusing a request body", "path", r.URL.Path, "limit", tooLarge.Limit)
		serve.WriteError(w, r, bodyTooLarge())
		return
	}
	if isSlow(r) {
		serve.WriteError(w, r, bodyTooSlow())
		return
	}
	if errors.Is(err, context.Canceled) {
		// The client went away; nobody reads an answer.
		panic(http.ErrAbortHandler)
	}
	klog.FromContext(r.Context()).Error(err, "Cannot reach the upstream", "method", r.Method, "path", r.URL.Path)
	serve.WriteError(w, r, serve.NotReady(fmt.Sprintf("the upstream cannot be reached: %v", err)))
}
