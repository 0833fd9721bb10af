package hub

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

// TestAwait: a hub that starts while the API server is away waits for it, and one that is refused goes on to say so.
func TestAwait(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// answers are the codes of the answers, the last one forever; 0 breaks the connection.
		answers         []int
		atLeast, atMost time.Duration
	}{
		{"the API server answers", []int{200}, 0, 5 * time.Second},
		{"it is away first", []int{0, 503, 500, 200}, 2500 * time.Millisecond, time.Minute},
		{"it refuses only at its start", []int{403, 403, 200}, 1500 * time.Millisecond, awaitRefusal},
		{"it refuses", []int{403}, awaitRefusal, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				const want = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
				if r.URL.Path != want {
					t.Errorf("it asks for %s, want %s", r.URL.Path, want)
				}
				code := c.answers[min(int(asked.Add(1)), len(c.answers))-1]
				if code == 0 {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(code)
			}))
			t.Cleanup(upstream.Close)
			connection, err := apiclient.Options{Master: upstream.URL, QPS: 1000, Burst: 1000}.Connect()
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if err := (Config{Connection: connection}).Await(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < c.atLeast || took > c.atMost {
				t.Errorf("it waits for %s, want %s to %s", took, c.atLeast, c.atMost)
			}
		})
	}
}

// TestAwaitEnds: a hub that is ended while it waits ends.
func TestAwaitEnds(t *testing.T) {
	t.Parallel()
	connection, err := apiclient.Options{Master: "http://127.0.0.1:1", QPS: 1000, Burst: 1000}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := (Config{Connection: connection}).Await(ctx); err != nil {
		t.Error(err)
	}
}
