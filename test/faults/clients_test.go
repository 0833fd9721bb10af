package faults

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// slowWatchers read nothing of what they asked for.
	slowWatchers = 200
	// noise is the size of an event that they do not read, in bytes, and noiseInterval the time between two.
	noise         = 8 << 10
	noiseInterval = 20 * time.Millisecond
	// latencyBound is how much later than directly a watcher may hear of an event, in the 99th percentile.
	latencyBound = 500 * time.Millisecond
	// growthBound is how much the wrapper may take for them, in MiB.
	growthBound = 72

	// connectRate is how many watches are begun per second.
	connectRate = 2000
	// pace is the time between two bytes of a client that sends one by one.
	pace = 20 * time.Millisecond
)

// The clients' faults are not inflicted beside others: they are about the time that things take.
func TestClients(t *testing.T) {
	for _, f := range []fault{
		slowWatching(),
		loading(fmt.Sprintf("%d watch connects per second", connectRate),
			func(s *site) { s.connectWatches(forms(3*time.Second, 20*time.Second)) }),
		loading("requests sent byte by byte", (*site).sendByteByByte),
	} {
		t.Run(f.name, f.run)
	}
}

// loading is a fault that is what clients do, while the cloud changes.
func loading(name string, load func(*site)) fault {
	done := make(chan struct{})
	return fault{
		name: name, bound: deadline,
		inflict: func(s *site) {
			go func() {
				defer close(done)
				load(s)
			}()
			s.Cleanup(func() { <-done }) // also if the test fails before
		},
		relieve: func(*site) { <-done },
	}
}

// dial opens a connection to the wrapper from its node.
func (s *site) dial(ctx context.Context) (net.Conn, error) {
	return s.node.WrapperConfig(cluster.RoleKubeProxy).Dial(ctx, "tcp",
		strings.TrimPrefix(s.node.WrapperURL(), "http://"))
}

func slowWatching() fault {
	var open []net.Conn
	lasting := forms(8*time.Second, time.Minute)
	return fault{
		name: fmt.Sprintf("%d slow watchers", slowWatchers), bound: deadline,
		inflict: func(s *site) {
			before := s.level()
			quiet := s.latencies(lasting / 2)
			for range slowWatchers {
				conn, err := s.dial(s.ctx)
				s.Must(err)
				open = append(open, conn)
				s.Must(conn.(*net.TCPConn).SetReadBuffer(4 << 10))
				_, err = io.WriteString(conn,
					"GET /api/v1/services?watch=true&allowWatchBookmarks=true HTTP/1.1\r\nHost: localhost\r\n"+
						"Accept: application/vnd.kubernetes.protobuf\r\n\r\n")
				s.Must(err)
			}
			slow := s.latencies(lasting)
			during := s.level()
			s.Logf("latency of an event, beyond that of a direct watch: p50 %s, p99 %s without; p50 %s, p99 %s with %d slow watchers; memory %.1f MiB, then %.1f",
				percentile(quiet, 50), percentile(quiet, 99), percentile(slow, 50), percentile(slow, 99), slowWatchers,
				before.resident, during.resident)
			if p99 := percentile(slow, 99); p99 > latencyBound {
				s.Errorf("slow watchers delay the others: p99 %s, more than %s", p99, latencyBound)
			}
			if grown := during.resident - before.resident; grown > growthBound {
				s.Errorf("slow watchers take %.1f MiB, more than %d", grown, growthBound)
			}
		},
		relieve: func(*site) {
			for _, conn := range open {
				conn.Close()
			}
		},
	}
}

func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)-1)*p/100].Round(10 * time.Microsecond)
}

