package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
)

// link leads to an API once it is there. Until then nothing answers, as where packets are dropped.
type link struct {
	api   http.Handler
	there chan struct{}
}

func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body) // the server notices that a client is gone only after the body
	if err != nil {
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
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
	w := startReady(t, smallCluster(), keepingState(dir))
	w.expectSoon(http.StatusOK, "/api/v1/nodes/node0") // a wrapper is ready before it has its Node
	w.expectSnapshot()
	w.end()
	return dir
}

// expectSnapshot waits until the wrapper has written a snapshot. On a slow machine it writes several.
func (w *wrapper) expectSnapshot() {
	w.t.Helper()
	soon.UntilQuiet(w.t, func() string {
		const series = `application_grid_wrapper_snapshot_writes_total{result="ok"} `
		_, body := w.get("/metrics")
		if strings.Contains(body, series+"0") {
			return "no snapshot is written"
		}
		return lacks("/metrics", body, series, "application_grid_wrapper_snapshot_size_bytes")
	})
}

const (
	services       = "/api/v1/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/endpointslices"
	// longUp and justUp are uptimes of a machine on either side of justBooted.
	longUp = time.Hour
	justUp = time.Minute
)

// uptimeVariable names the test that is to find its machine with another uptime, in the process that runs it so.
const uptimeVariable = "PROXY_TEST_UPTIME"

// onMachineUpFor reports whether the caller is to go on, on a machine that is up for so long. Where it is not, the test
// runs in another process, in a time namespace, whose outcome is this one's.
func onMachineUpFor(t *testing.T, up time.Duration) bool {
	t.Helper()
	right := (uptime() < justBooted) == (up < justBooted)
	if os.Getenv(uptimeVariable) == t.Name() {
		if !right {
			t.Fatalf("in the time namespace the machine is up for %s", uptime())
		}
		return true
	}
	if right && up > justBooted {
		return true
	}
	var pattern []string
	for part := range strings.SplitSeq(t.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(part)+"$")
	}
	offset := strconv.Itoa(int((up - uptime()).Seconds()))
	const unshare = "unshare"
	if output, err := exec.CommandContext(t.Context(), unshare, "--time", "--boottime", offset,
		"true").CombinedOutput(); err != nil {
		t.Skipf("the machine is up for %s, and cannot seem to be up for %s: %v %s", uptime(), up, err, output)
	}
	cmd := exec.CommandContext(t.Context(), unshare, "--time", "--boottime", offset, os.Args[0], "-test.v",
		"-test.run="+strings.Join(pattern, "/"))
	cmd.Env = append(os.Environ(), uptimeVariable+"="+t.Name())
	output, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "--- PASS: "+t.Name()+" ") {
		t.Errorf("on a machine that is up for %s: %v\n%s", up, err, output)
	}
	return false
}

// awayEvidence is more than the time after which an upstream that is silent counts as away, and the snapshot is served.
const awayEvidence = 5 * time.Second

// refusing is an upstream that nothing listens at.
func refusing(t *testing.T) string {
	t.Helper()
	// It is bound, so that nobody else gets the port while the test runs, and does not listen.
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(socket) })
	if err := unix.Bind(socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	address, err := unix.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("http://127.0.0.1:%d", address.(*unix.SockaddrInet4).Port)
}

// connected is an upstream that does with every connection what the function says.
func connected(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go do(conn)
		}
	}()
	return "http://" + listener.Addr().String()
}

// hangUp ends a connection without a word.
func hangUp(conn net.Conn) { _ = conn.Close() }

// sayNothing takes what comes.
func sayNothing(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }

// servesSnapshot says why what stateOf knew is not served.
func (w *wrapper) servesSnapshot() string {
	code, body := w.get(endpointSlices)
	if code != http.StatusOK || !strings.Contains(body, "10.0.0.1") || strings.Contains(body, "10.0.0.2") {
		return fmt.Sprintf("got %d %s", code, body)
	}
	return ""
}

