package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestLink: an error of a request that may be its sender's fault causes a probe, and only that decides.
func TestLink(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	malformed := errors.New("http2: invalid Upgrade request header")
	for name, test := range map[string]struct {
		request, probe error
		// away is whether it is away at once, later after the probe. probes is how many there may be in a second of
		// such requests and ten without.
		away, later bool
		probes      int32
	}{
		"nobody listens":     {refused, refused, true, true, 15},
		"the sender's fault": {malformed, nil, false, false, 6},
		"the server is gone": {malformed, malformed, false, true, 15},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var probes atomic.Int32
				l := newLink(func(context.Context) error {
					probes.Add(1)
					return test.probe
				})
				l.ProbeOnce(t.Context())
				l.noteProbeAnswer(0) // it was there before
				probes.Store(0)
				l.noteOutcome(t.Context(), nil, test.request)
				if away := l.AwayUntil() != nil; away != test.away {
					t.Errorf("at once it is away: %v", away)
				}
				go l.Run(t.Context()) // until the test's end; it begins with a probe
				for range 1000 {
					time.Sleep(time.Millisecond)
					l.noteOutcome(t.Context(), nil, test.request)
				}
				time.Sleep(10 * time.Second)
				if away := l.AwayUntil() != nil; away != test.later {
					t.Errorf("later it is away: %v", away)
				}
				if probes := probes.Load(); probes == 0 || probes > test.probes {
					t.Errorf("it was probed %d times", probes)
				}
			})
		})
	}
}

// TestLinkSlowsDown: a server that stays away is asked less often, and noticed within one and a half slowInterval when
// it is back.
func TestLinkSlowsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		var back atomic.Bool
		l := newLink(func(context.Context) error {
			if probes.Add(1); back.Load() {
				return nil
			}
			return errors.New("away")
		})
		go l.Run(t.Context()) // until the test's end
		time.Sleep(quickProbes)
		if probes := probes.Load(); probes < 29 || probes > 33 {
			t.Errorf("it was probed %d times at first", probes)
		}
		probes.Store(0)
		time.Sleep(time.Hour)
		if probes := probes.Load(); probes < 600 || probes > 850 { // 720 on average
			t.Errorf("it was probed %d times in an hour", probes)
		}
		back.Store(true)
		time.Sleep(slowInterval * 3 / 2)
		if l.AwayUntil() != nil {
			t.Error("it is back, and that is not noticed")
		}
	})
}

// TestSlowLink: an API server whose answers take long is there for whoever waits, and stays so whatever is suspected.
// One that answered fast is away as soon as ever.
func TestSlowLink(t *testing.T) {
	for name, test := range map[string]struct {
		// takes is how long an answer takes, and first how long it may be away at first.
		takes, first time.Duration
		// notices is how soon it is away when it no longer answers.
		notices time.Duration
	}{
		"fast":     {100 * time.Millisecond, 0, leastPatience},
		"slow":     {3 * time.Second, time.Second, 6 * time.Second},
		"slowest":  {9 * time.Second, 7 * time.Second, probeTimeout},
		"too slow": {11 * time.Second, time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var cut atomic.Bool
				l := newLink(func(ctx context.Context) error {
					select {
					case <-time.After(test.takes):
					case <-ctx.Done():
					}
					if cut.Load() {
						<-ctx.Done()
					}
					return ctx.Err()
				})
				go l.Run(t.Context()) // until the test's end
				away := func(within time.Duration) (away time.Duration) {
					const step = 10 * time.Millisecond
					for range within / step {
						if time.Sleep(step); l.AwayUntil() != nil {
							away += step
						}
						l.Suspect()
					}
					return away
				}
				if got := away(time.Minute); got > test.first+100*time.Millisecond {
					t.Errorf("at first it is away for %s", got)
				}
				if test.notices == 0 {
					return
				}
				if got := away(10 * time.Minute); got > 0 {
					t.Errorf("it is away for %s of ten minutes", got)
				}
				cut.Store(true)
				time.Sleep(time.Second)
				if got := time.Minute - away(time.Minute); got > test.notices {
					t.Errorf("that it is away is noticed after %s", got)
				}
				cut.Store(false)
				time.Sleep(test.notices + slowInterval*3/2 + test.takes)
				if got := away(time.Minute); got > 0 {
					t.Errorf("after it was back, it is away for %s", got)
				}
			})
		})
	}
}

// TestLinkMeasuresAgain: a probe that was sent before a short cut of the link, and is answered after it, does not say
// how slow the link is.
func TestLinkMeasuresAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		restored := make(chan struct{})
		time.AfterFunc(8*time.Second, func() { close(restored) })
		l := newLink(func(ctx context.Context) error {
			select {
			case <-restored:
			case <-ctx.Done():
			}
			return ctx.Err()
		})
		go l.Run(t.Context()) // until the test's end
		time.Sleep(10 * time.Second)
		if l.mu.Lock(); l.away != nil || l.patience != leastPatience {
			t.Errorf("it is away: %v, and would be after %s", l.away != nil, l.patience)
		}
		l.mu.Unlock()
	})
}

