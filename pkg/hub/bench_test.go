package hub

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	// benchWatchers is how many streams a change goes to.
	benchWatchers = 200
	// benchTogether is how many streams kube-apiserver hands on over one connection.
	benchTogether = 100
	// benchClient and benchStreams name the environment variables of a process of this test that is a client: the URL,
	// and how many streams a connection has.
	benchClient  = "HUB_BENCH_CLIENT"
	benchStreams = "HUB_BENCH_STREAMS"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(benchClient); url != "" {
		if err := runBenchClient(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Sources say why they fail, and here they do so on purpose.
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// runBenchClient has benchWatchers streams of slices of as many nodes, which it reads until its standard input ends. It
// is a process of its own, so that what it takes is not counted.
func runBenchClient(url string) error {
	together, err := strconv.Atoi(os.Getenv(benchStreams))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var client *http.Client
	for i := range benchWatchers {
		if i%together == 0 {
			protocols := &http.Protocols{}
			protocols.SetHTTP2(true)
			protocols.SetUnencryptedHTTP2(true)
			client = &http.Client{Transport: &http.Transport{
				Protocols: protocols, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			}}
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+benchWatch(i), nil)
		if err != nil {
			return err
		}
		benchHeaders(r)
		response, err := client.Do(r) //nolint:bodyclose // below, when the stream ends
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
			return fmt.Errorf("%s: %s", response.Proto, response.Status)
		}
		go func() {
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		}()
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func benchWatch(i int) string {
	return hubv1alpha1.SharesPath + "?watch=true&timeoutSeconds=3000&fieldSelector=metadata.name%3Da" + strconv.Itoa(i)
}

func benchHeaders(r *http.Request) {
	r.Header.Set("Test-User", "alice")
	r.Header.Set("Accept", "application/vnd.kubernetes.protobuf")
	r.Header.Set("Accept-Encoding", "gzip")
}

// benchObserver counts the events that were sent.
type benchObserver struct {
	serve.Observer

	started, sent atomic.Int64
	// all is told when every stream was sent the events of a change.
	all chan struct{}
}

func (o *benchObserver) WatchStarted(resource string) (ended func()) {
	o.started.Add(1)
	return o.Observer.WatchStarted(resource)
}

func (o *benchObserver) EventSent(resource string, delay time.Duration) {
	o.Observer.EventSent(resource, delay)
	if o.sent.Add(1)%benchWatchers == 0 {
		o.all <- struct{}{}
	}
}

// discard is a response that goes nowhere.
type discard struct{ header http.Header }

func (d discard) Header() http.Header { return d.header }

func (d discard) WriteHeader(int) {}

func (d discard) Write(p []byte) (int, error) { return len(p), nil }

func (d discard) Flush() {}

// BenchmarkEvent is one change of one endpoint, until each of 200 nodes of its site was sent its event through the
// whole chain of filters. The metric cpu-ns/event is the processor time of this process for an event, with a 200th of
// the change. Through "handler" nothing is sent; "http2" sends over the loopback to another process, a hundred streams
// a connection, and "tls" encrypts that. With "tls-alone" each stream has a connection, so that each event is a TLS
// record and a system call: that is what an event costs a hub whose classes are small and many.
func BenchmarkEvent(b *testing.B) {
	for _, way := range []struct {
		name    string
		connect func(tb testing.TB, h *testHub)
	}{
		{"handler", connectHandler},
		{"http2", connectOver(startHTTP2, benchTogether)},
		{"tls", connectOver(startTLS, benchTogether)},
		{"tls-alone", connectOver(startTLS, 1)},
	} {
		b.Run(way.name, func(b *testing.B) {
			h := startHub(b, true)
			fillForBench(h.hub.shares)
			observer := &benchObserver{Observer: h.hub.metrics, all: make(chan struct{}, 1)}
			stacksBefore, heapBefore := memoryInUse()
			h.hub.writer.Observer = observer
			way.connect(b, h)
			expectSoon(b, "all streams have begun", func() bool { return observer.started.Load() == benchWatchers })
			input := h.hub.facts.Input(facts.InputEndpointSlices)
			version := 0
			change := func() {
				version++
				input.Apply(benchSlice(version))
				<-observer.all
			}
			change()
			stacks, heap := memoryInUse()
			b.ReportAllocs()
			begin := processorTime(b)
			for b.Loop() {
				change()
			}
			took := processorTime(b) - begin
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N*benchWatchers), "cpu-ns/event")
			b.ReportMetric(float64(stacks-stacksBefore)/benchWatchers, "stack-B/stream")
			b.ReportMetric(float64(heap-heapBefore)/benchWatchers, "heap-B/stream")
		})
	}
}

// fillForBench makes nodes of two sites, and a Service with a slice on both.
func fillForBench(s *shares) {
	f := s.source
	var nodes []*wire.Object
	for i := range benchWatchers {
		for _, site := range []string{"a", "b"} {
			nodes = append(nodes, wiretest.Node(site+strconv.Itoa(i), site))
		}
	}
	f.Input(facts.InputNodes).Replace(nodes)
	f.Input(facts.InputServices).Replace([]*wire.Object{wiretest.Service("strict", `["zone"]`)})
	f.Input(facts.InputEndpointSlices).Replace([]*wire.Object{benchSlice(0)})
}

// benchSlice has 50 endpoints, two of them in site a, of which one changes with every version.
func benchSlice(version int) *wire.Object {
	slice := wiretest.SliceOf("strict-1", "strict")
	for i := range 50 {
		site := "b"
		if i < 2 {
			site = "a"
		}
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.0.1.%d", i+1)},
			NodeName:   ptr.To(site + strconv.Itoa(i)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(i > 0 || version%2 == 0)},
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: "ns", Name: fmt.Sprintf("strict-%d", i), UID: types.UID(strconv.Itoa(i)),
			},
		})
	}
	return wiretest.Object(slice)
}