// latencies changes a Service over and over for so long, and returns, in order, how much later a watcher through the
// wrapper hears of each change than one that asks kube-apiserver.
func (s *site) latencies(lasting time.Duration) []time.Duration {
	s.Helper()
	through, err := kubernetes.NewForConfig(s.node.WrapperConfig(cluster.RoleKubeProxy))
	s.Must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	var mu sync.Mutex
	heard := map[string][2]time.Time{} // by stamp: directly, through the wrapper
	for i, client := range []kubernetes.Interface{shared.Client(), through} {
		w, err := client.CoreV1().Services(namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("metadata.name", s.canary.Name).String(),
		})
		s.Must(err)
		defer w.Stop()
		go func() {
			for event := range w.ResultChan() {
				if event.Type != watch.Modified {
					continue
				}
				object := event.Object.(metav1.Object)
				stamp, _, _ := strings.Cut(object.GetAnnotations()["stamp"], " ")
				mu.Lock()
				times := heard[stamp]
				times[i] = time.Now()
				heard[stamp] = times
				mu.Unlock()
			}
		}()
	}
	changed := 0
	for begin := time.Now(); time.Since(begin) < lasting; changed++ {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"stamp":"%d-%d %s"}}}`, begin.UnixNano(), changed,
			strings.Repeat("x", noise))
		_, err := shared.Client().CoreV1().Services(namespace).Patch(ctx, s.canary.Name, types.MergePatchType,
			[]byte(patch), metav1.PatchOptions{})
		s.Must(err)
		time.Sleep(noiseInterval)
	}
	var late []time.Duration
	s.Eventually("all changes are heard of", func() error {
		mu.Lock()
		defer mu.Unlock()
		late = late[:0]
		for _, times := range heard {
			if !times[0].IsZero() && !times[1].IsZero() {
				late = append(late, times[1].Sub(times[0]))
			}
		}
		if len(late) < changed {
			return fmt.Errorf("%d of %d", len(late), changed)
		}
		return nil
	})
	slices.Sort(late)
	return late
}

// connectWatches begins watches at connectRate for so long, each on a connection of its own that is closed when the
// first line of the answer is there.
func (s *site) connectWatches(lasting time.Duration) {
	s.Helper()
	const atOnce = 64
	var refused, begun atomic.Int64
	var first atomic.Value
	tickets := make(chan struct{}, atOnce)
	var clients sync.WaitGroup
	for range atOnce {
		clients.Go(func() {
			for range tickets {
				if err := s.beginWatch(); err != nil {
					refused.Add(1)
					first.CompareAndSwap(nil, err.Error())
				}
				begun.Add(1)
			}
		})
	}
	begin := time.Now()
	for sent := 0; time.Since(begin) < lasting; {
		for due := int(time.Since(begin).Seconds() * connectRate); sent < due; sent++ {
			tickets <- struct{}{}
		}
		time.Sleep(time.Millisecond)
	}
	close(tickets)
	clients.Wait()
	s.Logf("%d watches were begun in %s, %.0f per second; %d got no answer", begun.Load(),
		time.Since(begin).Round(time.Millisecond),
		float64(begun.Load())/time.Since(begin).Seconds(), refused.Load())
	if refused.Load() > 0 {
		s.lose("%d watches", refused.Load())
		s.Errorf("%d of %d watches were not answered, the first: %v", refused.Load(), begun.Load(), first.Load())
	}
}

func (s *site) beginWatch() error {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, "GET /apis/discovery.k8s.io/v1/endpointslices?watch=true HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if !strings.HasPrefix(line, "HTTP/1.1 200 ") {
		return fmt.Errorf("answered %q", line)
	}
	return nil
}

// sendByteByByte sends requests one byte at a time, many at once: some whose header is slow, some whose body is. They
// are answered like any other.
func (s *site) sendByteByByte() {
	s.Helper()
	const each = 20
	body := `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
	header := func(lines ...string) string { return strings.Join(lines, "\r\n") + "\r\n\r\n" }
	token := "Authorization: Bearer " + shared.Token(cluster.RoleKubeProxy)
	requests := []struct {
		quick, slow string
		want        int
	}{
		{"", header("GET /api/v1/services HTTP/1.1", "Host: localhost", "Connection: close"), http.StatusOK},
		{header("POST /apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1", "Host: localhost",
			"Connection: close",
			"Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)), token), body,
			http.StatusCreated},
	}
	var clients sync.WaitGroup
	failures := make(chan error, each*len(requests))
	for _, request := range requests {
		for range each {
			clients.Go(func() {
				if err := s.sendSlowly(request.quick, request.slow, request.want); err != nil {
					failures <- err
				}
			})
		}
	}
	clients.Wait()
	close(failures)
	var all []error
	for err := range failures {
		all = append(all, err)
	}
	if len(all) > 0 {
		s.lose("%d slow requests", len(all))
		s.Errorf("%d of %d slow requests failed: %v", len(all), each*len(requests), errors.Join(all...))
	}
}

func (s *site) sendSlowly(quick, slow string, want int) error {
	conn, err := s.dial(s.ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		return err
	}
	if _, err := io.WriteString(conn, quick); err != nil {
		return err
	}
	for _, b := range []byte(slow) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return err
		}
		time.Sleep(pace)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(response.Body); err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("status %d, not %d: %s", response.StatusCode, want, answer.String())
	}
	return nil
}
