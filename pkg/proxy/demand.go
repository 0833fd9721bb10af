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
type demands struct {
	facts    *facts.Facts
	upstream *upstream.Upstream

	mu sync.Mutex
	// askers counts the requests under way for each resource. Guarded by mu.
	askers map[*served.Resource]int
	// idle has the timers that end the following of resources without askers. Guarded by mu.
	idle map[*served.Resource]*time.Timer
}

// begin notes that a request for a resource begins. The caller must call ended when it ends.
func (d *demands) begin(r *served.Resource) (ended func()) {
	if !r.OnDemand {
		return func() {}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.askers[r]++
	if idle := d.idle[r]; idle != nil {
		idle.Stop()
	}
	d.upstream.Demand(r)
	return func() { d.end(r) }
}

func (d *demands) end(r *served.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers[r]--; d.askers[r] == 0 {
		d.idle[r] = time.AfterFunc(demandIdle, func() { d.expire(r) })
	}
}

func (d *demands) expire(r *served.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.askers[r] > 0 {
		return
	}
	d.upstream.Dismiss(r)
	d.facts.Forget(r)
}
