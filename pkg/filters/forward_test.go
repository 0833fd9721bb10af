package filters

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// upstreamFunc is an upstream without a network.
type upstreamFunc func(r *http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f upstreamFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// linkStub is a Link that goes away when it is suspected, if dead is set.
type linkStub struct {
	dead bool

	mu   sync.Mutex
	away chan struct{}
}

// AwayUntil implements Link.
func (l *linkStub) AwayUntil() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

// Suspect implements Link.
func (l *linkStub) Suspect() {
	if l.dead {
		l.set(true)
	}
}

func (l *linkStub) set(away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case away && l.away == nil:
		l.away = make(chan struct{})
	case !away && l.away != nil:
		close(l.away)
		l.away = nil
	}
}

func respond(code int) (*http.Response, error) {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("answer"))}, nil
}

func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestPatience: a request without an answer is given up within 5 s if the upstream is away, and waits as long as it
// likes if it is not.
func TestPatience(t *testing.T) {
	t.Parallel()
	slowly := func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(3 * time.Minute):
			return respond(http.StatusOK)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	refusal := func(*http.Request) (*http.Response, error) { return respond(http.StatusUnauthorized) }
	for name, test := range map[string]struct {
		request upstreamFunc
		// away is what is known of the upstream, dead what it is.
		away, dead bool
		code       int
		most       time.Duration
	}{
		"dead, and not known to be": {request: hang, dead: true, code: http.StatusServiceUnavailable,
			most: 5 * time.Second},
		"known to be away": {request: hang, away: true, code: http.StatusServiceUnavailable,
			most: 2500 * time.Millisecond},
		"slow by nature":                      {request: slowly, code: http.StatusOK, most: 3 * time.Minute},
		"quick":                               {request: refusal, dead: true, code: http.StatusUnauthorized},
		"quick, and away by a moment's fault": {request: refusal, away: true, code: http.StatusUnauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				link := &linkStub{dead: test.dead}
				link.set(test.away)
				front := Forward(Target{
					URL: &url.URL{Scheme: "https", Host: "upstream.example", Path: "/under"}, Transport: test.request,
					UpgradeTransport: test.request, Link: link,
				})
				began := time.Now()
				w := httptest.NewRecorder()
				front.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/pods", nil))
				if took := time.Since(began); w.Code != test.code || took > test.most {
					t.Errorf("answered %d after %s, want %d within %s", w.Code, took, test.code, test.most)
				}
			})
		})
	}
}

// TestSlowUpload: while a body makes progress no answer is due, whatever else the link lets through.
func TestSlowUpload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		upstream := upstreamFunc(func(r *http.Request) (*http.Response, error) {
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return nil, err
			}
			return respond(http.StatusCreated)
		})
		front := Forward(Target{
			URL: &url.URL{Scheme: "https", Host: "upstream.example"}, Transport: upstream, UpgradeTransport: upstream,
			Link: &linkStub{dead: true},
		})
		body, writer := io.Pipe()
		go func() {
			for range 30 {
				time.Sleep(time.Second)
				_, _ = writer.Write([]byte("x"))
			}
			_ = writer.Close()
		}()
		w := httptest.NewRecorder()
		front.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/events", body))
		if w.Code != http.StatusCreated {
			t.Errorf("got %d %s", w.Code, w.Body)
		}
	})
}

// TestWatchesAreNotCompressed: a cache that reads along hangs on what is; what is no stream is asked for as it came.
func TestWatchesAreNotCompressed(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/v1/pods?watch=true": "identity", "/api/v1/watch/pods": "identity", "/api/v1/pods?watch=0": "gzip",
		"/api/v1/pods": "gzip",
	} {
		got := ""
		upstream := upstreamFunc(func(r *http.Request) (*http.Response, error) {
			got = r.Header.Get("Accept-Encoding")
			return respond(http.StatusOK)
		})
		front := Forward(Target{
			URL: &url.URL{Scheme: "https", Host: "upstream.example"}, Transport: upstream, UpgradeTransport: upstream,
		})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Accept-Encoding", "gzip")
		front.ServeHTTP(httptest.NewRecorder(), r)
		if got != want {
			t.Errorf("%s: asked for %q", path, got)
		}
	}
}
