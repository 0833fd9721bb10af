package faults

import (
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
	s.must(s.node.Wrapper.Launch())
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
	s.must(s.node.Reboot(s.ctx))
	s.eventually(s.fault.bound, "the node reaches its unit again", func() error {
		_, err := workload.Ask(s.ctx, s.node, workload.URL(echo))
		return err
	})
	s.lose("the node's reach until %.1f s after it was switched on", time.Since(begin).Seconds())
	s.resumeTraffic()
	s.expectSnapshotServed(begin)
}

func TestProcess(t *testing.T) {
	runAll(t, []fault{
		{
			name: "wrapper killed -9", lasts: forms(2*time.Second, 20*time.Second), bound: 90 * time.Second, restarts: true,
			inflict: (*site).killWrapper,
			relieve: func(s *site) { s.must(s.node.Wrapper.Launch()) },
		},
		{
			name: "wrapper killed -9, link down", lasts: forms(8*time.Second, 60*time.Second), bound: 90 * time.Second, restarts: true,
			inflict: func(s *site) {
				s.kept()
				cutLink(s)
				s.atLeast(50)
				s.restartOffline()
			},
			relieve: restoreLink, after: (*site).expectSynced,
		},
		{
			name: "node reboots, link down", lasts: forms(8*time.Second, 60*time.Second), bound: 90 * time.Second, restarts: true,
			changeAfter: true,
			inflict: func(s *site) {
				s.kept()
				cutLink(s)
				s.reboot()
			},
			relieve: restoreLink, after: (*site).expectSynced,
		},
		{
			name: "node reboots, link down, cloud changes", lasts: forms(8*time.Second, 60*time.Second), bound: 90 * time.Second, restarts: true,
			inflict: func(s *site) {
				s.kept()
				cutLink(s)
				s.reboot()
			},
			relieve: restoreLink, after: (*site).expectSynced,
		},
	})
}
