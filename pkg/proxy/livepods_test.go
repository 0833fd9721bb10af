package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
)

// onePod is a container runtime that runs the pod default/p at an address.
type onePod string

func (address onePod) Pods(context.Context) ([]cri.Pod, error) {
	return []cri.Pod{{
		Namespace: "default", Name: "p", UID: "u-p", Addresses: []netip.Addr{netip.MustParseAddr(string(address))},
		Sandbox: "s", Containers: map[string]cri.Container{"c": {ID: "c", State: cri.Running}},
	}}, nil
}

func (onePod) Socket() string { return "socket" }
func (onePod) Named() bool    { return true }
func (onePod) Close()         {}

// TestLivePods: from the container runtime to what clients see, and what /readyz, the metrics, explain and the log say
// of it: while the upstream is there, while a snapshot is served, and when the upstream is back.
func TestLivePods(t *testing.T) {
	t.Parallel()
	api := smallCluster()
	api.Put(service("open", "[]"))
	api.Put(sliceOf("open", ofPod("10.0.0.1", "node0")))
	dir := filepath.Join(t.TempDir(), "state")
	running := func(address string) func(*Config) {
		return func(c *Config) {
			keepingState(dir)(c)
			c.Runtime, c.ReturnGrace = onePod(address), livepods.DefaultReturnGrace
		}
	}
	shows := func(w *wrapper, address string) {
		t.Helper()
		w.expectSoon(http.StatusOK, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/open-1",
			`"addresses":["`+address+`"]`)
	}
	says := func(w *wrapper, readyz, metric string) {
		t.Helper()
		w.expectReadyz(http.StatusOK, readyz)
		w.expectSoon(http.StatusOK, "/metrics", metric, `application_grid_wrapper_runtime_polls_total{result="ok"}`)
	}

	w := start(t, api, running("10.0.0.1"))
	says(w, "[+] cri: ok, ", "application_grid_wrapper_corrected_pods 0")
	shows(w, "10.0.0.1")
	w.expectSnapshot()
	w.end()

	there := make(chan struct{})
	w = start(t, &link{api: api, there: there}, running("10.0.0.9"))
	shows(w, "10.0.0.9")
	says(w, "[+] cri: the upstream is away, ", "application_grid_wrapper_corrected_pods 1")
	w.expect(http.StatusOK, "/debug/explain/default/open", "10.0.0.9", "node node0 runs its pod")
	close(there)
	says(w, "until the API server says the same", "application_grid_wrapper_corrected_pods 1")
	shows(w, "10.0.0.9")
	w.expectSaid("The upstream is away: nodes themselves say")
}

// TestLivePodsDetail: what /readyz says.
func TestLivePodsDetail(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	silent := errors.New("the container runtime does not answer in time")
	for _, test := range []struct {
		status livepods.Status
		want   string
	}{
		{livepods.Status{}, "cri: the container runtime has not been asked yet"},
		{livepods.Status{AsOf: asOf}, "cri: ok, "},
		{
			livepods.Status{AsOf: asOf, Err: silent},
			"would not be known while the upstream is away: " + silent.Error(),
		},
		{
			livepods.Status{Used: true, AsOf: asOf, Corrected: 2},
			"them, 2 of them differently from what the API server said last",
		},
		{
			livepods.Status{Used: true, AsOf: asOf, Err: silent},
			"as of 2026-01-02T03:04:05Z, for it cannot be asked now: ",
		},
		{livepods.Status{Used: true, Returning: true, AsOf: asOf, Corrected: 3}, "cri: 3 of this node's pods"},
		{
			livepods.Status{
				Used: true, AsOf: asOf, Corrected: 1, Reasons: []string{"ns/p: its container c does not run"},
			},
			"said last (ns/p: its container c does not run)",
		},
	} {
		if got := livePodsDetail(test.status); !strings.Contains(got, test.want) {
			t.Errorf("%+v: got %q, want %q", test.status, got, test.want)
		}
	}
}
