package upstream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow/upstream/upstreamtest"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
)

// behindHub is an Upstream that may use a hub, which is behind its API server.
type behindHub struct {
	*follower

	// cluster and share are what the API server and the hub have. The share has no Service named c.
	cluster, share *upstreamtest.API
	ways           waysSeen

	mu sync.Mutex
	// answer is what the API server says in place of the hub, if it is not 0; room is how many bytes there are for the
	// whole cluster, 0 for any number. Guarded by mu.
	answer int
	room   int64
}

type waysSeen struct {
	mu   sync.Mutex
	seen []string
}

func (w *waysSeen) note(way Way) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, fmt.Sprint("hub=", way.Hub))
}

func (w *waysSeen) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.seen, ",")
}

func (b *behindHub) hubAnswers(code int) {
	b.mu.Lock()
	b.answer = code
	b.mu.Unlock()
	b.share.Forget()
}

// setRoom has so many bytes for the whole cluster.
func (b *behindHub) setRoom(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.room = bytes
}

func (b *behindHub) Room() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.room
}

func (b *behindHub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, hubv1alpha1.GroupVersionPath) {
		b.cluster.ServeHTTP(w, r)
		return
	}
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	if answer != 0 {
		w.WriteHeader(answer)
		return
	}
	b.share.ServeShare(w, r)
}

// startBehindHub runs an Upstream until the test ends. answer is what the hub answers at first.
func startBehindHub(t *testing.T, mode HubMode, fallback time.Duration, answer int) *behindHub {
	t.Helper()
	b := newBehindHub(t, mode, fallback, answer)
	b.run()
	return b
}

