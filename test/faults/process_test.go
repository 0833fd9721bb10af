package faults

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/workload"
)

// fromSnapshot is how soon a wrapper must serve from its snapshot; a second is asked for on a quiet machine.
const fromSnapshot = 5 * time.Second

func (s *site) killWrapper() { s.node.Wrapper.Kill() }

// restartOffline kills the wrapper while its upstream is away, and starts it again.
func (s *site) restartOffline() {
	s.Helper()
	s.killWrapper()
	started := time.Now()
	s.Must(s.node.Wrapper.Launch())
	if took := s.expectSnapshotServed(started); took > fromSnapshot {
		s.Errorf("it served from the snapshot %s after its process was started, more than %s", took, fromSnapshot)
	}
}

// reboot reboots the node while its upstream is away. Until its rules are back it reaches nobody, as any node that
// boots.
func (s *site) reboot() {
	s.Helper()
	s.endStream()
	begin := time.Now()
	s.Must(s.node.Reboot(s.ctx))
	s.within(s.fault.bound, "the node reaches its site again", func() error {
		_, err := workload.Ask(s.ctx, s.node, workload.URL(echo))
		return err
	})
	s.lose("the node's reach until %.1f s after it was switched on", time.Since(begin).Seconds())
	s.resumeTraffic()
	s.expectSnapshotServed(begin)
}

// quick is how soon a call that has to be passed on is refused while the upstream is away: 5 s, on a quiet machine.
const quick = 8 * time.Second

// expectRefusal checks what a wrapper answers whose upstream it knows to be away: the node from what it has, and that
// it cannot pass on the rest.
func (s *site) expectRefusal() {
	s.Helper()
	reply, err := s.get("/api/v1/nodes/" + s.node.Spec.Name)
	s.Must(err)
	if reply.Status != http.StatusOK {
		s.Errorf("the own Node was answered with status %d: %s", reply.Status, reply.Body)
	}
	begin := time.Now()
	reply, err = s.get("/api/v1/namespaces/default")
	s.Must(err)
	took := time.Since(begin)
	if reply.Status != http.StatusServiceUnavailable || !strings.Contains(reply.Body, `"kind":"Status"`) ||
		reply.Header.Get("Retry-After") == "" {
		s.Errorf("a call that cannot be passed on was answered with status %d, headers %v: %s", reply.Status,
			reply.Header, reply.Body)
	}
	if took > quick {
		s.Errorf("a call that cannot be passed on was refused after %s, more than %s", took, quick)
	}
	s.Logf("a call that cannot be passed on was refused after %s", took.Round(time.Millisecond))
}

func TestProcess(t *testing.T) {
	runAll(t, []fault{
		{
			name: "wrapper killed -9", lasts: forms(2*time.Second, 20*time.Second), bound: 90 * time.Second,
			restarts: true,
			inflict:  (*site).killWrapper,
			relieve:  func(s *site) { s.Must(s.node.Wrapper.Launch()) },
		},
		{
			name: "wrapper killed -9, link down", lasts: forms(8*time.Second, 60*time.Second), bound: 90 * time.Second,
			restarts: true,
			inflict: func(s *site) {
				s.Kept(writeDelay, s.node)
				cutLink(s)
				s.atLeast(50)
				s.restartOffline()
			},
			during: (*site).expectRefusal, relieve: restoreLink, after: (*site).expectSynced,
		},
		{
			name: "node reboots, link down", lasts: forms(8*time.Second, 60*time.Second), bound: 90 * time.Second,
			restarts:    true,
			changeAfter: true,
			inflict: func(s *site) {
				s.Kept(writeDelay, s.node)
				cutLink(s)
				s.reboot()
			},
			during: (*site).expectRefusal, relieve: restoreLink, after: (*site).expectSynced,
		},
		{
			name: "node reboots, link down, cloud changes", lasts: forms(8*time.Second, 60*time.Second),
			bound: 90 * time.Second, restarts: true,
			inflict: func(s *site) {
				s.Kept(writeDelay, s.node)
				cutLink(s)
				s.reboot()
			},
			during: (*site).expectRefusal, relieve: restoreLink, after: (*site).expectSynced,
		},
	})
}
