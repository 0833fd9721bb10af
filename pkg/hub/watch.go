package hub

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/klog/v2"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/serve"
)

const (
	// reachPatience is how long a request waits for the watches to reach its version. After that the hub asks the API
	// server for its version, because a quiet resource gets a bookmark only once a minute.
	reachPatience = 2 * time.Second
	// reachInterval is the pause between two checks of that version.
	reachInterval = 50 * time.Millisecond
	// relistPatience is how long the API server may take for that.
	relistPatience = 15 * time.Second
	// maxStreams is how many streams, and how many lists, one caller may have of one node's share: one, and those that
	// are about to end.
	maxStreams = 4
	// maxUnknown is the largest number of streams for unknown nodes.
	maxUnknown = 256
)

// errNotCurrent is the answer of a hub that may be stale.
func errNotCurrent(err error) error {
	return serve.NotReady("the hub does not know what the API server has: " + err.Error())
}

// watch answers a WATCH of a node's share.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, node string) error {
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
		r.Header.Del(hubv1alpha1.DigestsHeader) // 2.7 kB that are not needed as long as the stream lasts
	}
	seconds, _ := strconv.Atoi(query.Get("timeoutSeconds")) // what cannot be read is as if it were not there
	key, most := caller(r)+"\n"+node, maxStreams
	if !s.shares.source.NodeExists(node) {
		key, most = "", maxUnknown
	}
	release, err := s.acquire(key, most)
	if err != nil {
		return err
	}
	var share *stream
	if err = s.awaitVersion(r.Context(), version); err == nil {
		share, err = s.shares.beginStream(node, known, release)
	}
	if err != nil {
		release()
		return err
	}
	s.writer.Stream(w, r, hubv1alpha1.Shares, share, time.Duration(max(seconds, 0))*time.Second)
	return nil
}

func tooMany(message string) error {
	return apierrors.NewTooManyRequests(message, int(serve.RetryAfter.Seconds()))
}

// acquire counts a stream or list against the limit for its key. The caller must call release when it is over. acquire
// returns an error if the limit is reached.
func (s *Server) acquire(key string, most int) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay[key] >= most {
		return nil, tooMany("this caller has as many requests for shares under way as one may have")
	}
	s.underWay[key]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.underWay[key]--; s.underWay[key] == 0 {
			delete(s.underWay, key)
		}
	}, nil
}

// awaitVersion waits until the shares have reached a version, or the API server's version if that was restored from a
// backup.
func (s *Server) awaitVersion(ctx context.Context, version hubv1alpha1.Version) error {
	if err := s.checkCurrent(); err != nil {
		return err
	}
	if s.reachesWithin(ctx, reachPatience, version) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, relistPatience)
	defer cancel()
	reached := s.shares.reached.Load()
	for part, source := range s.sources {
		if reached[part] >= version[part] {
			continue
		}
		if err := source.Relist(ctx); err != nil {
			return errNotCurrent(err)
		}
		if listed := source.Version(); listed < version[part] {
			klog.FromContext(ctx).Info("The API server was restored from a backup, going back to what it has",
				"source", source.Name(), "version", listed, "known", version[part])
			version[part] = listed
		}
	}
	if !s.reachesWithin(ctx, relistPatience, version) {
		return serve.NotReady("the hub has not reached the version " + version.String())
	}
	return nil
}

// reachesWithin waits for a version, and reports whether it was reached.
func (s *Server) reachesWithin(ctx context.Context, patience time.Duration, version hubv1alpha1.Version) bool {
	return wait.PollUntilContextTimeout(ctx, reachInterval, patience, true, func(context.Context) (bool, error) {
		return s.shares.reached.Load().Reaches(version), nil
	}) == nil
}

// caller returns the caller of a request for limits: the user, because all requests come from the aggregator's few
// addresses.
func caller(r *http.Request) string {
	user, ok := request.UserFrom(r.Context())
	if !ok {
		return ""
	}
	return strings.Join(append([]string{user.GetName()}, nodesOf(user)...), " ")
}
