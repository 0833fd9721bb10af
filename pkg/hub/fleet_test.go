package hub

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow/upstream"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// link leads to an API server, and may be cut.
type link struct {
	mu sync.Mutex
	// to is where the next request goes; guarded by mu.
	to http.Handler
	// cut is set while nothing passes. With silent, nobody is told. slow is how long every write takes. Guarded by mu.
	cut, silent bool
	slow        time.Duration
	// passing are the requests under way. Guarded by mu.
	passing map[*passing]struct{}
}

// passing is a request that passes a link.
type passing struct {
	http.ResponseWriter

	link   *link
	cancel context.CancelFunc
	// lost is set when something that was written was lost; guarded by the link's lock.
	lost bool
}

// ServeHTTP implements http.Handler.
func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p := &passing{ResponseWriter: w, link: l, cancel: cancel}
	l.mu.Lock()
	l.passing[p] = struct{}{}
	to := l.to
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
	to.ServeHTTP(p, r.WithContext(ctx))
	if r.Context().Err() == nil && ctx.Err() != nil {
		panic(http.ErrAbortHandler)
	}
}

func (l *link) isCut() (cut, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut, l.silent
}

// Write implements http.ResponseWriter. What is written to a link that is cut is lost, and its connection with it.
func (p *passing) Write(b []byte) (int, error) {
	p.link.mu.Lock()
	slow := p.link.slow
	p.link.mu.Unlock()
	if slow > 0 {
		time.Sleep(slow)
	}
	p.link.mu.Lock()
	lost := p.link.cut || p.lost
	p.lost = lost
	p.link.mu.Unlock()
	if lost {
		return len(b), nil
	}
	return p.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (p *passing) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// delay makes every write take so long.
func (l *link) delay(slow time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slow = slow
}

// lead lets the next requests go elsewhere.
func (l *link) lead(to http.Handler) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

// set cuts the link, or mends it. What was under way is broken off, except by a silent cut.
func (l *link) set(cut, silent bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.silent = cut, silent
	if silent {
		return
	}
	for p := range l.passing {
		if cut || p.lost {
			p.cancel()
		}
	}
}

func newLink(to http.Handler) *link { return &link{to: to, passing: make(map[*passing]struct{})} }

// replica is one of the hub, without an API server of its own before it, and its link to the cluster's.
type replica struct {
	*Server

	link *link
	// stop stops it.
	stop func()
}

// nodeWrapper is what a node's wrapper has of the upstream, and the node's link.
type nodeWrapper struct {
	f        *smallFleet
	name     string
	link     *link
	node     *storagetest.Node
	upstream *upstream.Upstream
	// picked is the replica that its connection leads to. It is guarded by the fleet's lock.
	picked int
}

// smallFleet is a cluster, replicas of the hub, and wrappers, in a bubble and without a network. The cluster's API
// server hands requests on to the replica that a wrapper's connection leads to, and to another one when that connection
// is to be closed.
type smallFleet struct {
	*nodeWrapper

	t        *testing.T
	ctx      context.Context
	cluster  testCluster
	replicas []*replica
	wrappers []*nodeWrapper

	mu sync.Mutex
}

// inFleet runs a test in a bubble, with so many replicas, and wrappers that follow on these nodes.
func inFleet(t *testing.T, replicas int, nodes []string, test func(*smallFleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &smallFleet{t: t, cluster: newTestCluster(firstNodes, firstServices, firstSlices)}
		f.cluster.Behave(upstreamtest.Behaviour{Bookmarks: time.Minute})
		ctx, cancel := context.WithCancel(context.Background())
		f.ctx = ctx
		var running sync.WaitGroup
		defer synctest.Wait()
		defer time.Sleep(time.Minute) // what is written to slow links is written
		defer func() {
			for _, r := range f.replicas {
				r.stop()
			}
		}()
		defer running.Wait()
		defer cancel()
		for i := range replicas {
			f.replicas = append(f.replicas, &replica{link: newLink(f.cluster)})
			f.startReplica(i)
		}
		f.until("the replicas are ready", func() bool {
			return !slices.ContainsFunc(f.replicas, func(r *replica) bool { return r.checkCurrent() != nil })
		})
		for _, name := range nodes {
			w := &nodeWrapper{f: f, name: name, node: storagetest.New(storagetest.Options{
				NodeName: name, KeepKubernetesEndpoint: true,
			})}
			w.link = newLink(w)
			f.wrappers = append(f.wrappers, w)
			toCluster := &rest.Config{
				Host: "http://cluster.example", Transport: upstreamtest.Memory{Handler: w.link}, QPS: -1,
			}
			var err error
			w.upstream, err = upstream.New(upstream.Options{
				Config: toCluster, Facts: w.node.Facts, NodeName: name, Hub: toCluster,
			})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() { w.upstream.Run(ctx) })
		}
		f.nodeWrapper = f.wrappers[0]
		// So long that the replicas have heard nothing for much longer than their patience.
		time.Sleep(3 * time.Minute)
		test(f)
	})
}

