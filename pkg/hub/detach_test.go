package hub

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	genericapiserver "k8s.io/apiserver/pkg/server"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
)

// TestAStreamHoldsNoFilters: what waits for the next event holds little stack, because the filters that it came through
// have returned. It still counts as long-running, and ends when its client leaves.
func TestAStreamHoldsNoFilters(t *testing.T) {
	const most = 24 << 10 // 16 to 17 kB with the race detector; with the filters they were 33 kB
	h := startHub(t, true)
	fillForBench(h.hub.shares)
	before, _ := memoryInUse()
	t.Run("streams", func(t *testing.T) {
		connectOver(startHTTP2, benchTogether)(t, h)
		expectSoon(t, "all streams count as long-running", func() bool { return longRunning(t, h) == "200" })
		after, _ := memoryInUse()
		each := (after - before) / benchWatchers
		t.Logf("a stream holds %d bytes of stacks", each)
		if each > most {
			t.Errorf("a stream holds %d bytes of stacks, more than %d", each, most)
		}
	})
	expectSoon(t, "no stream counts any more", func() bool { return longRunning(t, h) == "0" })
	expectSoon(t, "all streams are released", func() bool { return h.hub.shares.stats().streams == 0 })
}

// longRunning is what the metric of k8s.io/apiserver says of watches of shares.
func longRunning(t *testing.T, h *testHub) string {
	t.Helper()
	for line := range strings.Lines(h.record("/metrics").Body.String()) {
		if strings.HasPrefix(line, "apiserver_longrunning_requests{") && strings.Contains(line, `resource="shares"`) {
			_, value, _ := strings.Cut(line, "} ")
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// TestAWatchIsAudited: the audit log has the answer of a watch that begins, and of one that is refused.
func TestAWatchIsAudited(t *testing.T) {
	audit := auditEverything(t)
	h := startHubWith(t, true, func(config *genericapiserver.Config) error { return audit.ApplyTo(config) })
	for query, code := range map[string]string{
		"watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Da1":      `"code":200`,
		"watch=true&fieldSelector=metadata.name%3Da1&resourceVersion=wrong": `"code":400`,
	} {
		w := h.record(hubv1alpha1.SharesPath+"?"+query, "Accept=application/vnd.kubernetes.protobuf",
			"Accept-Encoding=gzip")
		log, err := os.ReadFile(audit.LogOptions.Path)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, `"stage":"ResponseStarted"`) &&
				strings.Contains(line, strings.ReplaceAll(query, "&", `\u0026`)) {
				found = true
				if !strings.Contains(line, code) || strings.Contains(line, "closed early") {
					t.Errorf("%s: %s", query, line)
				}
			}
		}
		if !found {
			t.Errorf("%s: nothing is audited, and the answer is %d %s", query, w.Code, w.Body)
		}
	}
}

// TestConnectionsMoveOn: an answer may be the last one of its connection, so that the next request comes to any
// replica. A stream that began on that connection goes on.
func TestConnectionsMoveOn(t *testing.T) {
	t.Parallel()
	h := startHubWith(t, true, func(config *genericapiserver.Config) error {
		if config.GoawayChance <= 0 || config.GoawayChance > 0.02 {
			t.Errorf("an answer is the last one of its connection with a chance of %v", config.GoawayChance)
		}
		config.SecureServing, config.GoawayChance = &genericapiserver.SecureServingInfo{}, 1
		return nil
	})
	expectSoon(t, "the hub follows", func() bool { return h.hub.checkCurrent() == nil })
	var dialled atomic.Int64
	protocols := &http.Protocols{}
	protocols.SetHTTP2(true)
	transport := &http.Transport{
		Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialled.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
	t.Cleanup(transport.CloseIdleConnections)
	ask := func(path string) (body io.Reader) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		benchHeaders(r)
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { response.Body.Close() })
		if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
			t.Fatalf("%s: %s %s", path, response.Proto, response.Status)
		}
		return response.Body
	}
	stream := ask(benchWatch(1))
	expectSoon(t, "requests come over other connections", func() bool {
		_, err := io.Copy(io.Discard, ask(hubv1alpha1.SharesPath+"/a1"))
		return err == nil && dialled.Load() > 2
	})
	if _, err := io.ReadFull(stream, make([]byte, 100)); err != nil || h.hub.shares.stats().streams != 1 {
		t.Errorf("the stream ended with its connection: %v", err)
	}
}
