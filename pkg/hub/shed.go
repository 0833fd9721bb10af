package hub

import (
	"context"
	"math"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
)

const (
	// shedTolerance is how much more than its part a replica keeps: where connections end up is left to chance.
	shedTolerance = 1.2
	// shedInterval is the pause between two rounds of ending streams, of which each ends that part of what a replica
	// may have. So wrappers move over minutes.
	shedInterval = 5 * time.Second
	shedRounds   = 60
)

// shedder ends streams of a replica that has more of them than its part, so that a replica that came later gets its
// own. A replica knows the number of nodes, and that of the replicas; streams that all of them may have are divided by
// that.
//
// The API server hands many streams on over one connection. So while there are too many, a replica also lets the
// connections of new streams take no more: the next one is a new connection, which comes to any replica.
type shedder struct {
	// nodes and replicas count those of the cluster.
	nodes, replicas func() int

	mu sync.Mutex // guards what follows
	// streams have what ends each stream under way.
	streams map[*context.CancelFunc]struct{}
	// may is how many there may be, as of the last round; 0 if there may be any number.
	may int
	// ended counts the streams that were ended.
	ended int
}

// begin notes a stream, which end ends. full reports whether its connection is to take no more.
func (s *shedder) begin(end context.CancelFunc) (done func(), full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams == nil {
		s.streams = make(map[*context.CancelFunc]struct{})
	}
	s.streams[&end] = struct{}{}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.streams, &end)
	}, s.may > 0 && len(s.streams) > s.may
}

// run sheds until ctx is done.
func (s *shedder) run(ctx context.Context) {
	ticker := time.NewTicker(shedInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if n := s.round(); n > 0 {
				klog.FromContext(ctx).V(2).Info("Ended streams that are another replica's part", "streams", n)
			}
		}
	}
}

// round ends some streams, if there are too many, and returns how many.
func (s *shedder) round() int {
	may := 0
	if replicas := s.replicas(); replicas > 1 {
		may = int(math.Ceil(shedTolerance * float64(s.nodes()) / float64(replicas)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.may = may
	if may == 0 {
		return 0
	}
	n := max(0, min(len(s.streams)-may, may/shedRounds+1))
	left := n
	for end := range s.streams { // in no order
		if left == 0 {
			break
		}
		left--
		delete(s.streams, end)
		(*end)()
	}
	s.ended += n
	return n
}

// endAll ends every stream, and returns how many.
func (s *shedder) endAll() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.streams)
	for end := range s.streams {
		(*end)()
	}
	clear(s.streams)
	return n
}

// stats are how many streams there may be, 0 for any number, and how many were ended.
func (s *shedder) stats() (may, ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.may, s.ended
}

// replicasOf counts the pods that are ready behind a Service.
func replicasOf(f *facts.Facts, service types.NamespacedName) int {
	ready := make(map[types.UID]struct{})
	f.Read(func() {
		s := f.Service(service)
		if s == nil {
			return
		}
		for _, o := range s.Objects(history.EndpointSlices) {
			var slice discoveryv1.EndpointSlice
			if slice.Unmarshal(o.Upstream.Body) != nil {
				continue
			}
			for _, e := range slice.Endpoints {
				if e.TargetRef != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
					ready[e.TargetRef.UID] = struct{}{}
				}
			}
		}
	})
	return len(ready)
}
