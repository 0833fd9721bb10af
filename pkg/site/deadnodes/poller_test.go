package deadnodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/application-grid/application-grid/pkg/program/await"
)

// soon is what tests wait with for another goroutine.
var soon = await.Patience{Within: patience, Between: time.Millisecond}

const (
	patience = 20 * time.Second
	interval = 30 * time.Second
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// service is a health service that answers what the test says.
type service struct {
	mu      sync.Mutex
	handler http.HandlerFunc
	polls   int
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	handler := s.handler
	s.polls++
	s.mu.Unlock()
	handler(w, r)
}

func (s *service) answer(handler http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = handler
}

func (s *service) says(body string) { s.answer(body200(body)) }

func (s *service) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.polls
}

func body200(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// nodes is the Store as a Poller sees it.
type nodes struct {
	mu        sync.Mutex
	existing  []string
	addresses map[netip.Addr]string
	dead      string
	sets      int
}

func (n *nodes) SetDeadNodes(names map[string]struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dead = strings.Join(slices.Sorted(maps.Keys(names)), " ")
	n.sets++
}

func (n *nodes) NodeExists(name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.existing, name)
}

func (n *nodes) NodeAddresses() map[netip.Addr]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.addresses)
}

func (n *nodes) state() (dead string, sets int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead, n.sets
}

// fixture is a Poller at work on a service of its own.
type fixture struct {
	t       *testing.T
	service *service
	server  *httptest.Server
	nodes   *nodes
	clock   *clocktesting.FakeClock
	poller  *Poller
	stop    func()

	mu      sync.Mutex
	results map[string]int
	total   int
}

// PollDone implements Observer.
func (f *fixture) PollDone(result string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.results[result]++
	f.total++
}

func (f *fixture) done() (total int, results map[string]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.total, maps.Clone(f.results)
}

// start runs a Poller whose service first says body. configure may be nil.
func start(t *testing.T, body string, configure func(*fixture, *Config)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, service: &service{handler: body200(body)}, nodes: &nodes{},
		clock: clocktesting.NewFakeClock(time.Unix(1800000000, 0)), results: map[string]int{},
	}
	f.server = httptest.NewServer(f.service)
	config := Config{
		Options: Options{Address: f.server.URL + "/localinfo", Interval: interval}, NodeName: "here", Nodes: f.nodes,
		Clock: f.clock, Observer: f,
		ListAddresses: func(context.Context) (bool, error) { return false, nil },
	}
	if configure != nil {
		configure(f, &config)
	}
	var err error
	if f.poller, err = New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.poller.Run(ctx)
	}()
	f.stop = func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Run does not return when its context ends")
		}
	}
	t.Cleanup(func() {
		f.stop()
		f.server.CloseClientConnections()
		f.server.Close()
	})
	return f
}

func (f *fixture) eventually(complain func() string) {
	f.t.Helper()
	soon.UntilQuiet(f.t, complain)
}

// expect waits until this many polls are done, and for the nodes that are then dead.
func (f *fixture) expect(polls int, dead string) {
	f.t.Helper()
	f.eventually(func() string {
		total, results := f.done()
		if got, _ := f.nodes.state(); got != dead || total != polls {
			return fmt.Sprintf("dead are %q after %d polls (%v), want %q after %d", got, total, results, dead, polls)
		}
		return ""
	})
}

// next lets the next poll begin.
func (f *fixture) next() { f.clock.Step(interval) }

func (f *fixture) expectStatus(dead []string, err string) {
	f.t.Helper()
	f.eventually(func() string {
		got := f.poller.Status()
		if !slices.Equal(got.Dead, dead) || (got.Err == nil) != (err == "") ||
			(err != "" && !strings.Contains(got.Err.Error(), err)) {
			return fmt.Sprintf("the status is %+v, want %v dead, error %q", got, dead, err)
		}
		return ""
	})
}

const twoDead = `{"a":{"normal":false},"b":{"normal":false},"c":{"normal":true}}`

