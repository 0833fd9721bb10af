package faults

import (
	"net/http"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

func cutLink(s *site)     { s.Must(s.node.CutLink(s.ctx)) }
func restoreLink(s *site) { s.Must(s.node.RestoreLink(s.ctx)) }

func TestLink(t *testing.T) {
	faults := []fault{
		{
			name: "link cut for 5 s", lasts: 5 * time.Second, bound: deadline, isolates: true,
			inflict: cutLink, relieve: restoreLink,
		},
		{
			// There is a connection for calls that are passed on, and nobody has noticed yet that it is dead.
			name: "link cut, asked at once", lasts: 12 * time.Second, bound: deadline, isolates: true,
			inflict: func(s *site) {
				if reply, err := s.get("/version"); err != nil || reply.Status != http.StatusOK {
					s.Fatalf("a call that is passed on: %+v, %v", reply, err)
				}
				cutLink(s)
			},
			relieve: restoreLink, during: (*site).expectRefusal,
		},
		{
			// What is frozen stays so: only new connections work, and it is for the wrapper to notice.
			name: "connections half-open", bound: 90 * time.Second,
			inflict: func(s *site) { s.Must(s.node.FreezeConnections(s.ctx)) },
		},
		{
			name: "30 % loss, 300 ms delay", lasts: forms(10*time.Second, time.Minute), bound: deadline,
			node: cluster.NodeSpec{Interposed: true},
			inflict: func(s *site) {
				s.node.Interposer.Behave(cluster.Behaviour{Delay: 300 * time.Millisecond})
				s.Must(s.node.LoseOnLink(s.ctx, 30))
			},
			relieve: func(s *site) {
				s.node.Interposer.Behave(cluster.Behaviour{})
				restoreLink(s)
			},
		},
	}
	if !testing.Short() {
		faults = append(faults, fault{
			name: "link cut for 2 min", lasts: 2 * time.Minute, bound: deadline, isolates: true,
			inflict: cutLink, relieve: restoreLink,
			during: func(s *site) {
				s.wait(time.Minute) // by then it knows
				s.expectRefusal()
			},
		})
	}
	runAll(t, faults)
}
