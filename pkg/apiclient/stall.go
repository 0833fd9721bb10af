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
	// stallLimit is how long the other end may keep silent before it answers a question, and in the midst of a
	// list. A slow link is no reason to give up, so there is no limit on the whole.
	stallLimit = 30 * time.Second
	// writeLimit is the same before the answer to a write: webhooks may take their time, and kube-apiserver itself
	// gives up after 60 s.
	writeLimit = 70 * time.Second
	// bookmarkLimit is how long a watch may keep silent if the other end is known to send bookmarks.
	// kube-apiserver sends one a minute.
	bookmarkLimit = 150 * time.Second
	// WatchMargin is how much later than a watch's own timeout it is ended from here.
	WatchMargin = 30 * time.Second
)

// ErrStalled is why a response is given up.
var ErrStalled = errors.New("the API server, or what is before it, fell silent in the middle of a response")

// StallGuard gives up on responses that stall, with ErrStalled. TCP notices a dead peer; this is for one that lives
// and says nothing, as a gateway may that has lost what is behind it. client-go has no such limit: a list that stalls
// would hold its informer up for ever.
//
// It is not for requests that are passed on for others, who may ask for what is silent for long, and have patience
// of their own.
type StallGuard struct {
	Next http.RoundTripper
	// Headers limits the silence before the response to a request, Body that in it. Body is asked again whenever
	// something comes: a watch may learn on its way that the other end sends bookmarks.
	Headers, Body func(*http.Request) time.Duration
}

// guard is the StallGuard for clients of which nothing is known.
func guard(next http.RoundTripper) http.RoundTripper {
	return StallGuard{
		Next:    next,
		Headers: SilenceBefore,
		Body:    func(r *http.Request) time.Duration { return SilenceIn(r, false) },
	}
}

// SilenceBefore is how long the other end may keep silent before it responds.
func SilenceBefore(r *http.Request) time.Duration {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return stallLimit
	}
	return writeLimit
}

// SilenceIn is how long the other end may keep silent within a response. bookmarks is set if it is known to send
// them; who takes sendInitialEvents promises to.
func SilenceIn(r *http.Request, bookmarks bool) time.Duration {
	query := r.URL.Query()
	if query.Get("watch") != "true" {
		return stallLimit
	}
	seconds, err := strconv.Atoi(query.Get("timeoutSeconds"))
	if err != nil || bookmarks || query.Get("sendInitialEvents") == "true" {
		return bookmarkLimit
	}
	return time.Duration(seconds)*time.Second + WatchMargin
}

// RoundTrip implements http.RoundTripper.
func (g StallGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(g.Headers(r), func() { cancel(ErrStalled) })
	response, err := g.Next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		err = stalled(ctx, err)
		cancel(nil)
		return nil, err
	}
	timer.Stop()
	limit := func() time.Duration { return g.Body(r) }
	body := &guardedBody{ReadCloser: response.Body, ctx: ctx, cancel: cancel, limit: limit}
	body.timer = time.AfterFunc(limit(), func() { cancel(ErrStalled) })
	response.Body = body
	return response, nil
}

// WrappedRoundTripper is for client-go, which looks for what is below.
func (g StallGuard) WrappedRoundTripper() http.RoundTripper { return g.Next }

// stalled is the error as it is to be told.
func stalled(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), ErrStalled) {
		return ErrStalled
	}
	return err
}

// guardedBody is a response body that breaks when nothing comes for a while.
type guardedBody struct {
	io.ReadCloser

	ctx    context.Context //nolint:containedctx // that of the body's request
	cancel context.CancelCauseFunc
	limit  func() time.Duration
	timer  *time.Timer
}

// Read implements io.Reader.
func (b *guardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.timer.Reset(b.limit())
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = stalled(b.ctx, err)
	}
	return n, err
}

// Close implements io.Closer.
func (b *guardedBody) Close() error {
	b.timer.Stop()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
