package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/await"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/upstream"
	"github.com/application-grid/application-grid/pkg/upstream/upstreamtest"
)

// TestNotCurrent: a hub that has lost its API server says so, so that others are asked. A source on which nothing
// happened for long has lost nothing.
func TestNotCurrent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	states := []follow.State{
		{Name: "nodes", Synced: true, LastContact: now},
		{Name: "services", Synced: true, LastContact: now.Add(-time.Hour), FailingSince: now.Add(-time.Hour)},
	}
	if err := notCurrent(states, now); err != nil {
		t.Errorf("got %v", err)
	}
	states[1].Err, states[1].FailingSince = errors.New("away"), now
	if err := notCurrent(states, now.Add(stalePatience)); err != nil {
		t.Errorf("at once: %v", err)
	}
	if err := notCurrent(states, now.Add(stalePatience+time.Second)); err == nil ||
		!strings.Contains(err.Error(), "services: cannot be followed since") {
		t.Errorf("got %v", err)
	}
	states[0].Synced = false
	if err := notCurrent(states, now); err == nil || !strings.Contains(err.Error(), "nodes: not synced") {
		t.Errorf("got %v", err)
	}
}

// link leads to an API server, and may be cut.
type link struct {
	to http.Handler

	mu sync.Mutex
	// cut is set while nothing passes. With silent, nobody is told. Guarded by mu.
	cut, silent bool
	// passing are the requests under way. Guarded by mu.
	passing map[*passing]struct{}
}

// passing is a request that passes a link.
type passing struct {
	http.ResponseWriter

	link   *link
	cancel context.CancelFunc
}

// ServeHTTP implements http.Handler.
func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p := &passing{w, l, cancel}
	l.mu.Lock()
	l.passing[p] = struct{}{}
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.passing, p)
		l.mu.Unlock()
	}()
	if cut, silent := l.isCut(); cut {
		if silent {
			<-ctx.Done()
		}
		panic(http.ErrAbortHandler)
	}
	l.to.ServeHTTP(p, r.WithContext(ctx))
	if r.Context().Err() == nil && ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

func (l *link) isCut() (cut, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut, l.silent
}

// Write implements http.ResponseWriter. What is written to a link that is cut is lost.
func (p *passing) Write(b []byte) (int, error) {
	if cut, _ := p.link.isCut(); cut {
		return len(b), nil
	}
	return p.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// set cuts the link, or mends it. What was under way is broken off, except by a silent cut.
func (l *link) set(cut, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.silent = cut, silent
	if silent {
		return
	}
	for p := range l.passing {
		p.cancel()
	}
}

// replica is one of the hub, without an API server of its own before it, and its link to the cluster's.
type replica struct {
	*Server

	link *link
}

// smallFleet is a cluster, replicas of the hub, and the wrapper of the node a1, in a bubble and without a network. The
// cluster's API server hands requests on to the replica that it picked last, and picks another one when a connection
// is to be closed.
type smallFleet struct {
	t        *testing.T
	cluster  *upstreamtest.API
	replicas []*replica
	node     *storagetest.Node
	upstream *upstream.Upstream

	mu     sync.Mutex
	picked int // guarded by mu
}

// inSmallFleet runs a test in a bubble, a while after everything was synced.
func inSmallFleet(t *testing.T, mode upstream.HubMode, test func(*smallFleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &smallFleet{t: t, cluster: upstreamtest.New(), node: storagetest.New(storagetest.Options{
			NodeName: "a1", KeepKubernetesEndpoint: true,
		})}
		for _, name := range []string{"a1", "a2", "b1"} {
			f.cluster.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Name: name, Labels: map[string]string{"zone": name[:1]},
			}})
		}
		f.cluster.Put(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "strict", Annotations: map[string]string{"topologyKeys": `["zone"]`},
		}})
		f.putSlice("10.0.0.1")
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		defer synctest.Wait()
		defer running.Wait()
		defer cancel()
		for range 2 {
			r := &replica{link: &link{to: f.cluster, passing: make(map[*passing]struct{})}}
			var err error
			r.Server, err = newServer(Config{}, &rest.Config{
				Host: "http://cluster.example", Transport: upstreamtest.Memory{Handler: r.link}, QPS: -1,
			}, klog.Background())
			if err != nil {
				t.Fatal(err)
			}
			f.replicas = append(f.replicas, r)
			running.Go(func() { r.work(ctx) })
		}
		toCluster := &rest.Config{Host: "http://cluster.example", Transport: upstreamtest.Memory{Handler: f}, QPS: -1}
		var err error
		f.upstream, err = upstream.New(upstream.Options{
			Config: toCluster, Facts: f.node.Facts, NodeName: "a1",
			Hub: upstream.HubOptions{Mode: mode, Config: toCluster, FallbackAfter: upstream.DefaultHubFallback},
		})
		if err != nil {
			t.Fatal(err)
		}
		f.until("the replicas are ready", func() bool {
			return f.replicas[0].current() == nil && f.replicas[1].current() == nil
		})
		running.Go(func() { f.upstream.Run(ctx) })
		// So long that the replicas have heard nothing for much longer than their patience.
		time.Sleep(3 * time.Minute)
		f.expectShown("10.0.0.1")
		test(f)
	})
}

