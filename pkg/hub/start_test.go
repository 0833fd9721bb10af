package hub

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/application-grid/application-grid/pkg/follow/apiclient"
)

// TestStart: a hub that starts while the API server is away waits for it, and one that is refused goes on to say so.
func TestStart(t *testing.T) {
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
			began := time.Now()
			// What is wrong with the configuration is found once the API server has answered.
			if _, err := start(t.Context(), t, upstream.URL, nil); !errors.Is(err, errApplied) {
				t.Fatalf("it starts with %v", err)
			}
			if took := time.Since(began); took < c.atLeast || took > c.atMost {
				t.Errorf("it waits for %s, want %s to %s", took, c.atLeast, c.atMost)
			}
		})
	}
}

// TestStartEnds: a hub that is ended while it waits ends.
func TestStartEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if server, err := start(ctx, t, "http://127.0.0.1:1", nil); server != nil || err != nil {
		t.Errorf("it starts %v, %v", server, err)
	}
}

// TestAwayAfterTheAnswer: an API server that answers, and is away when the hub reads more of it, is waited for again.
func TestAwayAfterTheAnswer(t *testing.T) {
	t.Parallel()
	var away atomic.Bool
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if away.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(upstream.Close)
	tried := 0
	_, err := start(t.Context(), t, upstream.URL, func() {
		tried++
		away.Store(tried == 1)
		time.AfterFunc(100*time.Millisecond, func() { away.Store(false) })
	})
	if tried != 2 || !errors.Is(err, errApplied) {
		t.Errorf("it tried %d times, and ended with %v", tried, err)
	}
}

var errApplied = errors.New("the configuration was applied")

// start starts a hub whose configuration fails when it is applied, after during.
func start(ctx context.Context, t *testing.T, upstream string, during func()) (*Server, error) {
	t.Helper()
	connection, err := apiclient.Options{Master: upstream, QPS: 1000, Burst: 1000}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	return NewOnceAnswered(ctx, Config{Connection: connection, Apply: func(*genericapiserver.Config) error {
		if during != nil {
			during()
		}
		return errApplied
	}})
}
