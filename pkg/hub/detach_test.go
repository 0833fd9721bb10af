package hub

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// manyStreams is how many streams wait for events, a hundred to a connection, as kube-apiserver hands them on.
	manyStreams = 200
	// streamsClient names the environment variable of a process of this test that is their client: the URL.
	streamsClient = "HUB_STREAMS_CLIENT"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(streamsClient); url != "" {
		if err := holdStreams(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Sources say why they fail, and here they do so on purpose.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// holdStreams has streams of as many nodes, until its standard input ends. It is a process of its own, so that what it
// takes is not counted.
func holdStreams(url string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	var client *http.Client
	for i := range manyStreams {
		if i%100 == 0 {
			client = &http.Client{Transport: &http.Transport{Protocols: protocols}}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+sharesWatch(i), nil)
		if err != nil {
			return err
		}
		streamHeaders(r)
		response, err := client.Do(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
			return fmt.Errorf("%s: %s", response.Proto, response.Status)
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func sharesWatch(i int) string {
	return hubv1alpha1.SharesPath + "?watch=true&timeoutSeconds=3000&fieldSelector=metadata.name%3Da" + strconv.Itoa(i)
}

func streamHeaders(r *http.Request) {
	r.Header.Set("Test-User", "alice")
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	r.Header.Set("Accept-Encoding", "gzip")
}

// TestAStreamHoldsNoFilters: what waits for the next event holds little stack, because the filters that it came through
// have returned. It still counts as long-running, and ends when its client leaves.
func TestAStreamHoldsNoFilters(t *testing.T) {
	const most = 24 << 10 // 16 to 17 kB with the race detector; with the filters they were 33 kB
	h := startHub(t, true)
	for i := range manyStreams {
		h.hub.facts.Input(facts.InputNodes).Apply(wiretest.Node("a"+strconv.Itoa(i), "a"))
	}
	before := stacksInUse()
	t.Run("streams", func(t *testing.T) {
		connectProcess(t, h)
		expectSoon(t, "all streams count as long-running", func() bool { return longRunning(t, h) == "200" })
		each := (stacksInUse() - before) / manyStreams
		t.Logf("a stream holds %d bytes of stacks", each)
		if each > most {
			t.Errorf("a stream holds %d bytes of stacks, more than %d", each, most)
		}
	})
	expectSoon(t, "no stream counts any more", func() bool { return longRunning(t, h) == "0" })
	expectSoon(t, "all streams are released", func() bool { return h.hub.shares.stats().streams == 0 })
}

// connectProcess lets another process have manyStreams streams until the test ends.
func connectProcess(t *testing.T, h *testHub) {
	t.Helper()
	server := httptest.NewUnstartedServer(h.hub.api.Handler)
	server.Config.Protocols = &http.Protocols{}
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	// It ends with its input.
	client := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0])
	client.Env = append(os.Environ(), streamsClient+"="+server.URL)
	client.Stderr = os.Stderr
	input, err := client.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = input.Close()
		if err := client.Wait(); err != nil {
			t.Errorf("the client: %v", err)
		}
		server.CloseClientConnections()
		server.Close()
	})
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatalf("the client says %q: %v", line, err)
	}
}

// stacksInUse are the bytes of stacks.
func stacksInUse() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.StackInuse)
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
		streamHeaders(r)
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
	stream := ask(sharesWatch(1))
	expectSoon(t, "requests come over other connections", func() bool {
		_, err := io.Copy(io.Discard, ask(hubv1alpha1.SharesPath+"/a1"))
		return err == nil && dialled.Load() > 2
	})
	if _, err := io.ReadFull(stream, make([]byte, 100)); err != nil || h.hub.shares.stats().streams != 1 {
		t.Errorf("the stream ended with its connection: %v", err)
	}
}