func newBehindHub(t *testing.T, mode HubMode, fallback time.Duration, answer int) *behindHub {
	t.Helper()
	b := &behindHub{cluster: smallCluster(), share: smallCluster(), answer: answer}
	b.share.Delete(service("c"))
	host := serve(t, b)
	b.follower = &follower{t: t, api: b.cluster, store: storagetest.New(storagetest.Options{NodeName: "node0"})}
	var err error
	b.upstream, err = New(Options{
		Config: &rest.Config{Host: host}, Facts: b.store.Facts, NodeName: "node0", FollowKubernetesEndpoints: true,
		Hub: HubOptions{
			Mode: mode, Config: &rest.Config{Host: host}, FallbackAfter: fallback, Changing: b.ways.note, Room: b.Room,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.upstream.way.interval, b.upstream.way.probePause = 50*time.Millisecond, 100*time.Millisecond
	return b
}

// run runs the Upstream until the test ends.
func (b *behindHub) run() {
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.upstream.Run(ctx)
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// expectFollowed waits until everything is followed.
func (b *behindHub) expectFollowed() {
	b.t.Helper()
	soon.UntilQuiet(b.t, func() string {
		for _, s := range b.upstream.States() {
			if s.Started && (!s.Synced || s.Err != nil || s.LastContact.IsZero()) {
				return fmt.Sprintf("%+v", s)
			}
		}
		return ""
	})
}

// followed are the resources that were watched there.
func followed(api *upstreamtest.API) string {
	var resources []string
	for _, r := range api.Requests() {
		if len(r.Query["watch"]) > 0 {
			resources = append(resources, r.Path[strings.LastIndex(r.Path, "/")+1:])
		}
	}
	slices.Sort(resources)
	return strings.Join(slices.Compact(resources), ",")
}

// TestTheHubIsFollowed, and of the API server only what a hub has not.
func TestTheHubIsFollowed(t *testing.T) {
	t.Parallel()
	for _, mode := range []HubMode{HubAuto, HubRequire} {
		b := startBehindHub(t, mode, time.Hour, 0)
		b.expect(served.Services, "a,b")
		b.expectFollowed()
		soon.UntilQuiet(t, func() string {
			if got := followed(b.share); got != "shares" {
				return "of the hub: " + got
			}
			if got := followed(b.cluster); got != "endpoints" {
				return "of the API server: " + got
			}
			return ""
		})
		if way := b.upstream.Way(); !way.Hub || way.Reason != nil || b.upstream.AsOf().IsZero() {
			t.Errorf("%+v, as of %s", way, b.upstream.AsOf())
		}
		for _, r := range b.share.Requests() {
			if agent := r.Header.Get("User-Agent"); !strings.Contains(agent, "+hub-") {
				t.Errorf("a caching proxy cannot tell %s from the API server's: %s", r.Path, agent)
			}
		}
	}
}

// TestWithoutAHub the API server is followed at once; when there is one, it is followed in its place.
func TestWithoutAHub(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusNotFound, http.StatusForbidden, http.StatusServiceUnavailable} {
		b := startBehindHub(t, HubAuto, time.Hour, code)
		b.expect(served.Services, "a,b,c")
		if way := b.upstream.Way(); way.Hub || way.Reason == nil {
			t.Errorf("%d: %+v", code, way)
		}
		if asked := followed(b.share); asked != "" {
			t.Errorf("%d: %s of the hub are followed", code, asked)
		}
		b.hubAnswers(0)
		b.expect(served.Services, "a,b")
		b.expectFollowed()
		if way := b.upstream.Way(); !way.Hub || way.Reason != nil {
			t.Errorf("%d: %+v", code, way)
		}
		if got := b.ways.String(); got != "hub=false,hub=true" {
			t.Errorf("%d: %s", code, got)
		}
	}
}

// TestAHubThatIsAway is awaited while there is something to serve, and then done without.
func TestAHubThatIsAway(t *testing.T) {
	t.Parallel()
	b := startBehindHub(t, HubAuto, 2*time.Second, 0)
	b.expect(served.Services, "a,b")
	b.expectFollowed()
	away := time.Now()
	b.hubAnswers(http.StatusNotFound) // as by a gateway that has lost it
	b.expect(served.Services, "a,b,c")
	if took := time.Since(away); took < 2*time.Second {
		t.Errorf("after %s", took)
	}
	if b.upstream.AsOf().IsZero() {
		t.Error("nothing was ever confirmed")
	}
}

// TestBothWaysAway: an API server that is away with the hub behind it is no reason to take the whole cluster from it
// when it returns.
func TestBothWaysAway(t *testing.T) {
	t.Parallel()
	b := startBehindHub(t, HubAuto, time.Nanosecond, 0)
	b.expect(served.Services, "a,b")
	b.expectFollowed()
	b.cluster.Behave(upstreamtest.Behaviour{Failing: http.StatusBadGateway})
	b.hubAnswers(http.StatusBadGateway)
	soon.UntilQuiet(t, func() string {
		asked := 0
		for _, r := range b.cluster.Requests() {
			if strings.HasSuffix(r.Path, "/nodes") {
				asked++
			}
		}
		if asked < 5 {
			return fmt.Sprintf("it is asked %d times whether the API server is there", asked)
		}
		return ""
	})
	if got := b.ways.String(); got != "" {
		t.Errorf("got %s", got)
	}
	b.cluster.Behave(upstreamtest.Behaviour{})
	b.expect(served.Services, "a,b,c")
}

// TestAWayThatDoesNotFit: the whole cluster is not taken from the API server if there is no memory for it. The wrapper
// goes on showing what it has, and says why.
func TestAWayThatDoesNotFit(t *testing.T) {
	t.Parallel()
	b := startBehindHub(t, HubAuto, time.Millisecond, 0)
	b.expect(served.Services, "a,b")
	b.expectFollowed()
	b.setRoom(1)
	b.hubAnswers(http.StatusServiceUnavailable)
	soon.UntilQuiet(t, func() string {
		if way := b.upstream.Way(); !way.Hub || way.Reason == nil || !strings.Contains(way.Reason.Error(), "memory") {
			return fmt.Sprintf("%+v", way)
		}
		return ""
	})
	if got := followed(b.cluster); got != "endpoints" {
		t.Errorf("of the API server %s are followed", got)
	}
	b.expect(served.Services, "a,b")
	b.setRoom(1 << 30)
	b.expect(served.Services, "a,b,c")
	if way := b.upstream.Way(); way.Hub {
		t.Errorf("%+v", way)
	}
}

// TestTheHubComesBackMeanwhile: when the hub comes back while the API server is asked for everything, the wrapper stays
// with it, and notices soon when it is away again.
func TestTheHubComesBackMeanwhile(t *testing.T) {
	t.Parallel()
	b := newBehindHub(t, HubAuto, time.Millisecond, 0)
	b.upstream.way.probePause = time.Hour
	b.cluster.Behave(upstreamtest.Behaviour{Absent: []string{"endpointslices"}}) // so there is never everything
	b.run()
	b.expect(served.Services, "a,b")
	for range 2 {
		before := len(b.cluster.Requests())
		b.hubAnswers(http.StatusServiceUnavailable)
		soon.UntilQuiet(t, func() string {
			for _, r := range b.cluster.Requests()[before:] {
				if strings.HasSuffix(r.Path, "/endpointslices") {
					return ""
				}
			}
			return "the API server is not asked for everything"
		})
		b.hubAnswers(0)
		b.expectFollowed()
		soon.UntilQuiet(t, func() string {
			if b.upstream.way.sources[false][0].State().Started {
				return "the API server is still followed"
			}
			return ""
		})
	}
	if got := b.ways.String(); got != "" {
		t.Errorf("got %s", got)
	}
}

// TestRequired: nothing but the hub is followed, whatever it answers.
func TestRequired(t *testing.T) {
	t.Parallel()
	b := startBehindHub(t, HubRequire, time.Nanosecond, http.StatusNotFound)
	soon.UntilQuiet(t, func() string {
		if state := b.state(SourceShare); state.Err == nil || !state.Absent {
			return fmt.Sprintf("%+v", state)
		}
		return ""
	})
	time.Sleep(3 * hubSettling)
	if got := b.names(served.Services); !strings.Contains(got, "not synced") || !b.upstream.Way().Hub {
		t.Errorf("shown are %s; %+v", got, b.upstream.Way())
	}
	for _, r := range b.cluster.Requests() {
		if !strings.Contains(r.Path, "endpoints") {
			t.Errorf("the API server is asked for %s", r.Path)
		}
	}
	b.hubAnswers(0)
	b.expect(served.Services, "a,b")
}
