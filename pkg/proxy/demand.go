package proxy

import (
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/upstream"
)

// endpointsIdle is how long the legacy Endpoints are followed after the last request for them ended. An old kube-proxy
// asks every few minutes, and all Endpoints of a cluster are too much to follow for nobody.
const endpointsIdle = time.Hour

// demand follows the legacy Endpoints while somebody asks for them.
type demand struct {
	facts    *facts.Facts
	upstream *upstream.Upstream

	mu sync.Mutex
	// askers are the requests under way. Guarded by mu.
	askers int
	// idle ends the following; nil while there are askers, or nothing is followed. Guarded by mu.
	idle *time.Timer
}

// of notes that a request for a resource begins, and returns what is to be called when it ends.
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
