package deadnodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const interval = 30 * time.Second

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// fixture is a Poller at work, what it asks, and the Nodes that it tells. It is made in a bubble of
// synctest, where time passes only while all wait, and nothing may be left running at the end.
type fixture struct {
	*testing.T
	poller *Poller

	mu sync.Mutex
	// The fields below are guarded by mu.

	counts
	// handler is the health service; nil if nobody listens.
	handler http.HandlerFunc
	// existing are the names of nodes, addresses are known, and finds are what a list of addresses finds when hold is
	// closed, or err.
	existing         []string
	addresses, finds map[netip.Addr]string
	hold             chan struct{}
	err              error
	dead             string
}

// counts are what a fixture counts: the requests to the health service, the polls by their results, and the lists of
// addresses.
type counts struct {
	polls, lists int
	results      map[string]int
}

// counted returns what was counted so far.
func (f *fixture) counted() counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.counts
	c.results = maps.Clone(c.results)
	return c
}

func (f *fixture) SetDoubted(_ facts.Doubt, names map[string]struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead = strings.Join(slices.Sorted(maps.Keys(names)), " ")
}

func (f *fixture) NodeExists(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.existing, name)
}

func (f *fixture) Notes() facts.Notes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return facts.Notes{Addresses: maps.Clone(f.addresses)}
}

func (f *fixture) pollDone(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.results["ok"]++
	case utilnet.IsTimeout(err):
		f.results["timeout"]++
	default:
		f.results["error"]++
	}
}

func (f *fixture) listAddresses(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	if hold := f.hold; hold != nil {
		f.mu.Unlock()
		select {
		case <-hold:
		case <-ctx.Done():
		}
		f.mu.Lock()
	}
	if f.finds == nil || f.err != nil || ctx.Err() != nil {
		return false, f.err
	}
	f.addresses = f.finds
	return true, nil
}

// ServeHTTP is the health service.
func (f *fixture) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	handler := f.handler
	f.polls++
	f.mu.Unlock()
	handler(w, r)
}

// dial connects to the service in memory.
func (f *fixture) dial(context.Context, string, string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handler == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	client, server := net.Pipe()
	go func() { _ = (&http.Server{Handler: f}).Serve(&single{conn: server}) }()
	return client, nil
}

// single is a Listener of one connection.
type single struct{ conn net.Conn }

func (s *single) Accept() (net.Conn, error) {
	if s.conn == nil {
		return nil, net.ErrClosed
	}
	conn := s.conn
	s.conn = nil
	return conn, nil
}

func (*single) Close() error   { return nil }
func (*single) Addr() net.Addr { return &net.TCPAddr{} }

// answers lets the service answer.
func (f *fixture) answers(handler http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handler = handler
}

func says(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

// hangs is a service that does not answer, or not to the end, until its client goes.
func hangs(begin string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if begin != "" {
			_, _ = io.WriteString(w, begin)
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}
}

// polling runs a test with a Poller whose service first answers so.
func polling(t *testing.T, service http.HandlerFunc, test func(f *fixture), prepare ...func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{T: t, handler: service, counts: counts{results: map[string]int{}}}
		for _, change := range prepare {
			change(f)
		}
		f.poller = New(Config{
			Options:  Options{Address: "http://localhost:51005/localinfo", Interval: interval},
			NodeName: "here", Nodes: f, PollDone: f.pollDone, ListAddresses: f.listAddresses,
		})
		f.poller.client.Transport.(*http.Transport).DialContext = f.dial
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { f.poller.Run(ctx) })
		defer wg.Wait()
		defer cancel()
		test(f)
	})
}

// expect waits until nothing happens any more at this moment, and compares the nodes that are then dead, after how many
// polls, and the error.
func (f *fixture) expect(what string, polls int, dead, said string) {
	f.Helper()
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	total := 0
	for _, count := range f.results {
		total += count
	}
	status := f.poller.Status()
	if f.dead != dead || total != polls || strings.Join(status.Dead, " ") != dead {
		f.Errorf("%s: dead are %q after %d polls (%v), want %q after %d; %+v", what, f.dead, total, f.results, dead,
			polls, status)
	}
	if (status.Err == nil) != (said == "") || (said != "" && !strings.Contains(status.Err.Error(), said)) {
		f.Errorf("%s: the error is %v, want %q", what, status.Err, said)
	}
}

// next lets the next poll begin.
func (f *fixture) next() { time.Sleep(interval) }

const twoDead = `{"a":{"normal":false},"b":{"normal":false},"c":{"normal":true}}`

// oneDeadOf is an answer with a dead node, and so many that live.
func oneDeadOf(live int) string {
	var b strings.Builder
	b.WriteString(`{"a":{"normal":false}`)
	for i := range live {
		fmt.Fprintf(&b, `,"node-with-a-name-%d":{"normal":true}`, i)
	}
	return b.String() + "}"
}

