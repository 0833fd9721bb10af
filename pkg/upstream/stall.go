package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// stallLimit is how long a response may keep silent: before its headers, and in the midst of a list. A slow
	// link is no reason to give up, so there is no limit on the whole.
	stallLimit = 30 * time.Second
	// bookmarkLimit is how long a watch may keep silent if the upstream is known to send bookmarks.
	// kube-apiserver sends one a minute.
	bookmarkLimit = 150 * time.Second
	// watchMargin is how much later than a watch's own timeout it is ended from here.
	watchMargin = 30 * time.Second
)

// errStalled is why a response is given up.
var errStalled = errors.New("the upstream fell silent in the middle of a response")

// stallGuard gives up on responses that stall. TCP notices a dead peer; this is for one that lives and says
// nothing, as a gateway may that has lost what is behind it.
type stallGuard struct {
	next http.RoundTripper
	// headers limits the silence before the response, body that in it.
	headers time.Duration
	body    func(*http.Request) time.Duration
}

// RoundTrip implements http.RoundTripper.
func (g stallGuard) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	timer := time.AfterFunc(g.headers, func() { cancel(errStalled) })
	response, err := g.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		timer.Stop()
		err = stalled(ctx, err)
		cancel(nil)
		return nil, err
	}
	timer.Stop()
	// Asked again whenever something comes: a watch may learn on its way that the upstream sends bookmarks.
	limit := func() time.Duration { return g.body(r) }
	body := &guardedBody{ReadCloser: response.Body, ctx: ctx, cancel: cancel, limit: limit}
	body.timer = time.AfterFunc(limit(), func() { cancel(errStalled) })
	response.Body = body
	return response, nil
}

// stalled is the error as it is to be told.
func stalled(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
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
	close  sync.Once
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
	b.close.Do(func() { b.timer.Stop() })
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}
