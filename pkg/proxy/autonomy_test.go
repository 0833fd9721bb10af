package proxy

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/application-grid/application-grid/pkg/autonomy/deadnodes"
)

// healthService answers what the string holds, and 500 if that is empty.
func healthService(t *testing.T) (*atomic.Value, *deadnodes.Options) {
	t.Helper()
	says := &atomic.Value{}
	says.Store("")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body, _ := says.Load().(string)
		if body == "" {
			w.WriteHeader(http.StatusInternalServerError)
		}
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	return says, &deadnodes.Options{Address: server.URL, Interval: 400 * time.Millisecond}
}

// TestDeadNeighbours: from the health service to what clients see, and what /readyz, the metrics and the log say
// of it: one line per change.
func TestDeadNeighbours(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	api.Put(service("open", "[]"))
	api.Put(sliceOf("open", onNode("10.0.0.1", "node0"), onNode("10.0.0.2", "node1")))
	says, options := healthService(t)
	w := start(t, api, func(c *Config) { c.Autonomy = options })
	shows := func(nodes string) {
		t.Helper()
		soon.UntilQuiet(t, func() string {
			code, body := w.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/open-1")
			for _, node := range []string{"node0", "node1"} {
				if code != http.StatusOK ||
					strings.Contains(body, `"nodeName":"`+node+`"`) != strings.Contains(nodes, node) {
					return fmt.Sprintf("want %s: %d %s", nodes, code, body)
				}
			}
			return ""
		})
	}
	shows("node0 node1")
	w.expectReadyz(http.StatusOK, "autonomy: no endpoint is hidden", "500")
	says.Store(`{"node1":{"normal":false},"192.0.2.77":{"normal":false}}`)
	shows("node0")
	w.expectReadyz(http.StatusOK, "autonomy: endpoints on node1 are hidden", "192.0.2.77 not known")
	w.expectSoon(http.StatusOK, "/metrics", "application_grid_wrapper_dead_nodes 1")
	says.Store(`{"node1":{"normal":true}}`)
	shows("node0 node1")
	w.expectReadyz(http.StatusOK, "autonomy: no endpoint is hidden", "calls none dead")
	w.expectSoon(http.StatusOK, "/metrics", "application_grid_wrapper_dead_nodes 0")
	says.Store("")
	w.expectReadyz(http.StatusOK, "500")
	for _, result := range []string{"ok", "error"} {
		w.expectSoon(http.StatusOK, "/metrics", `application_grid_wrapper_autonomy_polls_total{result="`+result+`"}`)
	}
	// Some polls later nothing more was said than there were changes.
	counted := func(result string) (count int) {
		_, body := w.get("/metrics")
		if _, after, found := strings.Cut(body,
			`application_grid_wrapper_autonomy_polls_total{result="`+result+`"} `); found {
			if _, err := fmt.Sscan(after, &count); err != nil {
				t.Fatal(err)
			}
		}
		return count
	}
	said := func() int { return strings.Count(logged.String(), options.Address) }
	polls, lines := counted("error"), said()
	soon.UntilQuiet(t, func() string {
		if n := counted("error"); n < polls+3 {
			return fmt.Sprintf("%d polls, then %d", polls, n)
		}
		return ""
	})
	// A poll that takes too long on a busy machine is a change, and so is the next one that does not.
	if n := said(); n != lines && counted("timeout") == 0 {
		t.Errorf("%d lines of the log name the health service, later %d, and nothing had changed", lines, n)
	}
}