// TestAnswers: what each answer hides, and that whatever is no good answer hides nothing at once.
func TestAnswers(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		b.WriteString(`{"a":{"normal":false}`)
		for i := range n {
			fmt.Fprintf(&b, `,"node-with-a-name-%d":{"normal":true}`, i)
		}
		return b.String() + "}"
	}
	tests := []struct {
		name    string
		handler http.HandlerFunc
		dead    string
		result  string
		err     string
	}{
		{"two are dead", body200(twoDead), "a b", "ok", ""},
		{"another is", body200(`{"a":{"normal":true},"c":{"normal":false}}`), "c", "ok", ""},
		{"all live", body200(`{"a":{"normal":true},"b":{"normal":true}}`), "", "ok", ""},
		{"no node", body200(`{}`), "", "ok", ""},
		{"white space", body200(" \n{\"a\" : {\"normal\" : false}}\n"), "a", "ok", ""},
		{"no field normal", body200(`{"a":{},"b":{"ready":false},"c":{"normal":false}}`), "c", "ok", ""},
		{"null", body200(`{"a":{"normal":null},"b":null,"c":{"normal":false}}`), "c", "ok", ""},
		{"other fields", body200(`{"a":{"normal":false,"time":"now","checks":[{"normal":true}]}}`), "a", "ok", ""},
		{"this node", body200(`{"here":{"normal":false},"a":{"normal":false}}`), "a", "ok", ""},
		{"a large answer", body200(many(10000)), "a", "ok", ""},
		{"another success", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, twoDead)
		}, "", "status", "202"},
		{
			"a failure",
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, twoDead, http.StatusInternalServerError) }, "",
			"status", "500",
		},
		{
			"a redirect",
			func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) }, "",
			"status", "302",
		},
		{"nothing", body200(""), "", "invalid", "JSON"},
		{"no JSON", body200("<html>"), "", "invalid", "JSON"},
		{"half an answer", body200(twoDead[:len(twoDead)-2]), "", "invalid", "JSON"},
		{"more than an answer", body200(twoDead + "{}"), "", "invalid", "JSON"},
		{"an array", body200(`[{"normal":false}]`), "", "invalid", "JSON"},
		{"null alone", body200(`null`), "", "invalid", "null"},
		{"a string for a bool", body200(`{"a":{"normal":"false"},"b":{"normal":false}}`), "", "invalid", "JSON"},
		{"a number for a bool", body200(`{"a":{"normal":0}}`), "", "invalid", "JSON"},
		{"no object", body200(`{"a":false}`), "", "invalid", "JSON"},
		{"too large an answer", body200(many(40000)), "", "invalid", "1048576"},
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, "{")
			for err == nil {
				_, err = io.WriteString(w, strings.Repeat(" ", 1<<16))
			}
		}, "", "invalid", "1048576"},
		{"a broken answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, twoDead)
		}, "", "unreachable", "reading"},
		{
			"a broken connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "",
			"unreachable", "EOF",
		},
	}
	f := start(t, twoDead, nil)
	polls := 1
	f.expect(polls, "a b")
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f.t = t
			_, before := f.done()
			f.service.answer(test.handler)
			f.next()
			polls++
			f.expect(polls, test.dead)
			f.expectStatus(strings.Fields(test.dead), test.err)
			if _, after := f.done(); after[test.result] != before[test.result]+1 {
				t.Errorf("no poll more is counted as %s: %v, before %v", test.result, after, before)
			}
			// Recovering hides again at the next answer.
			f.service.says(twoDead)
			f.next()
			polls++
			f.expect(polls, "a b")
			f.expectStatus([]string{"a", "b"}, "")
		})
	}
}

// TestTheFirstPollIsAtOnce, and then there is one per interval, and the Store gets only changes.
func TestTheFirstPollIsAtOnce(t *testing.T) {
	f := start(t, twoDead, nil)
	f.expect(1, "a b")
	for i := range 5 {
		f.clock.Step(interval - time.Second)
		f.clock.Step(time.Second)
		f.expect(i+2, "a b")
	}
	if _, sets := f.nodes.state(); sets != 1 {
		t.Errorf("the Store was told %d times", sets)
	}
	if got := f.service.asked(); got != 6 {
		t.Errorf("%d requests", got)
	}
}