// ServeHTTP is the cluster's API server.
func (f *smallFleet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path, ok := strings.CutPrefix(r.URL.Path, hubv1alpha1.SharePath("a1"))
	if !ok {
		f.cluster.ServeHTTP(w, r)
		return
	}
	f.mu.Lock()
	picked := f.picked
	f.mu.Unlock()
	replica := f.replicas[picked]
	replica.closeWhenCut(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		replica.answers.ServeShare(w, r, "a1", path)
	})).ServeHTTP(w, r)
	if w.Header().Get("Connection") == "close" {
		f.mu.Lock()
		f.picked = (picked + 1) % len(f.replicas)
		f.mu.Unlock()
	}
}

func (f *smallFleet) putSlice(address string) {
	f.cluster.Put(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "strict-1", Labels: map[string]string{discoveryv1.LabelServiceName: "strict"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: ptr.To("a2")}},
	})
}

// shown is the address that the wrapper shows kube-proxy.
func (f *smallFleet) shown() string {
	f.t.Helper()
	objects, _, err := f.node.History.List(history.EndpointSlices, "", 0)
	if err != nil {
		return err.Error()
	}
	var addresses []string
	for _, o := range objects {
		typed, err := o.Decode()
		if err != nil {
			f.t.Fatal(err)
		}
		if slice, ok := typed.(*discoveryv1.EndpointSlice); ok {
			for _, e := range slice.Endpoints {
				addresses = append(addresses, e.Addresses...)
			}
		}
	}
	return strings.Join(addresses, " ")
}

func (f *smallFleet) expectShown(address string) {
	f.t.Helper()
	synctest.Wait()
	if got := f.shown(); got != address {
		f.t.Errorf("the wrapper shows %q, want %q", got, address)
	}
}

// until waits until something holds, and returns how long that took.
func (f *smallFleet) until(what string, holds func() bool) time.Duration {
	f.t.Helper()
	const patience = time.Hour
	begin := time.Now()
	for synctest.Wait(); !holds(); synctest.Wait() {
		if time.Since(begin) > patience {
			f.t.Fatalf("%s: not within %s", what, patience)
		}
		time.Sleep(100 * time.Millisecond)
	}
	return time.Since(begin)
}

// streams are how many streams each replica has.
func (f *smallFleet) streams() string {
	counts := make([]int, len(f.replicas))
	for i, r := range f.replicas {
		r.shedder.mu.Lock()
		counts[i] = len(r.shedder.streams)
		r.shedder.mu.Unlock()
	}
	return fmt.Sprint(counts)
}

const (
	// noticed is how long a replica takes to notice that its link is gone: a watch that is broken off fails again after
	// the first pause at most; one that falls silent lasts as long as the API server may be silent on it.
	noticed       = 2 * time.Second
	noticedSilent = 150 * time.Second
	// comesBack is the longest pause between two attempts of a wrapper.
	comesBack = 23 * time.Second
)

// TestAStaleReplicaEndsItsStreams: a replica whose own link to the API server is cut ends its streams after its limit,
// and not before. The wrapper goes on with the other replica.
func TestAStaleReplicaEndsItsStreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		silent   bool
		earliest time.Duration
		latest   time.Duration
	}{
		{"connections refused", false, stalePatience, stalePatience + noticed},
		{"packets dropped", true, stalePatience, stalePatience + noticedSilent + noticed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			inSmallFleet(t, upstream.HubRequire, func(f *smallFleet) {
				if got := f.streams(); got != "[4 0]" {
					t.Fatalf("the replicas have %s streams", got)
				}
				f.replicas[0].link.set(true, test.silent)
				f.putSlice("10.0.0.2")
				took := f.until("the streams of the stale replica end", func() bool { return f.streams() != "[4 0]" })
				t.Logf("the streams ended after %s", took)
				if took < test.earliest || took > test.latest {
					t.Errorf("the streams ended after %s, want %s to %s", took, test.earliest, test.latest)
				}
				took = f.until("the wrapper is elsewhere", func() bool { return f.streams() == "[0 4]" })
				t.Logf("the wrapper followed the other replica %s later", took)
				if took > comesBack {
					t.Errorf("it took %s to come to the other replica", took)
				}
				f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
				if err := f.replicas[0].current(); err == nil {
					t.Error("the stale replica is ready")
				}
				// Mended, it is one as the other.
				f.replicas[0].link.set(false, false)
				f.until("the replica is ready again", func() bool { return f.replicas[0].current() == nil })
				if got := f.streams(); got != "[0 4]" {
					t.Errorf("after that the replicas have %s streams", got)
				}
			})
		})
	}
}

