package faults

import (
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// fault is something that befalls a site.
type fault struct {
	name string
	// node is what its node needs, beside the usual.
	node cluster.NodeSpec
	// inflict begins the fault and relieve, if set, ends it, without waiting for what comes of that.
	inflict, relieve func(*site)
	// lasts is how long at least it lasts; forms gives the time for both forms.
	lasts time.Duration
	// during, if set, tells what must be so while it lasts, after the cloud has changed.
	during func(*site)
	// isolates tells that nothing of the cloud arrives while it lasts, which is checked: a fault that does no harm
	// proves nothing.
	isolates bool
	// after, if set, tells what must be so when it is over and all has converged.
	after func(*site)
	// changeAfter makes the change in the cloud when the fault is over, not while it lasts.
	changeAfter bool
	// bound is how long converging may take. Where a client of its own waits before it tries again (the wrapper up
	// to 30 s, kube-proxy up to 60 s), that is in it.
	bound time.Duration
	// restarts tells that the wrapper's process ends, and with it the watches of its clients.
	restarts bool
}

// forms is short in the short form, otherwise full.
func forms(short, full time.Duration) time.Duration {
	if testing.Short() {
		return short
	}
	return full
}

// run makes a site, lets the fault befall it and judges what came of it.
func (f fault) run(t *testing.T) { //nolint:thelper // it is the test
	s := newSite(t, f)
	defer s.conclude()
	before := s.level()
	s.startTraffic()
	s.atLeast(20)

	f.inflict(s)
	begin := time.Now()
	if !f.changeAfter {
		s.change()
	}
	if f.during != nil {
		f.during(s)
	}
	s.atLeast(50)
	s.wait(f.lasts - time.Since(begin))
	if f.isolates {
		s.expectIsolated()
	}
	arrived := s.hasConverged() // for a fault that only slows things down
	ended := time.Now()
	if f.relieve != nil {
		f.relieve(s)
	}
	if f.changeAfter {
		s.change()
	}
	s.awaitConverged()
	if s.result.converged = time.Since(ended); arrived {
		s.result.converged = 0
	}
	if f.after != nil {
		f.after(s)
	}
	s.atLeast(50)
	s.endTraffic()
	s.expectNothingLost()
	s.expectLevel(before)
}

// runAll runs faults at the same time.
func runAll(t *testing.T, faults []fault) {
	t.Helper()
	t.Parallel()
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			f.run(t)
		})
	}
}