// TestAnswers: what each answer hides, and that whatever is no good answer hides nothing at once.
func TestAnswers(t *testing.T) {
	tests := []struct {
		name    string
		handler http.HandlerFunc
		dead    string
		result  string
		err     string
	}{
		{"two are dead", says(twoDead), "a b", "ok", ""},
		{"another is", says(`{"a":{"normal":true},"c":{"normal":false}}`), "c", "ok", ""},
		{"all live", says(`{"a":{"normal":true},"b":{"normal":true}}`), "", "ok", ""},
		{"no node", says(`{}`), "", "ok", ""},
		{"white space", says(" \n{\"a\" : {\"normal\" : false}}\n"), "a", "ok", ""},
		{"no field normal", says(`{"a":{},"b":{"ready":false},"c":{"normal":false}}`), "c", "ok", ""},
		{"null", says(`{"a":{"normal":null},"b":null,"c":{"normal":false}}`), "c", "ok", ""},
		{"other fields", says(`{"a":{"normal":false,"time":"now","checks":[{"normal":true}]}}`), "a", "ok", ""},
		{"this node", says(`{"here":{"normal":false},"a":{"normal":false}}`), "a", "ok", ""},
		{"a large answer", says(oneDeadOf(10000)), "a", "ok", ""},
		{"another success", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusAccepted)
			_, _ = io.WriteString(w, twoDead)
		}, "", "error", "202"},
		{"a failure", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, twoDead, http.StatusInternalServerError)
		}, "", "error", "500"},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}, "", "error", "302"},
		{"nothing", says(""), "", "error", "JSON"},
		{"no JSON", says("<html>"), "", "error", "JSON"},
		{"half an answer", says(twoDead[:len(twoDead)-2]), "", "error", "JSON"},
		{"more than an answer", says(twoDead + "{}"), "", "error", "JSON"},
		{"an array", says(`[{"normal":false}]`), "", "error", "JSON"},
		{"null alone", says(`null`), "", "error", "null"},
		{"a string for a bool", says(`{"a":{"normal":"false"},"b":{"normal":false}}`), "", "error", "JSON"},
		{"a number for a bool", says(`{"a":{"normal":0}}`), "", "error", "JSON"},
		{"no object", says(`{"a":false}`), "", "error", "JSON"},
		{"too large an answer", says(oneDeadOf(40000)), "", "error", "1048576"},
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, "{")
			for err == nil {
				_, err = io.WriteString(w, strings.Repeat(" ", 1<<16))
			}
		}, "", "error", "1048576"},
		{"a broken answer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, twoDead)
		}, "", "error", "reading"},
		{"a broken connection", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "",
			"error", "EOF"},
	}
	polling(t, says(twoDead), func(f *fixture) {
		f.expect("the first", 1, "a b", "")
		for i, test := range tests {
			before := f.counted().results[test.result]
			f.answers(test.handler)
			f.next()
			f.expect(test.name, 2*i+2, test.dead, test.err)
			if results := f.counted().results; results[test.result] != before+1 {
				t.Errorf("%s: no poll more is counted as %s: %v", test.name, test.result, results)
			}
			// Recovering hides again at the next answer.
			f.answers(says(twoDead))
			f.next()
			f.expect(test.name+", and two are dead again", 2*i+3, "a b", "")
		}
	})
}

// TestTheFirstPollIsAtOnce, and then there is one per interval.
func TestTheFirstPollIsAtOnce(t *testing.T) {
	polling(t, says(twoDead), func(f *fixture) {
		f.expect("at once", 1, "a b", "")
		for i := range 5 {
			time.Sleep(interval - time.Millisecond)
			f.expect("before the interval is over", i+1, "a b", "")
			time.Sleep(time.Millisecond)
			f.expect("after it", i+2, "a b", "")
		}
		if polls := f.counted().polls; polls != 6 {
			t.Errorf("after %d requests", polls)
		}
	})
}

func TestAServiceThatIsAway(t *testing.T) {
	polling(t, says(twoDead), func(f *fixture) {
		f.expect("it is there", 1, "a b", "")
		f.answers(nil)
		f.next()
		f.expect("it is away", 2, "", "refused")
	})
}

