package apiclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"
)

const (
	// stallLimit is how long the other end may be silent before and during the response to a read. The whole response
	// may take longer, because the link may be slow.
	stallLimit = 30 * time.Second
	// writeLimit is how long the other end may be silent before the response to a write. Webhooks may take long;
	// kube-apiserver itself gives up after 60 s.
	writeLimit = 70 * time.Second
	// bookmarkLimit is how long a watch may be silent if the other end is known to send bookmarks. kube-apiserver sends
	// one a minute.
	bookmarkLimit = 150 * time.Second
	// WatchMargin is how long after a watch's own timeout the client ends it.
	WatchMargin = 30 * time.Second
)

// ErrStalled is the error of a response that the client has given up.
var ErrStalled = errors.New("the API server, or what is before it, fell silent in the middle of a response")

// StallGuard is a transport that ends responses that stall, with ErrStalled. TCP notices a dead peer. A StallGuard
// notices a peer that is alive and sends nothing, such as a gateway that has lost the server behind it. client-go has
// no such limit, and an informer whose list stalls would never recover.
//
// It is not for requests that a program passes on for its clients: those may be silent for a long time on purpose, and
// clients have their own timeouts.
type StallGuard struct {
	Next http.RoundTripper
	// Headers returns how long the server may be silent before its response, and Body how long within it. Body is
	// called again whenever data arrives, because the reader of a watch may have learned that the server sends
	// bookmarks.
	Headers, Body func(*http.Request) time.Duration
}

// HeaderTimeout returns how long the server may be silent before its response.
func HeaderTimeout(r *http.Request) time.Duration {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return stallLimit
	}
	return writeLimit
}

// IdleTimeout returns how long the server may be silent within its response. A server that accepts sendInitialEvents
// sends bookmarks.
func IdleTimeout(r *http.Request) time.Duration {
	query := r.URL.Query()
	seconds, err := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil || query.Get("watch") != "true" || query.Get("sendInitialEvents") == "true" {
		return IdleTimeoutWithBookmarks(r)
	}
	return time.Duration(seconds)*time.Second + WatchMargin
}

// IdleTimeoutWithBookmarks is IdleTimeout for a server that is known to send bookmarks.
func IdleTimeoutWithBookmarks(r *http.Request) time.Duration {
	if r.URL.Query().Get("watch") != "true" {
		return stallLimit
	}
	return bookmarkLimit
}

// RoundTrip implements http.RoundTripper.
func (g StallGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(g.Headers(r), func() { cancel(ErrStalled) })
	response, err := g.Next.RoundTrip(r.WithContext(ctx))
	timer.Stop()
	if err != nil {
		err = stallErrorOf(ctx, err)
		cancel(nil)
		return nil, err
	}
	limit := func() time.Duration { return g.Body(r) }
	body := &guardedBody{ReadCloser: response.Body, ctx: ctx, cancel: cancel, limit: limit}
	body.timer = time.AfterFunc(limit(), func() { cancel(ErrStalled) })
	response.Body = body
	return response, nil
}

// WrappedRoundTripper implements net.RoundTripperWrapper of apimachinery.
func (g StallGuard) WrappedRoundTripper() http.RoundTripper { return g.Next }

// stallErrorOf returns ErrStalled if the guard ended the request, else err.
func stallErrorOf(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrStalled) {
		return ErrStalled
	}
	return err
}

// guardedBody is a response body that fails after too long a silence.
type guardedBody struct {
	io.ReadCloser

	ctx    context.Context //nolint:containedctx // that of the body's request
	cancel context.CancelCauseFunc
	limit  func() time.Duration
	timer  *time.Timer
}

func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.limit())
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = stallErrorOf(b.ctx, err)
	}
	return n, err
}

func (b *guardedBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