// inSmallFleet runs a test with two replicas and the wrapper of the node a1.
func inSmallFleet(t *testing.T, test func(*smallFleet)) {
	t.Helper()
	inFleet(t, 2, []string{"a1"}, func(f *smallFleet) {
		f.expectShown("10.0.0.1")
		test(f)
	})
}

// startReplica restarts a replica.
func (f *smallFleet) startReplica(number int) {
	f.t.Helper()
	r := &replica{link: f.replicas[number].link}
	var err error
	r.Server, err = newServer(Config{}, &rest.Config{
		Host: "http://cluster.example", Transport: upstreamtest.Memory{Handler: r.link}, QPS: -1,
	}, klog.Background())
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.followCluster(ctx)
	}()
	r.stop = func() {
		cancel()
		r.shares.endStreams(errBehind)
		<-done
	}
	f.mu.Lock()
	f.replicas[number] = r
	f.mu.Unlock()
}

// stopReplica stops a replica; connections to it are refused.
func (f *smallFleet) stopReplica(number int) {
	f.mu.Lock()
	r := f.replicas[number]
	f.mu.Unlock()
	r.stop()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas[number] = &replica{link: r.link, stop: func() {}}
}

// pick lets a wrapper's connection lead to a replica.
func (f *smallFleet) pick(w *nodeWrapper, number int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w.picked = number
}

// ServeHTTP is the cluster's API server, as a wrapper reaches it.
func (w *nodeWrapper) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	f := w.f
	f.mu.Lock()
	picked := w.picked
	replica := f.replicas[picked]
	f.mu.Unlock()
	if !strings.HasPrefix(r.URL.Path, hubv1alpha1.GroupVersionPath) {
		f.cluster.ServeHTTP(rw, r)
		return
	}
	next := func() {
		f.mu.Lock()
		w.picked = (picked + 1) % len(f.replicas)
		f.mu.Unlock()
	}
	if replica.Server == nil {
		next()
		panic(http.ErrAbortHandler)
	}
	replica.closeWhileFailing(replica).ServeHTTP(rw, r.WithContext(request.WithRequestInfo(r.Context(),
		&request.RequestInfo{Verb: "watch", Resource: hubv1alpha1.Shares, Name: w.name})))
	if rw.Header().Get("Connection") == "close" {
		next()
	}
}

// putAddress makes the slice of the Service strict: an address on a2.
func (f *smallFleet) putAddress(address string) {
	f.cluster.putSlice("strict-1", sliceState{"strict", []endpointState{{address, "a2"}}})
}

// shown are the addresses that the wrapper shows kube-proxy.
func (w *nodeWrapper) shown() string {
	objects, _, err := w.node.History.List(served.EndpointSlices, "", 0)
	if err != nil {
		return err.Error()
	}
	var addresses []string
	for _, o := range objects {
		typed, err := o.Decode()
		if err != nil {
			return err.Error()
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
		counts[i] = r.shares.stats().streams
	}
	return fmt.Sprint(counts)
}

const (
	// noticed is how long a replica takes to notice that its link is gone: a watch that is broken off fails again after
	// the first pause at most. One that falls silent lasts as long as the API server may be silent on it. If its time
	// is over just before that, the next one is given up when it has waited for an answer.
	noticed       = 2 * time.Second
	noticedSilent = 150*time.Second + stallLimit
	// stallLimit is how long package apiclient waits for an answer.
	stallLimit = 30 * time.Second
	// comesBack is the longest pause between two attempts of a wrapper.
	comesBack = 23 * time.Second
)
