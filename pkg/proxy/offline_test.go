package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// link leads to an API once it is there. Until then nothing answers, as where packets are dropped.
type link struct {
	api   http.Handler
	there chan struct{}
}

func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-l.there:
		l.api.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// keepingState lets the wrapper keep a snapshot, and write it at once.
func keepingState(dir string) func(*Config) {
	return func(c *Config) { c.StateDir, c.StateWriteDelay = dir, 10*time.Millisecond }
}

// end stops the wrapper and waits for its end.
func (w *wrapper) end() {
	w.t.Helper()
	w.stop()
	<-w.done
	if w.result != nil {
		w.t.Fatal(w.result)
	}
}

// stateOf is a state directory with a snapshot of smallCluster.
func stateOf(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	w := start(t, smallCluster(), keepingState(dir))
	w.expectReady()
	eventually(t, func() string {
		return missing(w, `application_grid_wrapper_snapshot_writes_total{result="ok"} 1`, "application_grid_wrapper_snapshot_size_bytes")
	})
	w.end()
	return dir
}

func TestServesTheSnapshotWhileTheUpstreamIsAway(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	api := smallCluster()
	gone := &link{api: api, there: make(chan struct{})}
	began := time.Now()
	w := start(t, gone, keepingState(dir))
	if code, body := w.get("/api/v1/services"); code != http.StatusServiceUnavailable {
		t.Errorf("served before the upstream had its chance: %d %s", code, body)
	}
	eventually(t, func() string {
		code, body := w.get("/apis/discovery.k8s.io/v1/endpointslices")
		if code != http.StatusOK || !strings.Contains(body, "10.0.0.1") || strings.Contains(body, "10.0.0.2") {
			return fmt.Sprintf("got %d %s", code, body)
		}
		return ""
	})
	// On a quiet machine this is within 0.1 s of silencePatience; the fault suite holds the real program to 1 s.
	if took := time.Since(began); took < silencePatience || took > 10*time.Second {
		t.Errorf("served after %s", took)
	}
	w.expectReadyz(http.StatusOK, "[+] snapshot: stale", "nodes: not synced")
	if said := missing(w, "application_grid_wrapper_snapshot_served_age_seconds"); said != "" {
		t.Error(said)
	}
	if code, body := w.get("/api/v1/nodes/node0"); code != http.StatusOK || !strings.Contains(body, `"name":"node0"`) {
		t.Errorf("this node: %d %s", code, body)
	}

	// A watch from what is served: nothing but the differences comes when the upstream is back.
	_, body := w.get("/api/v1/services")
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(body), &list); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	watch := w.open(ctx, http.MethodGet, "/api/v1/services?watch=true&resourceVersion="+list.ResourceVersion, "")
	defer watch.Body.Close()
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "young"}})
	close(gone.there)
	var event struct {
		Type   string
		Object metav1.PartialObjectMetadata
	}
	if err := json.NewDecoder(watch.Body).Decode(&event); err != nil || event.Type != "ADDED" || event.Object.Name != "young" {
		t.Errorf("got %+v, %v", event, err)
	}
	eventually(t, func() string {
		if _, body := w.get("/readyz"); strings.Contains(body, "snapshot") {
			return body
		}
		if _, body := w.get("/metrics"); strings.Contains(body, "snapshot_served_age_seconds") {
			return "the age of the snapshot is still told"
		}
		return ""
	})
}

// TestGatewayThatHasLostItsAPIServer: its 404 is no reason to have no Services.
func TestGatewayThatHasLostItsAPIServer(t *testing.T) {
	t.Parallel()
	w := start(t, http.NotFoundHandler(), keepingState(stateOf(t)))
	w.expectReadyz(http.StatusOK, "[+] snapshot: stale", "services: the upstream says that it does not serve it")
	code, body := w.get("/apis/discovery.k8s.io/v1/endpointslices")
	if code != http.StatusOK || !strings.Contains(body, "10.0.0.1") {
		t.Errorf("got %d %s", code, body)
	}
}

