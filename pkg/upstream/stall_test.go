package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// guarded is a client with short limits.
func guarded(headers, body time.Duration) *http.Client {
	return &http.Client{Transport: stallGuard{next: &http.Transport{DisableKeepAlives: true}, headers: headers, body: func(*http.Request) time.Duration { return body }}}
}

// TestStallGuard: what falls silent is given up, what is merely slow is not.
func TestStallGuard(t *testing.T) {
	const limit = 150 * time.Millisecond
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
		for range 10 {
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(limit / 5)
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
		if !errors.Is(err, errStalled) || time.Since(began) > 20*limit {
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
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
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

// TestSilence: a watch may be quiet for long, unless the upstream is one that sends bookmarks.
func TestSilence(t *testing.T) {
	s := &source{clock: time.Now}
	for _, test := range []struct {
		query string
		marks bool
		want  time.Duration
	}{
		{"limit=500", false, stallLimit},
		{"limit=500", true, stallLimit},
		{"watch=true&timeoutSeconds=400", false, 430 * time.Second},
		{"watch=true&timeoutSeconds=400", true, bookmarkLimit},
		{"watch=true", false, bookmarkLimit},
	} {
		s.bookmarks = test.marks
		request := httptest.NewRequest(http.MethodGet, "/x?"+test.query, nil)
		if got := s.silence(request); got != test.want {
			t.Errorf("%s, bookmarks %v: got %s, want %s", test.query, test.marks, got, test.want)
		}
	}
	s.bookmarks = false
	s.noteObject()
	s.UpdateResourceVersion("1")
	if s.bookmarks {
		t.Error("the report of an event's revision is taken for a bookmark")
	}
	s.UpdateResourceVersion("2")
	if !s.bookmarks {
		t.Error("a bookmark is not noticed")
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
	client := &http.Client{Transport: stallGuard{next: http.DefaultTransport, headers: patience, body: func(*http.Request) time.Duration {
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
	if body, err := io.ReadAll(response.Body); !errors.Is(err, errStalled) {
		t.Errorf("got %q, %v", body, err)
	}
}
