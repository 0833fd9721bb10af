package dashboard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/status"
)

const (
	// podsEvery is the time between two reads of pods that are not ready. Pods are not followed, because there may be
	// very many others.
	podsEvery = 5 * time.Second
	// diagnoseEvery is the time between two diagnoses of the cluster, which read all nodes.
	diagnoseEvery = time.Minute
	// farewell is how long open requests may take when the dashboard ends, and patience how long a client may take to
	// read an answer.
	farewell = time.Second
	patience = 30 * time.Second
)

// Dashboard is a server that listens, and follows a cluster.
type Dashboard struct {
	// URL opens the page. It has the token, with which anyone can read what the user may read.
	URL string

	listener net.Listener
	http     *http.Server
	cluster  cluster.Cluster
	facts    *facts
	sources  []*source
}

// New makes a dashboard that listens on a port of the loopback, or on a free one for 0. Run serves.
func New(ctx context.Context, c cluster.Cluster, port uint16, shown Shown) (*Dashboard, error) {
	d := &Dashboard{cluster: c, facts: newFacts()}
	for _, r := range resources() {
		s := &source{
			resource: r, client: c.Watcher, namespace: shown.Namespace, facts: d.facts,
			status: SourceStatus{Resource: r.name, State: SourceReading},
		}
		d.sources = append(d.sources, s)
	}
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return nil, fmt.Errorf("listening: %w", err)
	}
	d.listener = listener
	token := rand.Text()
	d.URL = "http://" + listener.Addr().String() + "/#token=" + token
	s := &server{facts: d.facts, sources: d.states, shown: shown}
	d.http = &http.Server{
		Handler:           s.handler(token, listener.Addr().String()),
		ReadHeaderTimeout: 10 * time.Second, WriteTimeout: patience, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	return d, nil
}

// states returns the states of the sources. Its caller holds the lock of the facts.
func (d *Dashboard) states() []SourceStatus {
	states := make([]SourceStatus, 0, len(d.sources))
	for _, s := range d.sources {
		states = append(states, s.status)
	}
	return states
}

// Run follows the cluster and serves until ctx is done, and then returns nil.
func (d *Dashboard) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	for _, s := range d.sources {
		all.Go(func() { s.run(ctx) })
	}
	all.Go(func() { wait.NonSlidingUntilWithContext(ctx, d.askForPods, podsEvery) })
	all.Go(func() { wait.NonSlidingUntilWithContext(ctx, d.diagnose, diagnoseEvery) })
	all.Go(func() {
		<-ctx.Done()
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if err := d.http.Shutdown(limited); err != nil {
			_ = d.http.Close() // cuts the connections, so the error does not matter
		}
	})
	err := d.http.Serve(d.listener)
	stop()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving: %w", err)
	}
	return nil
}

// askForPods asks why pods of grids are not ready, while some are not.
func (d *Dashboard) askForPods(ctx context.Context) {
	notReady := map[gridview.Object]readPods{}
	for name, object := range d.notReady() {
		// If they were never read, the states show that pods are not ready, without the reason.
		pods, err := status.Pods(ctx, d.cluster.API, object)
		notReady[name] = readPods{slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			return p.DeletionTimestamp != nil || gridview.IsReady(&p)
		}), err != nil}
	}
	d.facts.update(func() bool { return d.facts.setPods(notReady) })
}

func (d *Dashboard) diagnose(ctx context.Context) {
	diagnosis := d.cluster.Diagnose(ctx, check.WithoutServices)
	d.facts.update(func() bool {
		if ctx.Err() != nil || reflect.DeepEqual(d.facts.nodes.Diagnosis, diagnosis) {
			return false
		}
		d.facts.nodes.Diagnosis = diagnosis
		d.facts.forgetAll()
		return true
	})
}

// notReady returns the grids whose pods may show why a site is not ready.
func (d *Dashboard) notReady() map[gridview.Object]v1.Object {
	d.facts.mu.Lock()
	defer d.facts.mu.Unlock()
	grids := map[gridview.Object]v1.Object{}
	for _, g := range d.facts.gridStates() {
		if status.AskForPods(g) {
			grids[g.Object()] = d.facts.gridObject(g.Object())
		}
	}
	return grids
}