// TestSyncsFirst: with the upstream there the snapshot is of no concern.
func TestSyncsFirst(t *testing.T) {
	t.Parallel()
	dir := stateOf(t)
	api := smallCluster()
	api.Delete(service("s", ""))
	w := start(t, api, keepingState(dir))
	for {
		code, body := w.get("/api/v1/services")
		if code == http.StatusServiceUnavailable {
			continue
		}
		if code != http.StatusOK || strings.Contains(body, `"name":"s"`) {
			t.Errorf("got %d %s", code, body)
		}
		return
	}
}

// TestNothingToServe: without a snapshot, or with one that is no good, an empty answer would be a lie.
func TestNothingToServe(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, string){
		"damaged": func(t *testing.T, dir string) {
			t.Helper()
			file := filepath.Join(dir, "snapshot")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"none": func(t *testing.T, dir string) {
			t.Helper()
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		},
		"turned off": nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := stateOf(t)
			if damage != nil {
				damage(t, dir)
			} else {
				dir = ""
			}
			w := start(t, &link{there: make(chan struct{})}, keepingState(dir))
			for end := time.Now().Add(2 * silencePatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if code, body := w.get("/api/v1/services"); code != http.StatusServiceUnavailable {
					t.Fatalf("got %d %s", code, body)
				}
			}
			w.expectReadyz(http.StatusServiceUnavailable, "services: not synced")
		})
	}
}

// TestStateDirThatCannotBeUsed is said, and keeps nobody from being served.
func TestStateDirThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, smallCluster(), keepingState(filepath.Join(file, "state")))
	w.expectReadyz(http.StatusOK, "state-dir: no snapshot can be kept")
	if code, _ := w.get("/api/v1/services"); code != http.StatusOK {
		t.Errorf("got %d", code)
	}
}

// TestCallsFailSoonWhileTheUpstreamIsAway, with a Status that says so; a call that hangs would hold up its
// caller, and pile up here.
func TestCallsFailSoonWhileTheUpstreamIsAway(t *testing.T) {
	t.Parallel()
	// A peer that takes connections and never says a word.
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var silent atomic.Bool
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if !silent.Load() {
				_ = conn.Close() // the sources learn that the upstream is away
				continue
			}
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	w := startBefore(t, "http://"+listener.Addr().String(), nil)
	eventually(t, func() string {
		if w.proxy.upstream.Reachable() {
			return "an upstream that breaks every connection is taken to be there"
		}
		return ""
	})
	silent.Store(true)
	began := time.Now()
	code, body := w.get("/api/v1/namespaces/default/pods", "Authorization", "Bearer somebody")
	if took := time.Since(began); code != http.StatusServiceUnavailable || !strings.Contains(body, `"kind":"Status"`) || took > awayPatience+2*time.Second {
		t.Errorf("after %s: %d %s", took, code, body)
	}
}

// TestRevisionsOfAnEarlierProcess: its clients resume, or are told to list again; they are never left with
// silence, nor with events missing.
func TestRevisionsOfAnEarlierProcess(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	api := smallCluster()
	first := start(t, api, keepingState(dir))
	first.expectReady()
	revision := func(w *wrapper) (revision string) {
		_, body := w.get("/api/v1/services")
		var list metav1.PartialObjectMetadataList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		return list.ResourceVersion
	}
	before := revision(first)
	first.end()
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "young"}})

	second := start(t, api, keepingState(dir))
	second.expectReady()
	if after := revision(second); len(after) < len(before) || (len(after) == len(before) && after <= before) {
		t.Errorf("revisions went from %s to %s", before, after)
	}
	code, body := second.get("/api/v1/services?watch=true&resourceVersion=" + before)
	if code != http.StatusGone && !strings.Contains(body, `"code":410`) {
		t.Errorf("got %d %s", code, body)
	}
}