// TestASlowAnswerIsNone: the limit is below the interval, also for an answer that begins and does not end.
func TestASlowAnswerIsNone(t *testing.T) {
	for name, slow := range map[string]http.HandlerFunc{
		"no answer": hangs(""), "an answer that does not end": hangs(`{"a":`),
	} {
		t.Run(name, func(t *testing.T) {
			polling(t, says(twoDead), func(f *fixture) {
				f.expect("a quick answer", 1, "a b", "")
				f.answers(slow)
				time.Sleep(interval + maxWait - time.Millisecond)
				f.expect("it may still come", 1, "a b", "")
				time.Sleep(time.Millisecond)
				f.expect("it is late", 2, "", "in time")
				f.answers(says(twoDead))
				time.Sleep(interval - maxWait)
				f.expect("a quick answer again", 3, "a b", "")
				if results := f.counted().results; results["timeout"] != 1 || results["ok"] != 2 {
					t.Errorf("counted: %v", results)
				}
			})
		})
	}
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
			polling(t, says(fmt.Sprintf(`{%q:{"normal":false}}`, test.key)), func(f *fixture) {
				f.expect("the key", 1, test.dead, "")
				if unknown := strings.Join(f.poller.Status().UnknownAddresses, " "); unknown != test.unknown {
					t.Errorf("unknown are %q", unknown)
				}
				if lists := f.counted().lists; (lists == 1) != (test.unknown != "") {
					t.Errorf("addresses were listed %d times", lists)
				}
			}, func(f *fixture) { f.addresses, f.existing = known, []string{"10.0.0.77"} })
		})
	}
}

// found are addresses that a list finds.
var found = map[netip.Addr]string{netip.MustParseAddr("10.0.0.1"): "a", netip.MustParseAddr("10.0.0.2"): "b"}

// finding holds lists of addresses up.
func finding(f *fixture) { f.hold, f.finds = make(chan struct{}), found }

// TestAddressesAreAskedForOffThePoll: polls go on meanwhile, one list at a time, and what it finds counts at the
// next poll.
func TestAddressesAreAskedForOffThePoll(t *testing.T) {
	body := says(`{"10.0.0.1":{"normal":false},"10.0.0.2":{"normal":true},"c":{"normal":false}}`)
	polling(t, body, func(f *fixture) {
		f.expect("while addresses are listed", 1, "c", "")
		f.next()
		f.expect("while they are listed still", 2, "c", "")
		close(f.hold)
		f.expect("they are found", 2, "c", "")
		f.next()
		f.expect("they are known", 3, "a c", "")
		if unknown, lists := f.poller.Status().UnknownAddresses, f.counted().lists; lists != 1 || len(unknown) > 0 {
			t.Errorf("%d lists, unknown %v", lists, unknown)
		}
	}, finding)
}

// TestAddressesThatCannotBeListed: the key hides nothing, the others do, and the next poll asks again.
func TestAddressesThatCannotBeListed(t *testing.T) {
	polling(t, says(`{"10.0.0.1":{"normal":false},"c":{"normal":false}}`), func(f *fixture) {
		for i := range 3 {
			f.expect("addresses cannot be listed", i+1, "c", "")
			if lists := f.counted().lists; lists != i+1 {
				t.Errorf("they were listed %d times after %d polls", lists, i+1)
			}
			f.next()
		}
	}, func(f *fixture) { f.err = errors.New("away") })
}

// TestAnAddressFoundAfterTheAnswerWentBad counts for nothing.
func TestAnAddressFoundAfterTheAnswerWentBad(t *testing.T) {
	body := says(`{"10.0.0.1":{"normal":false}}`)
	polling(t, body, func(f *fixture) {
		f.expect("while addresses are listed", 1, "", "")
		f.answers(says("garbage"))
		f.next()
		f.expect("no JSON", 2, "", "JSON")
		close(f.hold)
		f.expect("the address is found", 2, "", "JSON")
		if addresses := f.Notes().Addresses; len(addresses) != len(found) {
			t.Errorf("it is not: %v", addresses)
		}
		f.answers(body)
		f.next()
		f.expect("a good answer", 3, "a", "")
	}, finding)
}

// TestNothingIsLeftBehind: goroutines end with the context, although a list and a poll are under way; else the bubble
// of synctest does not end.
func TestNothingIsLeftBehind(t *testing.T) {
	polling(t, says(`{"10.0.0.1":{"normal":false}}`), func(f *fixture) {
		f.expect("while addresses are listed", 1, "", "")
		f.answers(hangs(""))
		f.next()
		f.expect("a slow answer", 1, "", "")
		if c := f.counted(); c.lists != 1 || c.polls != 2 {
			t.Errorf("%d lists and %d requests are under way", c.lists, c.polls)
		}
	}, finding)
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		options Options
		err     string
	}{
		{Options{"http://localhost:51005/localinfo", time.Second}, ""},
		{Options{"https://[::1]/x?y=z", MaxInterval}, ""},
		{Options{"localhost:51005", time.Second}, "http"},
		{Options{"file:///etc/passwd", time.Second}, "http"},
		{Options{"http://", time.Second}, "host"},
		{Options{"", time.Second}, "http"},
		{Options{"http://%zz", time.Second}, "address"},
	} {
		err := test.options.Validate()
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
