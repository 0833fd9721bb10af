package proxy

import (
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/upstream"
)

// endpointsIdle is how long the legacy Endpoints are followed after the last request for them has ended. An old
// kube-proxy sends one every few minutes. All Endpoints of a cluster are too much to follow without a client.
const endpointsIdle = time.Hour

// demand follows the legacy Endpoints while clients ask for them.
type demand struct {
	facts    *facts.Facts
	upstream *upstream.Upstream

	mu sync.Mutex
	// askers counts the requests under way. Guarded by mu.
	askers int
	// idle is the timer that ends the following. It is nil while there are askers, or while nothing is followed.
	// Guarded by mu.
	idle *time.Timer
}

// of notes that a request for a resource begins. The caller must call ended when it ends.
func (d *demand) of(r *history.Resource) (ended func()) {
	if r != history.Endpoints {
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.askers++
	if d.idle != nil {
		d.idle.Stop()
		d.idle = nil
	}
	d.upstream.Demand(history.Endpoints)
	return d.end
}

func (d *demand) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers--; d.askers == 0 {
		d.idle = time.AfterFunc(endpointsIdle, d.expire)
	}
}

func (d *demand) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers > 0 {
		return
	}
	d.idle = nil
	d.upstream.Dismiss(history.Endpoints)
	d.facts.ForgetEndpoints()
}