// expectAway waits until the wrapper knows that its upstream is away.
func (w *wrapper) expectAway() {
	w.t.Helper()
	soon.UntilQuiet(w.t, func() string {
		if w.proxy.link.AwayUntil() == nil {
			return "the upstream is taken to be there"
		}
		return ""
	})
}

// expectNothing checks that none of the wrappers serves anything, whatever is asked for, until the time is over.
func expectNothing(t *testing.T, during time.Duration, wrappers map[string]*wrapper) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for name, w := range wrappers {
			for _, path := range []string{
				services, endpointSlices, endpointSlices + "?watch=true", services + "?resourceVersion=0",
				"/api/v1/nodes/node0", "/api/v1/namespaces/default/services/s",
			} {
				r := w.open(t.Context(), http.MethodGet, path, "")
				body, err := io.ReadAll(r.Body)
				_ = r.Body.Close()
				if err != nil || r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" ||
					!strings.Contains(string(body), `"kind":"Status"`) {
					t.Fatalf("%s: %s: got %d %s, %v", name, path, r.StatusCode, body, err)
				}
			}
			if _, body := w.get("/metrics"); strings.Contains(body, "snapshot_served_age_seconds") {
				t.Fatalf("%s: the metrics say that a snapshot is served", name)
			}
			if code, body := w.get("/readyz"); code != http.StatusServiceUnavailable ||
				strings.Contains(body, "snapshot: stale") {
				t.Fatalf("%s: /readyz: %d %s", name, code, body)
			}
		}
	}
}

// TestServesTheSnapshotOnEvidence that the upstream is away, of each kind, and says which it was.
func TestServesTheSnapshotOnEvidence(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		up       time.Duration
		upstream func(*testing.T) string
		reason   string
		// soonest is when the evidence can be complete.
		soonest time.Duration
	}{
		"it refuses connections": {longUp, refusing, "the upstream does not answer", 0},
		// client-go tries again for some seconds before it gives such an upstream up.
		"it breaks connections": {
			longUp, func(t *testing.T) string { t.Helper(); return connected(t, hangUp) }, "the upstream ", 0,
		},
		"it is silent": {
			longUp, func(t *testing.T) string { t.Helper(); return connected(t, sayNothing) },
			"the upstream does not answer", awayPatience,
		},
		// A gateway, or lite-apiserver, without the API server behind it.
		"something says so": {longUp, func(t *testing.T) string {
			t.Helper()
			api := smallCluster()
			api.Behave(upstreamtest.Behaviour{Failing: http.StatusServiceUnavailable})
			server := httptest.NewServer(api)
			t.Cleanup(server.Close)
			return server.URL
		}, "the upstream does not answer", awayPatience},
		"the machine has booted": {
			justUp, func(t *testing.T) string { t.Helper(); return connected(t, sayNothing) },
			"the machine has just booted", bootPatience,
		},
		"the machine has booted, it refuses": {justUp, refusing, "the machine has just booted", bootPatience},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !onMachineUpFor(t, test.up) {
				return
			}
			dir := stateOf(t)
			host := test.upstream(t)
			began := time.Now()
			w := startBefore(t, host, keepingState(dir))
			soon.UntilQuiet(t, w.servesSnapshot)
			if took := time.Since(began); took < test.soonest {
				t.Errorf("served after %s, and the evidence takes %s", took, test.soonest)
			}
			w.expectReadyz(http.StatusOK, "[+] snapshot: stale", "nodes: not synced")
			w.expectSaid("Serving a snapshot", test.reason)
		})
	}
}

