package proxy

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/autonomy/exchange"
	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
)

// siteNode is a node of zone a with an InternalIP.
func siteNode(name, address string) *corev1.Node {
	n := wiretest.NodeOf(name, "a")
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address},
	}
	return n
}

// siteOfTwo is a cluster with two nodes in zone a, and the Service s with the pod p on node1.
func siteOfTwo() *upstreamtest.API {
	api := upstreamtest.New()
	api.Put(siteNode("node0", "127.18.0.1"))
	api.Put(siteNode("node1", "127.18.0.2"))
	kubernetes := service("kubernetes", "[]")
	kubernetes.UID = types.UID("the-cluster")
	api.Put(kubernetes)
	api.Put(service("s", `["zone"]`))
	api.Put(sliceOf("s", ofPod("10.0.0.1", "node1")))
	return api
}

// TestSiteExchange: from a neighbour's container runtime to what clients see, and what /readyz, the metrics and explain
// say of it: while the upstream is there, after both wrappers have started without it, and when it is back for one.
func TestSiteExchange(t *testing.T) {
	t.Parallel()
	api := siteOfTwo()
	keys := filepath.Join(t.TempDir(), "keys")
	key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{5}, 32))
	if err := os.WriteFile(keys, []byte(key), 0o600); err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "state")}
	node := func(i int, address string) func(*Config) {
		return func(c *Config) {
			keepingState(dirs[i])(c)
			c.NodeName = fmt.Sprintf("node%d", i)
			c.ReturnGrace = livepods.DefaultReturnGrace
			c.SiteExchange, c.SiteKeys = &SiteExchange{Port: exchange.DefaultPort, KeyFile: keys}, []string{"zone"}
			if i == 1 {
				c.Runtime = onePod(address)
			}
		}
	}
	shows := func(w *wrapper, address string) {
		t.Helper()
		w.expectSoon(http.StatusOK, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s-1",
			`"addresses":["`+address+`"]`)
	}
	says := func(w *wrapper, readyz string, metrics ...string) {
		t.Helper()
		w.expectReadyz(http.StatusOK, readyz)
		w.expectSoon(http.StatusOK, "/metrics", metrics...)
	}
	a, b := start(t, api, node(0, "")), start(t, api, node(1, "10.0.0.1"))
	for i, w := range []*wrapper{a, b} {
		says(w, "[+] site-exchange: ok, 1 of 1 neighbours take part"+
			[]string{"; without --cri this node does not say which pods it runs\n", "\n"}[i],
			`application_grid_wrapper_neighbours{state="alive"} 1`, "application_grid_wrapper_silent_nodes 0",
			"application_grid_wrapper_neighbours_corrected_pods 0",
			`application_grid_wrapper_neighbour_messages_ignored_total{reason="key"} 0`)
		shows(w, "10.0.0.1")
	}
	a.end() // writes what changed last
	b.end()

	there := make(chan struct{})
	a = start(t, &link{api: api, there: there}, node(0, ""))
	b = start(t, &link{api: api, there: make(chan struct{})}, node(1, "10.0.0.9"))
	shows(b, "10.0.0.9")
	shows(a, "10.0.0.9")
	says(a, "; pods on node1 are shown as these nodes say, 1 of them differently from what the API server said last",
		"application_grid_wrapper_neighbours_corrected_pods 1",
		`application_grid_wrapper_neighbour_requests_total{result="ok"}`)
	a.expect(http.StatusOK, "/debug/explain/default/s", "that node itself says so")
	a.expectSaid("The upstream is away: nodes themselves say")
	close(there)
	says(a, "[+] endpointslices: ok")
	shows(a, "10.0.0.9")
	a.end()
	// Nothing of it is in the snapshot.
	a = start(t, &link{api: api, there: make(chan struct{})}, func(c *Config) {
		node(0, "")(c)
		c.SiteExchange = nil
	})
	shows(a, "10.0.0.1")
	b.end()
}

// TestSiteExchangeOff: it does not begin without a key, and the wrapper serves nevertheless.
func TestSiteExchangeOff(t *testing.T) {
	t.Parallel()
	w := start(t, siteOfTwo(), func(c *Config) {
		c.SiteExchange = &SiteExchange{Port: exchange.DefaultPort, KeyFile: "/absent"}
	})
	w.expectReadyz(http.StatusOK, "[+] site-exchange: off: ", "/absent")
}

// TestExchangeDetail: what /readyz says.
func TestExchangeDetail(t *testing.T) {
	t.Parallel()
	refused := errors.New("node c: connection refused")
	for _, test := range []struct {
		status exchange.Status
		want   string
	}{
		{exchange.Status{Err: exchange.ErrNoKey}, "site-exchange: off: " + exchange.ErrNoKey.Error()},
		{exchange.Status{Members: 1, Alive: []string{"b"}}, "site-exchange: ok, 1 of 1 neighbours take part"},
		{
			exchange.Status{Members: 2, Alive: []string{"b"}, Silent: []string{"c"}, Unreached: refused},
			"site-exchange: ok, 1 of 2 neighbours take part, not heard any more: c (node c: connection refused)",
		},
		{
			exchange.Status{Members: 1, Alive: []string{"b"}, KeyErr: os.ErrNotExist},
			"site-exchange: ok, 1 of 1 neighbours take part; the keys are those from before, for the file cannot be " +
				"used: file does not exist",
		},
	} {
		if got := exchangeDetail(test.status, livepods.Status{}, true); got != test.want {
			t.Errorf("%+v: got %q, want %q", test.status, got, test.want)
		}
	}
}
