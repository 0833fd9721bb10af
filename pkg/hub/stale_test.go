package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/follow"
)

// TestNotCurrent: a hub that has lost its API server says so, so that others are asked. A source on which nothing
// happened for long has lost nothing.
func TestNotCurrent(t *testing.T) {
	t.Parallel()
	now := time.Now()
	states := []follow.State{
		{Name: "nodes", Synced: true, LastContact: now},
		{Name: "services", Synced: true, LastContact: now.Add(-time.Hour), FailingSince: now.Add(-time.Hour)},
	}
	if err := checkStates(states, now); err != nil {
		t.Errorf("got %v", err)
	}
	states[1].Err, states[1].FailingSince = errors.New("away"), now
	if err := checkStates(states, now.Add(stalePatience)); err != nil {
		t.Errorf("at once: %v", err)
	}
	if err := checkStates(states, now.Add(stalePatience+time.Second)); err == nil ||
		!strings.Contains(err.Error(), "services: cannot be followed since") {
		t.Errorf("got %v", err)
	}
	states[0].Synced = false
	if err := checkStates(states, now); err == nil || !strings.Contains(err.Error(), "nodes: not synced") {
		t.Errorf("got %v", err)
	}
}

// TestAStaleReplicaEndsItsStreams: a replica whose own link to the API server is cut ends its streams after its limit,
// and not before. The wrapper goes on with the other replica.
func TestAStaleReplicaEndsItsStreams(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		silent   bool
		earliest time.Duration
		latest   time.Duration
	}{
		{"connections refused", false, stalePatience, stalePatience + noticed},
		{"packets dropped", true, stalePatience, stalePatience + noticedSilent + noticed},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			inSmallFleet(t, func(f *smallFleet) {
				if got := f.streams(); got != "[1 0]" {
					t.Fatalf("the replicas have %s streams", got)
				}
				f.replicas[0].link.set(true, test.silent)
				f.putAddress("10.0.0.2")
				took := f.until("the streams of the stale replica end", func() bool { return f.streams() != "[1 0]" })
				t.Logf("the streams ended after %s", took)
				if took < test.earliest || took > test.latest {
					t.Errorf("the streams ended after %s, want %s to %s", took, test.earliest, test.latest)
				}
				took = f.until("the wrapper is elsewhere", func() bool { return f.streams() == "[0 1]" })
				t.Logf("the wrapper followed the other replica %s later", took)
				if took > comesBack {
					t.Errorf("it took %s to come to the other replica", took)
				}
				f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
				if err := f.replicas[0].checkCurrent(); err == nil {
					t.Error("the stale replica is ready")
				}
				// Mended, it is one as the other.
				f.replicas[0].link.set(false, false)
				f.until("the replica is ready again", func() bool { return f.replicas[0].checkCurrent() == nil })
				if got := f.streams(); got != "[0 1]" {
					t.Errorf("after that the replicas have %s streams", got)
				}
			})
		})
	}
}

// TestAShortCutEndsNoStream: an API server that restarts in a few seconds, or a link that comes back, costs no
// wrapper a list. That nothing had happened for minutes before does not make a replica stale.
func TestAShortCutEndsNoStream(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, func(f *smallFleet) {
		before := f.lists()
		f.replicas[0].link.set(true, false)
		// The last attempt that fails may be followed by a pause of twelve seconds.
		time.Sleep(5 * time.Second)
		f.putAddress("10.0.0.2")
		f.replicas[0].link.set(false, false)
		took := f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
		t.Logf("the wrapper has the news after %s", took)
		if after := f.lists(); after != before {
			t.Errorf("the wrapper listed %d times more", after-before)
		}
		if got := f.streams(); got != "[1 0]" {
			t.Errorf("the replicas have %s streams", got)
		}
	})
}

// TestOneReplicaAfterTheOther: two replicas lose the API server one after the other, for minutes. The wrapper always
// has the news of the one that did not.
func TestOneReplicaAfterTheOther(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, func(f *smallFleet) {
		for round := range 6 {
			cut := f.replicas[round%2].link
			cut.set(true, false)
			address := fmt.Sprintf("10.0.1.%d", round)
			f.putAddress(address)
			took := f.until("the wrapper has the news", func() bool { return f.shown() == address })
			t.Logf("the wrapper has the news after %s", took)
			if most := stalePatience + noticed + comesBack; took > most {
				t.Errorf("the wrapper has the news after %s, not within %s", took, most)
			}
			time.Sleep(2*time.Minute - took)
			cut.set(false, false)
			f.until("the replica is ready again", func() bool { return f.replicas[round%2].checkCurrent() == nil })
		}
	})
}

// lists is how often the wrapper listed.
func (f *smallFleet) lists() (n uint64) {
	for _, s := range f.upstream.States() {
		n += s.Lists
	}
	return n
}

// TestAllReplicasAreStale: the wrapper serves what it knows until the hub is back, however long that takes.
func TestAllReplicasAreStale(t *testing.T) {
	t.Parallel()
	inSmallFleet(t, func(f *smallFleet) {
		for _, r := range f.replicas {
			r.link.set(true, false)
		}
		f.putAddress("10.0.0.2")
		f.until("all streams end", func() bool { return f.streams() == "[0 0]" })
		time.Sleep(time.Hour)
		f.expectShown("10.0.0.1")
		for _, r := range f.replicas {
			r.link.set(false, false)
		}
		f.until("the wrapper has the news", func() bool { return f.shown() == "10.0.0.2" })
	})
}

// TestACutReplicaKeepsNoConnection: while a replica cannot follow the API server, it cannot ask it who may do what
// either. Its refusal is the last answer on its connection, so that the next request may come to another replica.
func TestACutReplicaKeepsNoConnection(t *testing.T) {
	t.Parallel()
	for _, follows := range []bool{true, false} {
		h := startHubWith(t, follows, func(config *genericapiserver.Config) error {
			if !follows {
				config.Authorization.Authorizer = authorizer.AuthorizerFunc(
					func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
						return authorizer.DecisionNoOpinion, "", errors.New("the API server is away")
					})
			}
			return nil
		})
		w := h.record(hubv1alpha1.SharesPath+"/a1", "Test-User=system:serviceaccount:edge:wrapper", "Test-Node=a1")
		closes := w.Header().Get("Connection") == "close"
		if closes == follows || (w.Code == http.StatusOK) != follows {
			t.Errorf("follows %v: status %d, the connection is closed: %v: %s", follows, w.Code, closes, w.Body)
		}
	}
}