// TestWhatIsNoEvidence: an upstream that answers is not away, even if it refuses. Clients wait for its state, and keep
// what they have.
func TestWhatIsNoEvidence(t *testing.T) {
	t.Parallel()
	if !onMachineUpFor(t, longUp) {
		return
	}
	apis, wrappers := map[string]*upstreamtest.API{}, map[string]*wrapper{}
	readyz := map[string]string{}
	for code, says := range map[int]string{
		http.StatusUnauthorized:  "services: the upstream refuses the wrapper, renew ",
		http.StatusForbidden:     "services: the upstream refuses the wrapper, renew ",
		http.StatusNotFound:      "services: the upstream does not serve it",
		http.StatusNotAcceptable: "services: not synced with the upstream yet: the upstream fails",
	} {
		name := fmt.Sprint("it answers ", code)
		apis[name] = smallCluster()
		apis[name].Behave(upstreamtest.Behaviour{Failing: code})
		wrappers[name] = start(t, apis[name], keepingState(stateOf(t)))
		readyz[name] = says
	}
	expectNothing(t, awayEvidence, wrappers)
	for name, w := range wrappers {
		w.expectReadyz(http.StatusServiceUnavailable, readyz[name])
		// And when it lets the wrapper read, its state is served.
		apis[name].Delete(service("s", ""))
		apis[name].Put(service("t", ""))
		apis[name].Behave(upstreamtest.Behaviour{})
	}
	for name, w := range wrappers {
		// A source that was refused for so long asks again after 15 to 30 s.
		await.Patience{Within: time.Minute, Between: 5 * time.Millisecond}.UntilQuiet(t, func() string {
			code, body := w.get("/readyz")
			if code != http.StatusOK {
				return name + ": " + body
			}
			return ""
		})
		if code, body := w.get(services); code != http.StatusOK || strings.Contains(body, `"name":"s"`) ||
			!strings.Contains(body, `"name":"t"`) {
			t.Errorf("%s: got %d %s", name, code, body)
		}
		if said := w.said.String(); strings.Contains(said, "Serving a snapshot") {
			t.Errorf("%s: the log says %s", name, said)
		}
	}
}

// TestAnUpstreamThatIsSlow is not away: its state is waited for, and the first that is served.
func TestAnUpstreamThatIsSlow(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		up   time.Duration
		slow func(w http.ResponseWriter, r *http.Request) http.ResponseWriter
	}{
		"to answer": {longUp, func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter {
			time.Sleep(time.Second)
			return w
		}},
		// The first list of a large cluster over a slow link.
		"with the body": {longUp, func(w http.ResponseWriter, r *http.Request) http.ResponseWriter {
			if r.URL.Query().Get("watch") == "true" {
				return w
			}
			return &slowBody{ResponseWriter: w, until: time.Now().Add(awayEvidence)}
		}},
		"not at all, and the machine has just booted": {
			justUp, func(w http.ResponseWriter, _ *http.Request) http.ResponseWriter { return w },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !onMachineUpFor(t, test.up) {
				return
			}
			dir := stateOf(t)
			api := smallCluster()
			api.Delete(service("s", ""))
			api.Put(service("t", ""))
			w := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				api.ServeHTTP(test.slow(w, r), r)
			}), keepingState(dir))
			soon.UntilQuiet(t, func() string {
				code, body := w.get(services)
				if code == http.StatusServiceUnavailable {
					return body
				}
				if code != http.StatusOK || strings.Contains(body, `"name":"s"`) ||
					!strings.Contains(body, `"name":"t"`) {
					t.Errorf("got %d %s", code, body)
				}
				return ""
			})
			if said := w.said.String(); strings.Contains(said, "Serving a snapshot") {
				t.Error("the log says that a snapshot was served")
			}
		})
	}
}

// slowBody writes the headers at once, and the body little by little until some time.
type slowBody struct {
	http.ResponseWriter

	until time.Time
}