func TestAServiceThatIsAway(t *testing.T) {
	f := start(t, twoDead, nil)
	f.expect(1, "a b")
	f.server.Close()
	f.next()
	f.expect(2, "")
	f.expectStatus(nil, "refused")
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// endless is a body that begins, and goes on until its request is cancelled.
type endless struct {
	begin io.Reader
	ctx   context.Context
}

func (b endless) Read(p []byte) (int, error) {
	if n, _ := b.begin.Read(p); n > 0 {
		return n, nil
	}
	<-b.ctx.Done()
	return 0, b.ctx.Err()
}

func (endless) Close() error { return nil }

// TestASlowAnswerIsNone: the limit is below the interval, also for an answer that begins and does not end.
func TestASlowAnswerIsNone(t *testing.T) {
	answer := func(body io.Reader) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(body)}, nil
	}
	for name, slow := range map[string]roundTrip{
		"no answer": func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done()
			return nil, r.Context().Err()
		},
		"an answer that does not end": func(r *http.Request) (*http.Response, error) {
			return answer(endless{strings.NewReader(`{"a":`), r.Context()})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var isSlow atomic.Bool
				f := &fixture{t: t, nodes: &nodes{}, results: map[string]int{}}
				poller, err := New(Config{
					Options:  Options{Address: "http://127.0.0.1:1/localinfo", Interval: interval},
					NodeName: "here", Nodes: f.nodes, Observer: f,
					Client: &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
						if isSlow.Load() {
							return slow(r)
						}
						return answer(strings.NewReader(twoDead))
					})},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					poller.Run(ctx)
				}()
				after := func(d time.Duration, polls int, want string) {
					t.Helper()
					time.Sleep(d)
					synctest.Wait()
					total, _ := f.done()
					if dead, _ := f.nodes.state(); dead != want || total != polls {
						t.Errorf("dead are %q after %d polls, want %q after %d", dead, total, want, polls)
					}
				}
				after(0, 1, "a b")
				isSlow.Store(true)
				after(interval+maxWait-time.Millisecond, 1, "a b")
				after(time.Millisecond, 2, "")
				if err := poller.Status().Err; err == nil || !strings.Contains(err.Error(), "in time") {
					t.Errorf("the status says %v", err)
				}
				// The service is asked again, and its answer counts.
				isSlow.Store(false)
				after(interval-maxWait, 3, "a b")
				if _, results := f.done(); results[resultTimeout] != 1 || results[resultOK] != 2 {
					t.Errorf("counted: %v", results)
				}
				cancel()
				<-ended
			})
		})
	}
}

func unless(ok bool, said string) string {
	if ok {
		return ""
	}
	return said
}

// lister is a ListAddresses of tests.
type lister struct {
	nodes *nodes
	mu    sync.Mutex
	calls int
	hold  chan struct{}
	finds map[netip.Addr]string
	err   error
}

func (l *lister) list(ctx context.Context) (bool, error) {
	l.mu.Lock()
	l.calls++
	hold, finds, err := l.hold, l.finds, l.err
	l.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	if finds == nil || err != nil {
		return false, err
	}
	l.nodes.mu.Lock()
	defer l.nodes.mu.Unlock()
	l.nodes.addresses = finds
	return true, nil
}

func (l *lister) called() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls
}

// TestKeysThatAreAddresses: by value, of both families, once they are known.
func TestKeysThatAreAddresses(t *testing.T) {
	known := map[netip.Addr]string{
		netip.MustParseAddr("10.0.0.1"): "a", netip.MustParseAddr("fd00::1"): "b",
		netip.MustParseAddr("10.0.0.9"): "here", netip.MustParseAddr("fd00::9"): "here",
	}
	for _, test := range []struct{ key, dead, unknown string }{
		{"10.0.0.1", "a", ""},
		{"::ffff:10.0.0.1", "a", ""},
		{"::FFFF:0a00:0001", "a", ""},
		{"fd00::1", "b", ""},
		{"FD00:0:0:0:0:0:0:1", "b", ""},
		{"10.0.0.9", "", ""},
		{"fd00::9", "", ""},
		{"10.0.0.2", "", "10.0.0.2"},
		{"fd00::2", "", "fd00::2"},
		{"fe80::1%eth0", "fe80::1%eth0", ""},
		{"10.0.0", "10.0.0", ""},
		{"10.0.0.77", "10.0.0.77", ""}, // the name of a node
	} {
		t.Run(test.key, func(t *testing.T) {
			l := &lister{}
			f := start(t, fmt.Sprintf(`{%q:{"normal":false}}`, test.key), func(f *fixture, c *Config) {
				f.nodes.addresses, f.nodes.existing, l.nodes = known, []string{"10.0.0.77"}, f.nodes
				c.ListAddresses = l.list
			})
			f.expect(1, test.dead)
			f.eventually(func() string {
				return unless(strings.Join(f.poller.Status().UnknownAddresses, " ") == test.unknown,
					"unknown addresses: "+fmt.Sprint(f.poller.Status()))
			})
			f.eventually(func() string {
				return unless((l.called() == 1) == (test.unknown != ""), "asked for addresses: "+fmt.Sprint(l.called()))
			})
		})
	}
}