// TestLinkAsksTheServer: a probe is a request that no cache answers. What a gateway says in place of an API server
// counts as away, and what an API server says counts as there, also if it refuses. What waits is called when it is
// back.
func TestLinkAsksTheServer(t *testing.T) {
	var code atomic.Int64
	var body atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != reviewPath {
			t.Errorf("a probe is %s %s", r.Method, r.URL.Path)
		}
		w.WriteHeader(int(code.Load()))
		_, _ = fmt.Fprint(w, body.Load())
	}))
	defer server.Close()
	connection, err := Options{Program: "x", Master: server.URL, QPS: 1, Burst: 1}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	link := connection.Link()
	back := make(chan struct{}, 1)
	link.OnBack(0, func() { back <- struct{}{} })
	const object, page = `{"kind":"Status","apiVersion":"v1"}`, "<html>down</html>"
	for _, test := range []struct {
		code       int
		body       string
		away, back bool
	}{
		{http.StatusCreated, object, false, false}, {http.StatusServiceUnavailable, object, true, false},
		{http.StatusBadGateway, page, true, false}, {http.StatusTooManyRequests, "Too many requests", false, true},
		{http.StatusInternalServerError, object, true, false}, {http.StatusUnauthorized, object, false, true},
		{http.StatusOK, page, true, false}, {http.StatusNotFound, object, false, true}, // it has no reviews
		{http.StatusNotFound, "default backend - 404", true, false}, {http.StatusForbidden, object, false, true},
		{http.StatusNotFound, "404 page not found\n", true, false}, // a gateway that is written in Go
		{http.StatusOK, object, false, true}, {http.StatusFound, "", true, false},
		{http.StatusNotFound, `{"message":"no Route matched with those values"}`, true, false},
		{http.StatusCreated, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}`, false, true},
		{http.StatusOK, `{"kind":"List","apiVersion":"v1","items":null}`, true, false},
	} {
		body.Store(test.body)
		code.Store(int64(test.code))
		link.ProbeOnce(t.Context())
		if away := link.AwayUntil() != nil; away != test.away {
			t.Fatalf("%d: away %v", test.code, away)
		}
		if test.back {
			<-back
		}
	}
	if len(back) > 0 {
		t.Error("it is back without having been away")
	}
	server.Close()
	if link.ProbeOnce(t.Context()); link.AwayUntil() == nil {
		t.Error("nobody listens, and it is not away")
	}
}

// TestLinkRequiresTheNode: an API server that answers reviews, and has lost its etcd, is away.
func TestLinkRequiresTheNode(t *testing.T) {
	const node, object = "/api/v1/nodes/n", `{"kind":"Status","apiVersion":"v1"}`
	var code atomic.Int32
	var hangs atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != node {
			w.WriteHeader(http.StatusCreated)
			_, _ = fmt.Fprint(w, object)
			return
		}
		if hangs.Load() {
			<-r.Context().Done()
		}
		w.WriteHeader(int(code.Load()))
		_, _ = fmt.Fprint(w, object)
	}))
	defer server.Close()
	connection, err := Options{Program: "x", Master: server.URL, QPS: 1, Burst: 1}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	link := connection.Link()
	for _, test := range []struct {
		code  int
		hangs bool
		away  bool
	}{
		{http.StatusOK, false, false}, {http.StatusInternalServerError, false, true},
		{http.StatusNotFound, false, false}, {http.StatusOK, true, true}, {http.StatusForbidden, false, false},
	} {
		link.RequireNode("n")
		code.Store(int32(test.code))
		hangs.Store(test.hangs)
		link.ProbeOnce(t.Context())
		if away := link.AwayUntil() != nil; away != test.away {
			t.Errorf("%+v: away is %v", test, away)
		}
		link.RequireNode("")
		link.ProbeOnce(t.Context())
		if link.AwayUntil() != nil {
			t.Errorf("%+v: without RequireNode it is away", test)
		}
	}
}

// TestTransportsTellTheLink: a request that finds nobody, of whichever transport, takes the API server away.
func TestTransportsTellTheLink(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	connection, err := Options{Program: "x", Master: server.URL, QPS: 1, Burst: 1}.Connect()
	if err != nil {
		t.Fatal(err)
	}
	server.Close()
	config, err := connection.Config()
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := config.Transport.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	if err == nil || connection.Link().AwayUntil() == nil {
		t.Errorf("nobody listens, and it is not away: %v", err)
	}
}

// TestProbesOfAnswers become few while a client gets the same failure all the time and each probe is answered, also
// with pauses. They are quick again after a calm time, and after an outage.
func TestProbesOfAnswers(t *testing.T) {
	t.Parallel()
	l := newLink(func(context.Context) error { return nil })
	now := time.Now()
	probes := func(within time.Duration) (count int) {
		for end := now.Add(within); now.Before(end); now = now.Add(100 * time.Millisecond) {
			l.suspectAnswer(now)
			select {
			case <-l.probeWanted:
				count++
			default:
			}
		}
		return count
	}
	if n := probes(time.Second); n < 2 {
		t.Errorf("at first %d probes in a second", n)
	}
	if n := probes(time.Minute); n > 20 {
		t.Errorf("%d probes a minute", n)
	}
	now = now.Add(2 * calmAfter)
	if n := probes(time.Second); n < 2 {
		t.Errorf("after a calm time %d probes in a second", n)
	}
	probes(time.Minute)
	l.NoteAway()
	<-l.probeWanted
	l.noteProbeAnswer(0)
	if n := probes(time.Second); n < 2 {
		t.Errorf("after an outage %d probes in a second", n)
	}
}
