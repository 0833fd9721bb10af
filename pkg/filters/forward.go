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
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/serve"
)

// Link knows whether the upstream is away. *apiclient.Link is one.
type Link interface {
	// AwayUntil returns a channel that is closed when the upstream is back; nil while it is not away.
	AwayUntil() <-chan struct{}
	// Suspect causes a probe of the upstream.
	Suspect()
}

// Target is the server to which requests are passed on.
type Target struct {
	// URL is the URL of the server, with a path if the API is served under a prefix.
	URL *url.URL
	// Transport carries ordinary requests, over HTTP/2 where the upstream speaks it.
	Transport http.RoundTripper
	// UpgradeTransport carries requests that upgrade their connection (exec, port-forward), which is not possible over
	// HTTP/2.
	UpgradeTransport http.RoundTripper
	// Link is suspected when a request has no answer for some seconds. The request is given up only while it is away.
	Link Link
	// Answered, if set, is called with each request and its answer before that is passed on, or 503 in place of it if
	// there is an error.
	Answered func(asked *http.Request, answer *http.Response) error
	// Stopping is done when the process is about to end. Streams then end as if the upstream had ended them.
	Stopping context.Context //nolint:containedctx // an event to react to, not the context of a call
}

// Forward passes every request on. Responses of unknown length, such as watches and logs, are flushed as they come;
// httputil does that by itself.
func Forward(target Target) http.Handler {
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = target.URL.Scheme, target.URL.Host, target.URL.Host
			r.Out.URL.Path = joinPath(target.URL.Path, r.In.URL.Path)
			r.Out.URL.RawPath = joinPath(target.URL.EscapedPath(), r.In.URL.EscapedPath())
			r.Out.URL.RawQuery = r.In.URL.RawQuery
			if isStream(r.In) {
				// Caching proxies read the streams that they pass on, and hang on compressed ones.
				r.Out.Header.Set("Accept-Encoding", "identity")
			}
		},
		Transport:      roundTripper{target},
		BufferPool:     &bufferPool{},
		ErrorHandler:   forwardError,
		ModifyResponse: target.modifyResponse,
		// Responses that break off are logged at INFO: they are not errors of the wrapper.
		ErrorLog: klog.NewStandardLogger("INFO"),
	}
	if target.Answered == nil {
		return proxy
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), askedKey{}, r)))
	})
}

// askedKey is the key of the context's value that has the request before its path got the upstream's prefix.
type askedKey struct{}

// bufferPool implements httputil.BufferPool. Without one each answer takes a buffer of 32 kB, and a small process
// collects its garbage after a hundred of them.
type bufferPool struct{ sync.Pool }

// bufferSize is the size of a buffer in bytes, as in package httputil.
const bufferSize = 32 << 10

func (b *bufferPool) Get() []byte {
	if buffer, ok := b.Pool.Get().(*[bufferSize]byte); ok {
		return buffer[:]
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(buffer []byte) { b.Pool.Put((*[bufferSize]byte)(buffer)) }

// modifyResponse calls Answered, and makes a stream, such as a watch, end when the process is about to end.
func (t Target) modifyResponse(r *http.Response) error {
	if t.Answered != nil {
		asked, _ := r.Request.Context().Value(askedKey{}).(*http.Request) // Forward puts it there
		if err := t.Answered(asked, r); err != nil {
			return err
		}
	}
	if t.Stopping == nil || r.ContentLength >= 0 || !isStream(r.Request) {
		return nil
	}
	body := &endingBody{ReadCloser: r.Body, stopping: t.Stopping}
	body.release = context.AfterFunc(t.Stopping, func() { _ = body.ReadCloser.Close() })
	r.Body = body
	return nil
}

func isStream(r *http.Request) bool {
	query := r.URL.Query()
	return serve.IsTrue(query, "watch") || serve.IsTrue(query, "follow") || strings.Contains(r.URL.Path, "/watch/")
}

// endingBody is a response body that is closed when the process is about to end. To its reader that is an ordinary end.
type endingBody struct {
	io.ReadCloser

	stopping context.Context //nolint:containedctx // as in Target
	release  func() bool
}

func (b *endingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && b.stopping.Err() != nil {
		err = io.EOF
	}
	return n, err
}

func (b *endingBody) Close() error {
	b.release()
	return b.ReadCloser.Close()
}

// joinPath puts the upstream's prefix before a path and leaves the path itself as it came.
func joinPath(prefix, requested string) string {
	return strings.TrimSuffix(path.Clean("/"+prefix), "/") + requested
}

// roundTripper picks the transport for a request.
type roundTripper struct{ target Target }

// suspectAfter is how long a request may be without an answer before the upstream is suspected, which is more than a
// probe of a fast one takes, and the time between two looks at the link from then on. Some requests take long although
// the upstream is well.
const suspectAfter = 2500 * time.Millisecond

// errNoAnswer is the error of a request that is given up.
var errNoAnswer = errors.New("it does not answer")

func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	transport := t.target.Transport
	if isUpgrade(r) {
		transport = t.target.UpgradeTransport
	}
	// The response's body also needs the context, so it is not cancelled here. It ends with the request's own context.
	ctx, cancel := context.WithCancelCause(r.Context())
	answered := make(chan struct{})
	var over sync.Once // the request is answered, or given up
	sent := &sentBody{ReadCloser: r.Body}
	timer := time.AfterFunc(suspectAfter, func() {
		if t.awaitAway(ctx, answered, sent) {
			over.Do(func() { cancel(errNoAnswer) })
		}
	})
	defer timer.Stop()
	r = r.WithContext(ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = sent
	}
	response, err := transport.RoundTrip(r)
	over.Do(func() { close(answered) })
	if errors.Is(context.Cause(ctx), errNoAnswer) {
		if response != nil {
			_ = response.Body.Close() // the response came too late
		}
		return nil, errNoAnswer
	}
	return response, err
}

// awaitAway waits until the request is answered or ctx is done, and then returns false, or until the upstream is away.
// Without it half a minute may pass before a dead connection is noticed.
func (t roundTripper) awaitAway(ctx context.Context, answered <-chan struct{}, body *sentBody) bool {
	for sent := int64(0); ; {
		// While the request's body is being sent, an answer is not due yet, and on a slow link a probe would wait
		// behind the body.
		switch now := body.sent.Load(); {
		case now != sent:
			sent = now
		case t.target.Link.AwayUntil() != nil:
			return true
		default:
			t.target.Link.Suspect()
		}
		select {
		case <-answered:
			return false
		case <-ctx.Done():
			return false
		case <-time.After(suspectAfter):
		}
	}
}

// sentBody is a request's body that counts the bytes that are read of it.
type sentBody struct {
	io.ReadCloser

	sent atomic.Int64
}

func (b *sentBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.sent.Add(int64(n))
	return n, err
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
		// The client is gone.
		panic(http.ErrAbortHandler)
	}
	klog.FromContext(r.Context()).Error(err, "Cannot reach the upstream", "method", r.Method, "path", r.URL.Path)
	serve.WriteError(w, r, serve.NotReady(fmt.Sprintf("the upstream cannot be reached: %v", err)))
}
