package faults

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/storage/snapshot"
)

// A wrapper whose clock is a day behind that of the process before it numbers its events above those nevertheless, and
// a client that comes with one of those is told to list again. The clock of one process cannot be set alone, so it is
// the state directory that comes from a day ahead.
func TestClockSetBack(t *testing.T) {
	t.Parallel()
	const ahead = 24 * time.Hour
	f := fault{name: "clock set back by a day", bound: 90 * time.Second, restarts: true}
	var given uint64
	f.inflict = func(s *site) {
		s.Kept(writeDelay, s.node)
		s.killWrapper()
		given = uint64(time.Now().Add(ahead).UnixMicro())
		dir, state, _, err := snapshot.Open(snapshot.Options{Path: s.node.StateDir, NodeName: s.node.Name(),
			Logger: logr.Discard()})
		s.Must(err)
		state.Revision = given
		state.AsOf = time.Now().Add(ahead) // so that it is written
		_, err = dir.Save(state, given)
		s.Must(errors.Join(err, dir.Close()))
		s.Must(s.node.Wrapper.Launch())
	}
	f.after = func(s *site) {
		list, err := s.observer.client.Resource(observed[0]).List(s.ctx, metav1.ListOptions{})
		s.Must(err)
		revision, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
		s.Must(err)
		if revision <= given {
			s.Errorf("after revision %d was given out, the process with the earlier clock is at %d", given, revision)
		}
		for _, old := range []uint64{given, given - 1000, uint64(time.Now().UnixMicro())} {
			reply, err := s.get(fmt.Sprintf("/api/v1/services?watch=true&timeoutSeconds=1&resourceVersion=%d", old))
			s.Must(err)
			if reply.Status != http.StatusGone {
				s.Errorf("a watch from revision %d, of before the restart, was answered with status %d: %s", old,
					reply.Status, reply.Body)
			}
		}
	}
	f.run(t)
}
