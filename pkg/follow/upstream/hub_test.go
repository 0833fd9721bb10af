package upstream

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// behindHub is an Upstream that uses a hub, which is behind its API server.
type behindHub struct {
	*follower

	// cluster and share are what the API server and the hub have. The share has no Service named c.
	cluster, share *upstreamtest.API

	mu sync.Mutex
	// answer is what the API server says in place of the hub, if it is not 0. Guarded by mu.
	answer int
}

func (b *behindHub) hubAnswers(code int) {
	b.mu.Lock()
	b.answer = code
	b.mu.Unlock()
	b.share.Forget()
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
func startBehindHub(t *testing.T, answer int) *behindHub {
	t.Helper()
	b := &behindHub{cluster: smallCluster(), share: smallCluster(), answer: answer}
	b.share.Delete(service("c"))
	host := serve(t, b)
	b.follower = &follower{t: t, api: b.cluster, store: storagetest.New(storagetest.Options{NodeName: "node0"})}
	var err error
	b.upstream, err = New(Options{
		Config: &rest.Config{Host: host}, Facts: b.store.Facts, NodeName: "node0", FollowKubernetesEndpoints: true,
		Hub: &rest.Config{Host: host},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.upstream.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return b
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
	b := startBehindHub(t, 0)
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
	if b.upstream.AsOf().IsZero() {
		t.Error("nothing was ever confirmed")
	}
	for _, r := range b.share.Requests() {
		if agent := r.Header.Get("User-Agent"); !strings.Contains(agent, "+hub-") {
			t.Errorf("a caching proxy cannot tell %s from the API server's: %s", r.Path, agent)
		}
	}
}

// TestAHubThatIsAway: nothing but the hub is followed, whatever it answers, and what is known stays.
func TestAHubThatIsAway(t *testing.T) {
	t.Parallel()
	b := startBehindHub(t, http.StatusNotFound)
	awayIs := func(absent bool) {
		t.Helper()
		b.expectState(SourceShare, func(s follow.State) bool { return s.Err != nil && s.Absent == absent })
	}
	awayIs(true)
	if got := b.names(served.Services); !strings.Contains(got, "not synced") {
		t.Errorf("shown are %s", got)
	}
	b.hubAnswers(0)
	b.expect(served.Services, "a,b")
	b.expectFollowed()
	b.hubAnswers(http.StatusNotFound) // as by a gateway that has lost it
	awayIs(false)
	b.expect(served.Services, "a,b")
	for _, r := range b.cluster.Requests() {
		if !strings.Contains(r.Path, "endpoints") {
			t.Errorf("the API server is asked for %s", r.Path)
		}
	}
}
