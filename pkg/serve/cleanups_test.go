package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// TestDetachedStreams: a watch that has begun is served when its handler has returned, and is over after that. What is
// no watch, or a watch that is refused, is over when the handler returns.
func TestDetachedStreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, query, answer string }{
		{"list", "", `"kind":"ServiceList"`},
		{"watch", "?watch=true&timeoutSeconds=1&allowWatchBookmarks=true", `"type":"BOOKMARK"`},
		{"refused watch", "?watch=true&resourceVersion=1", `"reason":"Expired"`},
		{"invalid watch", "?watch=true&resourceVersion=one", `"reason":"BadRequest"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newSyncedCluster(t)
			var steps []string
			step := func(name string) func() { return func() { steps = append(steps, name) } }
			store := c.server.HistoryOf
			c.server.HistoryOf = func(r *http.Request) (*history.History, func(), error) {
				h, _, err := store(r)
				return h, step("release"), err
			}
			c.server.Demand = func(*served.Resource) func() { return step("demand ends") }
			var stream func()
			ctx := WithDetachedStreams(t.Context(), func(s func()) { stream = s })
			w := httptest.NewRecorder()
			c.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, servicesPath+test.query, nil))
			step("handler returns")()
			want := []string{"demand ends", "release", "handler returns"}
			switch test.name {
			case "invalid watch":
				want = want[2:]
			case "watch":
				if stream == nil || w.Code != http.StatusOK || w.Body.Len() > 0 {
					t.Fatalf("the watch was not left for later: %d %s", w.Code, w.Body)
				}
				stream()
				want = []string{"handler returns", "demand ends", "release"}
			}
			if !slices.Equal(steps, want) {
				t.Errorf("got %q, want %q", steps, want)
			}
			if !strings.Contains(w.Body.String(), test.answer) {
				t.Errorf("got %d %s, want %s", w.Code, w.Body, test.answer)
			}
		})
	}
}

// TestDetachedStreamPanics: what is to be done when a request is over is done, also after a panic.
func TestDetachedStreamPanics(t *testing.T) {
	t.Parallel()
	done := 0
	cleanups := &cleanups{}
	cleanups.add(func() { done++ })
	cleanups.add(func() { panic("one of them") })
	var stream func()
	ctx := WithDetachedStreams(context.Background(), func(s func()) { stream = s })
	cleanups.runStream(ctx, func() { panic("the stream") })
	cleanups.runUnlessDetached()
	defer func() {
		if recover() == nil || done != 1 {
			t.Errorf("%d of 1 calls were made", done)
		}
	}()
	stream()
}
