package proxy

import (
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/follow/upstream"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// demandIdle is how long a resource is followed after the last request for it has ended. An old kube-proxy sends one
// for the legacy Endpoints every few minutes. All Endpoints of a cluster are too much to follow without a client.
const demandIdle = time.Hour

// demands follow resources while clients ask for them.
type demands map[*served.Resource]*demand

func newDemands(f *facts.Facts, u *upstream.Upstream) demands {
	all := make(demands)
	for _, r := range served.All() {
		if r.OnDemand {
			all[r] = &demand{facts: f, upstream: u, resource: r}
		}
	}
	return all
}

// of notes that a request for a resource begins. The caller must call ended when it ends.
func (all demands) of(r *served.Resource) (ended func()) {
	if d := all[r]; d != nil {
		return d.begin()
	}
	return func() {}
}

// demand follows one resource while clients ask for it.
type demand struct {
	facts    *facts.Facts
	upstream *upstream.Upstream
	resource *served.Resource

	mu sync.Mutex
	// askers counts the requests under way. Guarded by mu.
	askers int
	// idle is the timer that ends the following. It is nil while there are askers, or while nothing is followed.
	// Guarded by mu.
	idle *time.Timer
}

func (d *demand) begin() (ended func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.askers++
	if d.idle != nil {
		d.idle.Stop()
		d.idle = nil
	}
	d.upstream.Demand(d.resource)
	return d.end
}

func (d *demand) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers--; d.askers == 0 {
		d.idle = time.AfterFunc(demandIdle, d.expire)
	}
}

func (d *demand) expire() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers > 0 {
		return
	}
	d.idle = nil
	d.upstream.Dismiss(d.resource)
	d.facts.Forget(d.resource)
}