// TestAShortCutEndsNoStream: an API server that starts anew in a few seconds, or a link that comes back, costs no
// wrapper a list. That nothing had happened for minutes before does not make a replica stale.
func TestAShortCutEndsNoStream(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, upstream.HubRequire, func(f *smallFleet) {
		before := f.lists()
		f.replicas[0].link.set(true, false)
		// The last attempt that fails may be followed by a pause of twelve seconds.
		time.Sleep(5 * time.Second)
		f.putSlice("10.0.0.2")
		f.replicas[0].link.set(false, false)
		took := f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
		t.Logf("the wrapper has the news after %s", took)
		if after := f.lists(); after != before {
			t.Errorf("the wrapper listed %d times more", after-before)
		}
		if got := f.streams(); got != "[4 0]" {
			t.Errorf("the replicas have %s streams", got)
		}
	})
}

// TestOneReplicaAfterTheOther: two replicas lose the API server one after the other, for minutes. The wrapper always
// has the news of the one that did not.
func TestOneReplicaAfterTheOther(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, upstream.HubRequire, func(f *smallFleet) {
		for round := range 6 {
			cut := f.replicas[round%2].link
			cut.set(true, false)
			address := fmt.Sprintf("10.0.1.%d", round)
			f.putSlice(address)
			took := f.until("the wrapper has the news", func() bool { return f.shown() == address })
			t.Logf("the wrapper has the news after %s", took)
			if most := stalePatience + noticed + comesBack; took > most {
				t.Errorf("the wrapper has the news after %s, not within %s", took, most)
			}
			time.Sleep(2*time.Minute - took)
			cut.set(false, false)
			f.until("the replica is ready again", func() bool { return f.replicas[round%2].current() == nil })
		}
	})
}

// lists is how often the wrapper listed.
func (f *smallFleet) lists() (n uint64) {
	for _, s := range f.upstream.States() {
		n += s.Lists
	}
	return n
}

// TestAllReplicasAreStale: the wrapper serves what it knows, and with --hub=auto follows the API server when its
// patience is over, but not before.
func TestAllReplicasAreStale(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, upstream.HubAuto, func(f *smallFleet) {
		for _, r := range f.replicas {
			r.link.set(true, false)
		}
		f.putSlice("10.0.0.2")
		f.until("all streams end", func() bool { return f.streams() == "[0 0]" })
		f.expectShown("10.0.0.1")
		took := f.until("the wrapper follows the API server", func() bool { return !f.upstream.Way().Hub })
		t.Logf("the wrapper followed the API server %s after the streams had ended", took)
		least, most := upstream.DefaultHubFallback-comesBack, 2*upstream.DefaultHubFallback+time.Minute
		if took < least || took > most {
			t.Errorf("the wrapper followed the API server after %s, want %s to %s", took, least, most)
		}
		f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
	})
}

// TestACutReplicaKeepsNoConnection: while a replica cannot follow the API server, it cannot ask it who may do what
// either. Its refusal is the last answer on its connection, so that the next request may come to another replica.
func TestACutReplicaKeepsNoConnection(t *testing.T) {
	t.Parallel()
	for _, follows := range []bool{true, false} {
		h := startHubWith(t, follows, func(config *genericapiserver.Config) error {
			if !follows {
				config.Authorization.Authorizer = authorizer.AuthorizerFunc(
					func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
						return authorizer.DecisionNoOpinion, "", errors.New("the API server is away")
					})
			}
			return nil
		})
		path := hubv1alpha1.SharePath("a1") + "/api/v1/services"
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Test-User", "system:serviceaccount:edge:wrapper")
		w := httptest.NewRecorder()
		h.hub.api.Handler.ServeHTTP(w, r)
		closes := w.Header().Get("Connection") == "close"
		if closes == follows || (w.Code == http.StatusOK) != follows {
			t.Errorf("follows %v: status %d, the connection is closed: %v: %s", follows, w.Code, closes, w.Body)
		}
	}
}

// TestAListKeepsItsConnection: the watch that follows a list must come to the same replica, also while that cannot
// follow the API server for a moment. Otherwise it is refused as expired.
func TestAListKeepsItsConnection(t *testing.T) {
	t.Parallel()
	h := startHubWith(t, true, func(*genericapiserver.Config) error { return nil })
	ask := func() *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet,
			hubv1alpha1.SharePath("a1")+"/api/v1/services", nil)
		r.Header.Set("Test-User", "system:serviceaccount:edge:wrapper")
		w := httptest.NewRecorder()
		h.hub.api.Handler.ServeHTTP(w, r)
		return w
	}
	if w := ask(); w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	h.cluster.Behave(upstreamtest.Behaviour{Failing: http.StatusInternalServerError})
	h.cluster.Forget()
	soon := await.Patience{Within: 20 * time.Second, Between: 5 * time.Millisecond}
	soon.Until(t, "the API server cannot be followed", func() error {
		if !failing(h.hub.group.States()) {
			return errors.New("it is followed")
		}
		return nil
	})
	if w := ask(); w.Code != http.StatusOK || w.Header().Get("Connection") == "close" {
		t.Errorf("status %d, Connection: %s", w.Code, w.Header().Get("Connection"))
	}
}
