package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/test/cluster"
)

// healthAddress is where a node's health service listens, in the node's namespace.
const healthAddress = "127.0.0.1:51005"

// healthService plays the program beside the wrapper that knows which neighbours are dead.
type healthService struct {
	server *http.Server

	mu     sync.Mutex
	answer string // guarded by mu
}

// startHealthService begins to answer on the node.
func (f *fixture) startHealthService(node *cluster.Node, answer string) *healthService {
	f.Helper()
	listener, err := node.Listen(f.ctx, healthAddress)
	f.Must(err)
	h := &healthService{answer: answer}
	h.server = &http.Server{ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/localinfo" {
				http.NotFound(w, r)
				return
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			_, _ = io.WriteString(w, h.answer)
		})}
	go h.server.Serve(listener)
	f.Cleanup(func() { h.server.Close() })
	return h
}

// says sets the answer: these keys are dead.
func (h *healthService) says(dead ...string) {
	entries := []string{`"b2":{"normal":true}`}
	for _, key := range dead {
		entries = append(entries, fmt.Sprintf(`%q:{"normal":false}`, key))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = "{" + strings.Join(entries, ",") + "}"
}

// withAutonomy restarts the node's wrapper so that it asks a health service every second; the cleanup restarts
// it without.
func (f *fixture) withAutonomy(node *cluster.Node) {
	f.Helper()
	before := node.Wrapper.Args()
	f.Cleanup(func() {
		node.Wrapper.SetArgs(before)
		if err := node.Wrapper.Restart(context.Background()); err != nil {
			f.Errorf("restarting the wrapper of %s as it was: %v", node.Spec.Name, err)
		}
	})
	node.Wrapper.SetArgs(append(before, "--service-autonomy-enhancement=enabled=true,interval=1,address=http://"+healthAddress+"/localinfo"))
	f.Must(node.Wrapper.Restart(f.ctx))
}

// TestDeadNeighbours: what a node's health service calls dead leaves that node's data plane, of governed
// Services and others, and no other node's; it is back when the service says so and when it says nothing.
func TestDeadNeighbours(t *testing.T) {
	f := newFixture(t)
	a1 := f.Node("a1")
	a2 := f.Node("a2")
	b1 := f.Node("b1")
	governed := f.daemonSet("governed", siteLabel)
	open := f.daemonSet("open")
	preferring := f.daemonSet("preferring", siteLabel, "*")
	expect := func(what string, a1Governed, a1Open, a1Preferring string) {
		t.Helper()
		f.ExpectReach(what+": governed", governed, siteLocal.with(reach{"a1": a1Governed}))
		f.ExpectReach(what+": open", open, everywhere.with(reach{"a1": a1Open}))
		f.ExpectReach(what+": preferring", preferring, siteLocal.with(reach{"a1": a1Preferring}))
	}
	const all = "a1 a2 b1 b2"
	health := f.startHealthService(a1, "{}")
	f.withAutonomy(a1)
	expect("all live", "a1 a2", all, "a1 a2")

	health.says("a2")
	expect("a2 is dead, by name", "a1", "a1 b1 b2", "a1")
	f.Says(a1, "/readyz", "autonomy: endpoints on a2 are hidden")
	f.setReady("preferring", "a1", corev1.ConditionFalse)
	f.ExpectReach("no living endpoint is near", preferring, siteLocal.with(reach{"a1": "b1 b2", "a2": "a2"}))
	f.setReady("preferring", "a1", corev1.ConditionTrue)
	health.says()
	expect("a2 is alive again", "a1 a2", all, "a1 a2")

	health.says(a2.Address, "::ffff:"+b1.Address)
	expect("a2 and b1 are dead, by address", "a1", "a1 b2", "a1")
	f.Says(a1, "/readyz", "autonomy: endpoints on a2, b1 are hidden")
	f.Must(health.server.Close())
	expect("the health service is away", "a1 a2", all, "a1 a2")
	f.Says(a1, "/readyz", "without a good answer from the health service")

	health = f.startHealthService(a1, "")
	health.says("a1", a1.Address, "b1", "not-a-node")
	expect("it is back, and calls a1 itself dead", "a1 a2", "a1 a2 b2", "a1 a2")
	f.Says(a1, "/metrics", "application_grid_wrapper_dead_nodes 2\n",
		`application_grid_wrapper_autonomy_polls_total{result="ok"}`,
		`application_grid_wrapper_autonomy_polls_total{result="error"}`)
	health.mu.Lock()
	health.answer = "<html>"
	health.mu.Unlock()
	expect("it answers nonsense", "a1 a2", all, "a1 a2")
}
