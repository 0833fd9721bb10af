package apiclient

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// always is a limit for every request.
func always(limit time.Duration) func(*http.Request) time.Duration {
	return func(*http.Request) time.Duration { return limit }
}

// guarded is a client with short limits.
func guarded(headers, body time.Duration) *http.Client {
	return &http.Client{
		Transport: StallGuard{
			Next: &http.Transport{DisableKeepAlives: true}, Headers: always(headers), Body: always(body),
		},
	}
}

// TestStallGuard: what falls silent is given up, what is merely slow is not.
func TestStallGuard(t *testing.T) {
	const limit = time.Second
	gone := make(chan struct{}, 1)
	mux := http.NewServeMux()
	silent := func(r *http.Request) {
		<-r.Context().Done()
		gone <- struct{}{}
	}
	mux.HandleFunc("/headers", func(_ http.ResponseWriter, r *http.Request) { silent(r) })
	mux.HandleFunc("/body", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		silent(r)
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) {
		for range 10 { // for longer than the limit in all
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(limit / 8)
		}
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	client := guarded(limit, limit)
	get := func(path string) (string, error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	for _, path := range []string{"/headers", "/body"} {
		began := time.Now()
		_, err := get(path)
		if !errors.Is(err, ErrStalled) || time.Since(began) > 20*limit {
			t.Errorf("%s: %v after %s", path, err, time.Since(began))
		}
		select {
		case <-gone:
		case <-time.After(patience):
			t.Fatalf("%s: the request was not ended", path)
		}
	}
	if body, err := get("/slow"); err != nil || body != "xxxxxxxxxx" {
		t.Errorf("slow: got %q, %v", body, err)
	}
}

// TestStallGuardLeavesTheCallersEndAlone: a request that its caller ends did not stall.
func TestStallGuardLeavesTheCallersEndAlone(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := guarded(time.Minute, time.Minute).Do(request)
	if err == nil {
		_ = response.Body.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestSilence: a watch may be quiet for long, unless the other end is one that sends bookmarks.
func TestSilence(t *testing.T) {
	for _, test := range []struct {
		query           string
		want, bookmarks time.Duration
	}{
		{"limit=500", stallLimit, stallLimit},
		{"watch=false", stallLimit, stallLimit},
		{"watch=true&timeoutSeconds=400", 430 * time.Second, bookmarkLimit},
		{"watch=true&timeoutSeconds=400&sendInitialEvents=true", bookmarkLimit, bookmarkLimit},
		{"watch=true", bookmarkLimit, bookmarkLimit},
	} {
		request := httptest.NewRequest(http.MethodGet, "/x?"+test.query, nil)
		if got := IdleTimeout(request); got != test.want {
			t.Errorf("%s: got %s, want %s", test.query, got, test.want)
		}
		if got := IdleTimeoutWithBookmarks(request); got != test.bookmarks {
			t.Errorf("%s, with bookmarks: got %s, want %s", test.query, got, test.bookmarks)
		}
		if got := HeaderTimeout(request); got != stallLimit {
			t.Errorf("%s: got %s before the response", test.query, got)
		}
	}
	// kube-apiserver gives a write up to a minute.
	if got := HeaderTimeout(httptest.NewRequest(http.MethodPatch, "/x", nil)); got <= time.Minute {
		t.Errorf("a write is given up after %s", got)
	}
}

// TestClientsAreGuarded: all but those that pass requests on.
func TestClientsAreGuarded(t *testing.T) {
	for _, passesOn := range []bool{false, true} {
		connection, err := Options{
			Program: "x", Master: "http://localhost", QPS: 1, Burst: 1, PassesOn: passesOn,
		}.Connect()
		if err != nil {
			t.Fatal(err)
		}
		config, err := connection.Config()
		if err != nil {
			t.Fatal(err)
		}
		transport, err := rest.TransportFor(config)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for {
			if g, ok := transport.(StallGuard); ok {
				found = true
				request := httptest.NewRequest(http.MethodGet, "/x?watch=true&timeoutSeconds=400", nil)
				if headers, body := g.Headers(request), g.Body(request); headers != stallLimit ||
					body != 430*time.Second {
					t.Errorf("a watch is given up after %s and %s of silence", headers, body)
				}
			}
			wrapped, ok := transport.(utilnet.RoundTripperWrapper)
			if !ok {
				break
			}
			transport = wrapped.WrappedRoundTripper()
		}
		if found == passesOn {
			t.Errorf("passes on: %v, guarded: %v", passesOn, found)
		}
	}
}

// TestStallGuardLearns: a limit that is known only after a while holds for the response that is under way.
func TestStallGuardLearns(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "some")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	var asked atomic.Int64
	client := &http.Client{Transport: StallGuard{Next: http.DefaultTransport, Headers: always(patience),
		Body: func(*http.Request) time.Duration {
			if asked.Add(1) == 1 {
				return time.Hour
			}
			return time.Millisecond
		}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if body, err := io.ReadAll(response.Body); !errors.Is(err, ErrStalled) {
		t.Errorf("got %q, %v", body, err)
	}
}