func connectHandler(tb testing.TB, h *testHub) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	var running sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for i := range benchWatchers {
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, benchWatch(i), nil)
		benchHeaders(r)
		running.Go(func() { h.hub.api.Handler.ServeHTTP(discard{http.Header{}}, r) })
	}
}

// connectOver lets another process connect to a server that start starts, with so many streams a connection.
func connectOver(start func(*testHub) *httptest.Server, together int) func(testing.TB, *testHub) {
	return func(tb testing.TB, h *testHub) {
		tb.Helper()
		connectProcess(tb, start(h), together)
	}
}

func startHTTP2(h *testHub) *httptest.Server {
	protocols := &http.Protocols{}
	protocols.SetUnencryptedHTTP2(true)
	server := httptest.NewUnstartedServer(h.hub.api.Handler)
	server.Config.Protocols = protocols
	server.Start()
	return server
}

func startTLS(h *testHub) *httptest.Server {
	server := httptest.NewUnstartedServer(h.hub.api.Handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	return server
}

// connectProcess lets another process connect to a server that was started, with so many streams a connection.
func connectProcess(tb testing.TB, server *httptest.Server, together int) {
	tb.Helper()
	// It ends with its input, when the benchmark is over.
	client := exec.CommandContext(context.WithoutCancel(tb.Context()), os.Args[0])
	client.Env = append(os.Environ(), benchClient+"="+server.URL, benchStreams+"="+strconv.Itoa(together))
	client.Stderr = os.Stderr
	input, err := client.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	output, err := client.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := client.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = input.Close()
		if err := client.Wait(); err != nil {
			tb.Errorf("the client: %v", err)
		}
		server.CloseClientConnections()
		server.Close()
	})
	if line, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		tb.Fatalf("the client says %q: %v", line, err)
	}
}

// memoryInUse are the bytes of stacks, and those of the heap that are still needed.
func memoryInUse() (stacks, heap int64) {
	runtime.GC()
	runtime.GC() // it frees what the first one has found in pools
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.StackInuse), int64(stats.HeapAlloc)
}

func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkRelabel moves a node from site to site, each of which has endpoints of every second of 1,000 Services.
func BenchmarkRelabel(b *testing.B) {
	const nodes, zones, services = 1000, 100, 1000
	all := make(map[string]string, services)
	var slices []*wire.Object
	for i := range services {
		name := fmt.Sprintf("svc-%04d", i)
		all[name] = `["zone"]`
		var in []int
		for j := range 50 {
			in = append(in, (i*17+j*7)%nodes)
		}
		slices = append(slices, boundsSlice(name, name, 0, in...))
	}
	w := newBoundsWorld(boundsNodes(nodes, func(i int) int { return i % zones }), all, slices...)
	streams := make([]*stream, nodes)
	for i := range streams {
		streams[i] = w.stream(b, i, nil)
		drain(b, streams[i])
	}
	b.ReportAllocs()
	moves, sent := 0, 0
	for b.Loop() {
		moves++
		w.nodes.Apply(boundsNode(0, moves%zones, 0))
		sent += drain(b, streams[0])
	}
	b.ReportMetric(float64(sent)/float64(moves), "B/relabel")
}
