package hub

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// reachPatience is how long a request waits until the watches have brought the version that it asks for. Then the
	// API server is asked what it has: a resource that is quiet gets a bookmark once a minute only.
	reachPatience = 2 * time.Second
	// relistPatience is how long the API server may take for that.
	relistPatience = 15 * time.Second
	// maxStreams is how many streams one caller may have of one node's share, and how many lists: one, and those that
	// are about to end.
	maxStreams = 4
	// maxUnknown is how many streams there may be of nodes that are not there.
	maxUnknown = 256
)

// shareServer answers requests for shares.
type shareServer struct {
	shares  *shares
	sources sources
	// current says why what is shared may not be what the cluster has; nil if it is.
	current func() error
	// server writes streams.
	server  *serve.Server
	streams callerStreams
	// refused counts the requests that were answered 429.
	refused atomic.Int64
}

// errNotSynced is the answer of a hub that has nothing to share yet.
var errNotSynced = serve.NotReady("the hub is not synced with the API server yet")

// errNotCurrent is the answer of a hub that may be stale.
func errNotCurrent(err error) error {
	return serve.NotReady("the hub does not know what the API server has: " + err.Error())
}

// Serve answers a WATCH of a node's share, or a GET.
func (s *shareServer) Serve(w http.ResponseWriter, r *http.Request, node string, watch bool) {
	answer := s.list
	if watch {
		answer = s.stream
	}
	err := answer(w, r, node)
	if apierrors.IsTooManyRequests(err) {
		s.refused.Add(1)
	}
	if err != nil {
		serve.WriteError(w, r, err)
	}
}

func (s *shareServer) stream(w http.ResponseWriter, r *http.Request, node string) error {
	query := r.URL.Query()
	if node == "" {
		return apierrors.NewBadRequest("a share is one node's: give fieldSelector=metadata.name=NODE")
	}
	if !strings.Contains(r.Header.Get("Accept"), runtime.ContentTypeProtobuf) ||
		!strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		return serve.NotAcceptable("a share is sent as " + runtime.ContentTypeProtobuf + ", compressed with gzip")
	}
	version, err := hubv1alpha1.ParseVersion(query.Get("resourceVersion"))
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	var known *hubv1alpha1.Digests
	if header := r.Header.Get(hubv1alpha1.DigestsHeader); header != "" {
		if known, err = hubv1alpha1.ParseDigests(header); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds")) // what cannot be read is as if it were not there
	key, most := caller(r)+"\n"+node, maxStreams
	if !s.shares.source.NodeExists(node) {
		key, most = "", maxUnknown
	}
	leave, err := s.streams.enter(key, most)
	if err != nil {
		return err
	}
	restored, err := s.reach(r.Context(), version)
	var followed *stream
	if err == nil {
		followed, err = s.shares.follow(node, known, restored, leave)
	}
	if err != nil {
		leave()
		return err
	}
	s.server.Stream(w, r, hubv1alpha1.Shares, followed, time.Duration(max(seconds, 0))*time.Second)
	return nil
}

func tooMany(message string) error {
	return apierrors.NewTooManyRequests(message, int(serve.RetryAfter.Seconds()))
}

// callerStreams counts the streams and lists under way, those that have not begun included.
type callerStreams struct {
	mu sync.Mutex
	// counts are by caller and node, guarded by mu.
	counts map[string]int
}

// enter counts a stream of which there may be so many with the same key. leave is to be called when it is over. The
// error says that there are as many.
func (c *callerStreams) enter(key string, most int) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts[key] >= most {
		return nil, tooMany("this caller has as many requests for shares under way as one may have")
	}
	c.counts[key]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.counts[key]--; c.counts[key] == 0 {
			delete(c.counts, key)
		}
	}, nil
}

// reach waits until the shares have reached a version. restored is set if the API server itself has not: it was
// restored from a backup.
func (s *shareServer) reach(ctx context.Context, version hubv1alpha1.Version) (restored bool, err error) {
	if err := s.current(); err != nil {
		return false, errNotCurrent(err)
	}
	if s.await(ctx, reachPatience, version) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, relistPatience)
	defer cancel()
	reached, _ := s.shares.reached()
	for part, source := range s.sources {
		if reached[part] >= version[part] {
			continue
		}
		if err := source.Relist(ctx); err != nil {
			return false, errNotCurrent(err)
		}
		if listed := number(source.State().ResourceVersion); listed < version[part] {
			restored, version[part] = true, min(listed, version[part])
		}
	}
	if !s.await(ctx, relistPatience, version) {
		return false, serve.NotReady("the hub has not reached the version " + version.String())
	}
	return restored, nil
}

// await waits for a version, and reports whether it came.
func (s *shareServer) await(ctx context.Context, patience time.Duration, version hubv1alpha1.Version) bool {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		reached, progressed := s.shares.reached()
		if reached.Reaches(version) {
			return true
		}
		select {
		case <-progressed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

// caller is who asks, as limits tell callers apart: everybody comes from the aggregator's few addresses.
func caller(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return ""
	}
	return strings.Join(append([]string{user.GetName()}, nodesOf(user)...), " ")
}