func (s *slowBody) Write(p []byte) (int, error) {
	flusher := http.NewResponseController(s.ResponseWriter)
	// All but the last bytes, and those at the end.
	for i := range p {
		if _, err := s.ResponseWriter.Write(p[i : i+1]); err != nil {
			return i, err
		}
		if err := flusher.Flush(); err != nil {
			return i, err
		}
		if left := len(p) - i; left > 1 && left <= 20 {
			time.Sleep(time.Until(s.until) / time.Duration(left))
		}
	}
	return len(p), nil
}

func (s *slowBody) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// TestServesTheSnapshotWhileTheUpstreamIsAway, and then the differences to what the upstream says when it is back.
func TestServesTheSnapshotWhileTheUpstreamIsAway(t *testing.T) {
	t.Parallel()
	if !onMachineUpFor(t, longUp) {
		return
	}
	dir := stateOf(t)
	api := smallCluster()
	gone := &link{api: api, there: make(chan struct{})}
	began := time.Now()
	w := start(t, gone, keepingState(dir))
	w.expect(http.StatusServiceUnavailable, services)
	soon.UntilQuiet(t, w.servesSnapshot)
	// On a quiet machine this is within 0.1 s of 3 s; the fault suite holds the real program to a bound.
	if took := time.Since(began); took < awayPatience || took > awayPatience+12*time.Second {
		t.Errorf("served after %s", took)
	}
	w.expectReadyz(http.StatusOK, "[+] snapshot: stale", "nodes: not synced")
	w.expect(http.StatusOK, "/metrics", "application_grid_wrapper_snapshot_served_age_seconds")
	w.expect(http.StatusOK, "/api/v1/nodes/node0", `"name":"node0"`)

	// A watch from what is served: nothing but the differences comes when the upstream is back.
	before := w.list(services)
	slicesBefore := w.list(endpointSlices)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	watch := w.open(ctx, http.MethodGet, services+"?watch=true&resourceVersion="+before.ResourceVersion, "")
	defer watch.Body.Close()
	api.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "young"}})
	close(gone.there)
	var event struct {
		Type   string
		Object metav1.PartialObjectMetadata
	}
	if err := json.NewDecoder(watch.Body).Decode(&event); err != nil || event.Type != "ADDED" ||
		event.Object.Name != "young" {
		t.Errorf("got %+v, %v", event, err)
	}
	soon.UntilQuiet(t, func() string {
		if _, body := w.get("/readyz"); strings.Contains(body, "snapshot") {
			return body
		}
		if _, body := w.get("/metrics"); strings.Contains(body, "snapshot_served_age_seconds") {
			return "the age of the snapshot is still told"
		}
		return ""
	})
	// What is as it was has the revision that it had.
	if after := w.list(endpointSlices); after.Items[0].ResourceVersion != slicesBefore.Items[0].ResourceVersion {
		t.Errorf("the slice has the revision %s now, %s before",
			after.Items[0].ResourceVersion, slicesBefore.Items[0].ResourceVersion)
	}
	for _, o := range w.list(services).Items {
		if o.Name == "s" && o.ResourceVersion != before.Items[0].ResourceVersion {
			t.Errorf("the Service has the revision %s now, %s before",
				o.ResourceVersion, before.Items[0].ResourceVersion)
		}
	}
}

func (w *wrapper) list(path string) metav1.PartialObjectMetadataList {
	w.t.Helper()
	code, body := w.get(path)
	var list metav1.PartialObjectMetadataList
	if err := json.Unmarshal([]byte(body), &list); err != nil || code != http.StatusOK {
		w.t.Fatalf("%s: %d %s, %v", path, code, body, err)
	}
	return list
}

// TestGatewayThatHasLostItsAPIServer: its 404 is no reason to have no Services on a node that has just booted; on one
// that has not, nothing is served, see TestWhatIsNoEvidence.
func TestGatewayThatHasLostItsAPIServer(t *testing.T) {
	t.Parallel()
	if !onMachineUpFor(t, justUp) {
		return
	}
	w := start(t, http.NotFoundHandler(), keepingState(stateOf(t)))
	w.expectReadyz(http.StatusOK, "[+] snapshot: stale", "services: the upstream says that it does not serve it")
	if said := w.servesSnapshot(); said != "" {
		t.Error(said)
	}
}