// TestAddressesAreAskedForOffThePoll: polls go on meanwhile, one list at a time, and what it finds counts at once.
func TestAddressesAreAskedForOffThePoll(t *testing.T) {
	hold := make(chan struct{})
	l := &lister{
		hold:  hold,
		finds: map[netip.Addr]string{netip.MustParseAddr("10.0.0.1"): "a", netip.MustParseAddr("10.0.0.2"): "b"},
	}
	const body = `{"10.0.0.1":{"normal":false},"10.0.0.2":{"normal":true},"c":{"normal":false}}`
	f := start(t, body, func(f *fixture, c *Config) {
		l.nodes = f.nodes
		c.ListAddresses = l.list
	})
	f.expect(1, "c")
	f.next()
	f.expect(2, "c")
	if n := l.called(); n != 1 {
		t.Errorf("%d lists at once", n)
	}
	close(hold)
	f.expect(2, "a c")
	f.next()
	f.expect(3, "a c")
	if n := l.called(); n != 1 || len(f.poller.Status().UnknownAddresses) > 0 {
		t.Errorf("%d lists, unknown %v", n, f.poller.Status().UnknownAddresses)
	}
}

// TestAddressesThatCannotBeListed: the key hides nothing, the others do, and the next poll asks again.
func TestAddressesThatCannotBeListed(t *testing.T) {
	l := &lister{err: errors.New("away")}
	f := start(t, `{"10.0.0.1":{"normal":false},"c":{"normal":false}}`, func(f *fixture, c *Config) {
		l.nodes = f.nodes
		c.ListAddresses = l.list
	})
	f.expect(1, "c")
	f.eventually(func() string { return unless(l.called() == 1, "not asked") })
	f.eventually(func() string {
		f.next()
		return unless(l.called() >= 3, "not asked again")
	})
	if dead, _ := f.nodes.state(); dead != "c" {
		t.Errorf("%q are dead", dead)
	}
}

// TestAnAddressFoundAfterTheAnswerWentBad counts for nothing.
func TestAnAddressFoundAfterTheAnswerWentBad(t *testing.T) {
	hold := make(chan struct{})
	l := &lister{hold: hold, finds: map[netip.Addr]string{netip.MustParseAddr("10.0.0.1"): "a"}}
	f := start(t, `{"10.0.0.1":{"normal":false}}`, func(f *fixture, c *Config) {
		l.nodes = f.nodes
		c.ListAddresses = l.list
	})
	f.eventually(func() string { return unless(l.called() == 1, "not asked") })
	f.service.says("garbage")
	f.next()
	f.expect(2, "")
	close(hold)
	f.eventually(func() string { return unless(len(f.nodes.NodeAddresses()) == 1, "not found") })
	f.next()
	f.expect(3, "")
	f.service.says(`{"10.0.0.1":{"normal":false}}`)
	f.next()
	f.expect(4, "a")
}

// TestNothingIsLeftBehind: goroutines end with the context, whatever they are at.
func TestNothingIsLeftBehind(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		l := &lister{hold: make(chan struct{})}
		f := start(t, `{"10.0.0.1":{"normal":false}}`, func(f *fixture, c *Config) {
			l.nodes = f.nodes
			c.ListAddresses = l.list
		})
		f.eventually(func() string { return unless(l.called() == 1, "not asked") })
		f.service.answer(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		f.next()
		f.eventually(func() string { return unless(f.service.asked() == 2, "not asked") })
		f.stop()
		f.server.CloseClientConnections()
		f.server.Close()
	}
	soon.UntilQuiet(t, func() string {
		after := runtime.NumGoroutine()
		if after <= before+3 {
			return ""
		}
		stacks := make([]byte, 1<<16)
		return fmt.Sprintf("%d goroutines before, %d after:\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
	})
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		options Options
		err     string
	}{
		{Options{"http://localhost:51005/localinfo", time.Second}, ""},
		{Options{"https://[::1]/x?y=z", MaxInterval}, ""},
		{Options{"http://localhost", 0}, "interval"},
		{Options{"http://localhost", MaxInterval + 1}, "interval"},
		{Options{"localhost:51005", time.Second}, "http"},
		{Options{"file:///etc/passwd", time.Second}, "http"},
		{Options{"http://", time.Second}, "host"},
		{Options{"", time.Second}, "http"},
		{Options{"http://%zz", time.Second}, "address"},
	} {
		_, err := New(Config{Options: test.options, Nodes: &nodes{}})
		if (err == nil) != (test.err == "") || (err != nil && !strings.Contains(err.Error(), test.err)) {
			t.Errorf("%+v: got %v, want %q", test.options, err, test.err)
		}
	}
	for _, interval := range []time.Duration{time.Second, 30 * time.Second, MaxInterval} {
		if wait := (Options{Interval: interval}).wait(); wait <= 0 || wait >= interval {
			t.Errorf("a poll every %s may take %s", interval, wait)
		}
	}
}
