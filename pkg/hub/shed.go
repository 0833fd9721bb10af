package hub

import (
	"errors"
	"math"
	"sync/atomic"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

const (
	// shedTolerance is how much more than its part a replica keeps: where connections end up is left to chance.
	shedTolerance = 1.2
	// shedLooks is how many seconds are between two rounds of ending streams.
	shedLooks = 5
	// shedRounds is how many rounds of ending streams it takes at most to end as many as a replica may have. So
	// wrappers move over minutes.
	shedRounds = 60
)

// errShed ends a stream that is another replica's part.
var errShed = errors.New("another replica has fewer streams")

// shedder ends streams of a replica that has more of them than its part, so that a replica that came later gets its
// own. A replica knows the number of nodes, and that of the replicas; streams that all of them may have are divided by
// that.
//
// The API server hands many streams on over one connection. So while there are too many, a replica also lets the
// connections of new streams take no more: the next one is a new connection, which comes to any replica.
type shedder struct {
	// nodes and replicas count those of the cluster, streams the replica's own; end ends at most so many.
	nodes, replicas, streams func() int
	end                      func(int, error) int

	// may is how many streams there may be, as of the last round; 0 if there may be any number. ended counts those that
	// were ended.
	may, ended atomic.Int64
}

// full reports whether there are more streams than there may be.
func (s *shedder) full() bool {
	may := s.may.Load()
	return may > 0 && int64(s.streams()) > may
}

// round ends some streams, if there are too many, and returns how many.
func (s *shedder) round() int {
	may := 0
	if replicas := s.replicas(); replicas > 1 {
		may = int(math.Ceil(shedTolerance * float64(s.nodes()) / float64(replicas)))
	}
	s.may.Store(int64(may))
	if may == 0 {
		return 0
	}
	n := s.end(max(0, min(s.streams()-may, may/shedRounds+1)), errShed)
	s.ended.Add(int64(n))
	return n
}

// replicasOf counts the pods that are ready behind a Service.
func replicasOf(f *facts.Facts, service types.NamespacedName) int {
	ready := make(map[types.UID]struct{})
	f.Read(func() {
		s := f.Service(service)
		if s == nil {
			return
		}
		for _, o := range s.Objects(served.EndpointSlices) {
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