// TestRefusedOnAMachineThatHasJustBooted: the node has its Services, and the log says what is wrong.
func TestRefusedOnAMachineThatHasJustBooted(t *testing.T) {
	t.Parallel()
	if !onMachineUpFor(t, justUp) {
		return
	}
	api := smallCluster()
	api.Behave(upstreamtest.Behaviour{Failing: http.StatusForbidden})
	w := start(t, api, keepingState(stateOf(t)))
	soon.UntilQuiet(t, w.servesSnapshot)
	w.expectReadyz(http.StatusServiceUnavailable, "[+] snapshot: stale",
		"services: the upstream refuses the wrapper, renew ")
	api.Behave(upstreamtest.Behaviour{})
	w.expectReady()
}

// TestNothingToServe: without a snapshot, or with one that is no good, an empty answer would be a lie.
func TestNothingToServe(t *testing.T) {
	t.Parallel()
	wrappers := map[string]*wrapper{}
	for name, damage := range map[string]func(*testing.T, string){
		"damaged": func(t *testing.T, dir string) {
			t.Helper()
			files, err := filepath.Glob(filepath.Join(dir, "store-*"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%q, %v", files, err)
			}
			for _, file := range files { // in the first state of each
				data, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				data[60] ^= 1
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
		},
		"another node's": func(t *testing.T, dir string) {
			t.Helper()
			d, state, _, err := snapshot.Open(snapshot.Options{Path: dir, NodeName: "node0", Logger: logr.Discard()})
			if err == nil {
				state.NodeName = "node1"
				_, err = d.Save(state, 1)
				err = errors.Join(err, d.Close())
			}
			if err != nil {
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
		for what, upstream := range map[string]string{"silent": connected(t, sayNothing), "refuses": refusing(t)} {
			dir := stateOf(t)
			if damage != nil {
				damage(t, dir)
			} else {
				dir = ""
			}
			wrappers[name+", "+what] = startBefore(t, upstream, keepingState(dir))
		}
	}
	// There is evidence that the upstream is away, on any machine, and nothing that it is evidence for.
	expectNothing(t, awayEvidence, wrappers)
	for _, w := range wrappers {
		w.expectReadyz(http.StatusServiceUnavailable, "services: not synced")
	}
}

// TestOneWrapperHasAStateDir. Another one that is given the same one says so, serves the upstream's state, and neither
// serves nor overwrites what the first one keeps there.
func TestOneWrapperHasAStateDir(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	first := startReady(t, smallCluster(), keepingState(dir))
	first.expectSnapshot()

	other := smallCluster()
	other.Put(service("other", ""))
	second := start(t, other, keepingState(dir))
	second.expectReadyz(http.StatusOK,
		"[+] state-dir: no snapshot can be kept: another process uses the state directory", "--state-dir")
	second.expect(http.StatusOK, services, `"name":"other"`)
	if _, body := second.get("/metrics"); strings.Contains(body, "application_grid_wrapper_snapshot_writes_total") {
		t.Error("it has figures of snapshots that it cannot write")
	}
	second.expectSaid("another process uses the state directory")
	third := startBefore(t, refusing(t), keepingState(dir))
	third.expectAway()
	expectNothing(t, time.Second, map[string]*wrapper{"without the directory": third})
	third.end()
	second.end()
	if _, body := first.get("/readyz"); strings.Contains(body, "state-dir") {
		t.Errorf("the first one says %s", body)
	}
	first.end()

	// When it has ended, another one may have it.
	fourth := startBefore(t, refusing(t), keepingState(dir))
	soon.UntilQuiet(t, fourth.servesSnapshot)
	if _, body := fourth.get(services); strings.Contains(body, `"name":"other"`) {
		t.Errorf("the first one's snapshot was overwritten: %s", body)
	}
}

// TestLegacyEndpointsThatNobodyAsksFor are not followed any more, and are there again for whoever asks next.
func TestLegacyEndpointsThatNobodyAsksFor(t *testing.T) {
	t.Parallel()
	const endpoints = "/api/v1/endpoints"
	api := smallCluster()
	api.Put(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one"}})
	w := startReady(t, api, nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	watch := w.open(ctx, http.MethodGet, endpoints+"?watch=true", "")
	defer watch.Body.Close()
	if code, body := w.get(endpoints); code != http.StatusOK || !strings.Contains(body, `"name":"one"`) {
		t.Fatalf("got %d %s", code, body)
	}
	// While a client watches, the time does not pass.
	w.proxy.demand.expire(served.Endpoints)
	w.expect(http.StatusOK, endpoints, `"name":"one"`)
	cancel()
	soon.UntilQuiet(t, func() string {
		w.proxy.demand.mu.Lock()
		defer w.proxy.demand.mu.Unlock()
		if w.proxy.demand.askers[served.Endpoints] > 0 || w.proxy.demand.idle[served.Endpoints] == nil {
			return fmt.Sprintf("%d askers, and nothing that ends the following",
				w.proxy.demand.askers[served.Endpoints])
		}
		return ""
	})
	w.proxy.demand.expire(served.Endpoints)
	w.expectReadyz(http.StatusOK, "endpoints: not followed, no client has asked for it")
	api.Put(&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two"}})
	w.expect(http.StatusOK, endpoints, `"name":"one"`, `"name":"two"`)
}

// TestStateDirThatCannotBeUsed is reported, and clients are served all the same.
func TestStateDirThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t, smallCluster(), keepingState(filepath.Join(file, "state")))
	w.expectReadyz(http.StatusOK, "state-dir: no snapshot can be kept")
	w.expect(http.StatusOK, "/api/v1/services")
}

// TestCallsFailSoonWhileTheUpstreamIsAway, with a Status that says so; a call that hangs would hold up its
// caller, and pile up here.
func TestCallsFailSoonWhileTheUpstreamIsAway(t *testing.T) {
	t.Parallel()
	// A peer that takes connections and never says a word, once the sources know that it is away.
	var silent atomic.Bool
	w := startBefore(t, connected(t, func(conn net.Conn) {
		if silent.Load() {
			sayNothing(conn)
		} else {
			hangUp(conn)
		}
	}), nil)
	w.expectAway()
	silent.Store(true)
	began := time.Now()
	code, body := w.get("/api/v1/namespaces/default/pods", "Authorization", "Bearer somebody")
	if took := time.Since(began); code != http.StatusServiceUnavailable || !strings.Contains(body, `"kind":"Status"`) ||
		took > 5*time.Second {
		t.Errorf("after %s: %d %s", took, code, body)
	}
}

// TestKeptAnswers: a client that is named starts behind a wrapper that was restarted while the upstream is away.
func TestKeptAnswers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keeping := func(c *Config) {
		keepingState(dir)(c)
		c.KeepAnswersFor = []string{"agent"}
	}
	first := startReady(t, smallCluster(), keeping)
	_, want := first.get("/version", "User-Agent", "agent/v1", "Authorization", "Bearer somebody")
	first.end()

	second := startBefore(t, refusing(t), keeping)
	soon.UntilQuiet(t, func() string {
		code, got := second.get("/version", "User-Agent", "agent/v2")
		if code != http.StatusOK || got != want {
			return fmt.Sprintf("got %d %s, want %s", code, got, want)
		}
		return ""
	})
	if code, got := second.get("/version", "User-Agent", "other/v1"); code != http.StatusServiceUnavailable {
		t.Errorf("another client: got %d %s", code, got)
	}
}
