package follow

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
)

// TestStartAndStop: both may be called at any time and any number of times, and nothing is heard after a stop.
func TestStartAndStop(t *testing.T) {
	inWorld(t, func(w *world) {
		services := w.add("services", nil)
		slices := w.add("endpointslices", nil)
		slices.Stop()
		slices.Stop()
		services.Start()
		if s := slices.State(); s.Started {
			t.Errorf("stopped before Run: %+v", s)
		}
		w.run()
		w.expect("services=1")
		slices.Start()
		slices.Start()
		synctest.Wait()
		w.expect("endpointslices=1")
		services.Stop()
		w.api.Put(service("t"))
		synctest.Wait()
		w.expect("")
		if s := services.State(); s.Started || s.Synced || s.Lists != 1 {
			t.Errorf("stopped: %+v", s)
		}
		services.Start()
		synctest.Wait()
		w.expect("services=2")
		services.Stop()
		services.Start()
		synctest.Wait()
		w.expect("services=2")
	})
}

// TestStartedAfterTheEnd: a source that is started when Run has returned does nothing.
func TestStartedAfterTheEnd(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		w.run()
		w.end()
		w.heard()
		s.Stop()
		s.Start()
		synctest.Wait()
		w.expect("")
	})
}

// TestAttemptsAreMadeTogether: in an outage all sources ask at the same moments, and when one is answered the others
// ask at once.
func TestAttemptsAreMadeTogether(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("nodes", nil)
		w.add("services", nil)
		w.add("endpointslices", nil)
		w.run()
		w.sleep(10 * time.Second)
		began := w.now()
		all := []string{"nodes", "services", "endpointslices"}
		w.answer(refuseConnection, all...)
		w.breakWatches()
		w.sleep(5 * time.Minute)
		nodes := w.asked("nodes", began)
		for _, resource := range all[1:] {
			if got := w.asked(resource, began); !slices.Equal(got, nodes) {
				t.Errorf("%s are asked for after %v, nodes after %v", resource, got, nodes)
			}
		}
		// The first attempt is made at once, and the pauses double to 15 s on the average.
		if len(nodes) < 15 || len(nodes) > 40 {
			t.Errorf("%d attempts in 5 minutes: %v", len(nodes), nodes)
		}
		for i := 1; i < len(nodes); i++ {
			mean := min(firstPause<<min(i-1, 10), longestPause)
			if pause := nodes[i] - nodes[i-1]; pause < mean/2 || pause > mean*3/2 {
				t.Errorf("pause %d is %s, and %s on the average is due", i, pause, mean)
			}
		}

		// Nodes are answered 2 s before the others would be; they do not wait for the next round.
		var back time.Duration
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			if back == 0 {
				back = w.now()
				w.answer(nil, "services", "endpointslices")
			}
			api.ServeHTTP(rw, r)
		}, "nodes")
		w.sleep(30 * time.Second)
		for _, resource := range all[1:] {
			after := slices.DeleteFunc(w.asked(resource, back), func(at time.Duration) bool { return at == back })
			if len(after) > 0 && after[0] > back+quiet {
				t.Errorf("%s are asked for %s after the nodes were answered", resource, after[0]-back)
			}
		}
		for _, s := range w.group.States() {
			if s.Err != nil {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestAnswersListsAndFailsWatches: such an upstream is not asked all the time, although every list is a success.
func TestAnswersListsAndFailsWatches(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("nodes", nil)
		w.add("services", nil)
		fails := watches(status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable))
		w.answer(fails, "nodes", "services")
		w.run()
		w.sleep(10 * time.Minute)
		if got := len(w.asked("services", 0)); got > 2*60 {
			t.Errorf("asked %d times in 10 minutes", got)
		}
		if lists := w.group.States()[1].Lists; lists > 1+uint64(10*time.Minute/longBreak) {
			t.Errorf("%d lists, though only watches fail", lists)
		}
	})
}

// TestExpiry: a watch that is refused as too old is followed by a list at once; one that is refused right after the
// list is not repeated without a pause.
func TestExpiry(t *testing.T) {
	inWorld(t, func(w *world) {
		w.followed("services")
		w.api.Put(service("t"))
		w.api.Forget()
		synctest.Wait()
		w.expect("services=2")

		began := w.now()
		w.answer(watches(status(http.StatusGone, metav1.StatusReasonExpired)), "services")
		w.breakWatches()
		w.sleep(time.Minute)
		// A list and a watch each time; with the shortest pauses, which begin again once, there are 19 times.
		if got := len(w.asked("services", began)); got < 4 || got > 38 {
			t.Errorf("asked %d times in a minute", got)
		}
		if s := w.group.States()[0]; !errors.Is(s.Err, errExpired) {
			t.Errorf("%+v", s)
		}
		w.answer(nil, "services")
		w.sleep(time.Minute)
		if s := w.group.States()[0]; s.Err != nil {
			t.Errorf("%+v", s)
		}
	})
}

// TestRetryAfter: what an upstream asks for is heeded.
func TestRetryAfter(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("services", nil)
		w.answer(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
			rw.Header().Set("Retry-After", "20")
			http.Error(rw, "too many requests", http.StatusTooManyRequests) // as kube-apiserver writes it
		}, "services")
		w.run()
		w.sleep(19 * time.Second)
		if got := w.asked("services", 0); len(got) != 1 {
			t.Errorf("asked after %v", got)
		}
		w.sleep(2 * time.Second)
		if got := w.asked("services", 0); len(got) != 2 {
			t.Errorf("asked after %v", got)
		}
	})
}

// TestUnbelievable: a list of nothing without a resourceVersion is what a proxy makes up.
func TestUnbelievable(t *testing.T) {
	t.Parallel()
	for name, judge := range map[string]func(*world){
		"had objects":         listAfterObjects,
		"the sink knows some": listAfterRestoredObjects,
		"of another kind":     listOfAnotherKind,
		"of no kind":          emptyListOfNoKind,
		"events of another":   eventsOfAnotherKind,
		"no list at all":      objectForAList,
		"nothing was known":   listAtFirst,
		"the witness decides": listWithWitness,
	} {
		t.Run(name, func(t *testing.T) { inWorld(t, judge) })
	}
}

// emptyList is a list without objects, after which no watch is served.
func emptyList(version string) hand {
	return func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
		if isWatch(r) {
			status(http.StatusGone, metav1.StatusReasonExpired)(rw, r, api)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":%q},"items":[]}`,
			version)
	}
}

func listAfterObjects(w *world) {
	s := w.add("services", nil)
	w.run()
	w.expect("services=1")
	w.sleep(10 * time.Second)
	w.answer(emptyList(""), "services")
	w.breakWatches()
	w.sleep(time.Minute)
	w.expect("")
	if state := s.State(); !errors.Is(state.Err, ErrUnbelievable) || state.Lists != 1 {
		w.t.Errorf("%+v", state)
	}
	w.answer(emptyList("1000"), "services")
	w.sleep(time.Minute)
	if heard := w.heard(); !strings.HasPrefix(heard, "services=0") {
		w.t.Errorf("one with a resourceVersion is not believed: %q", heard)
	}
}

func listAfterRestoredObjects(w *world) {
	s := w.add("services", func(o *Options) { o.Sink = restored{sink{w, "services"}} })
	w.answer(emptyList(""), "services")
	w.run()
	w.sleep(time.Minute)
	w.expect("")
	if state := s.State(); !errors.Is(state.Err, ErrUnbelievable) || state.Synced {
		w.t.Errorf("%+v", state)
	}
}

func listOfAnotherKind(w *world) {
	s := w.add("services", nil)
	w.run()
	w.expect("services=1")
	w.sleep(10 * time.Second)
	w.answer(func(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
		r.URL.Path = "/apis/discovery.k8s.io/v1/endpointslices"
		w.api.ServeHTTP(rw, r)
	}, "services")
	refusesList(w, s, "the upstream sent EndpointSliceList in place of a list of services")
}

// refusesList lets a source list again, and expects that nothing changes but its error.
func refusesList(w *world, s *Source, want string) {
	w.breakWatches()
	w.api.Forget()
	w.breakWatches()
	w.sleep(time.Minute)
	w.expect("")
	if err := s.State().Err; err == nil || err.Error() != want {
		w.t.Errorf("%v, want %s", err, want)
	}
}

func eventsOfAnotherKind(w *world) {
	w.add("services", nil)
	w.run()
	w.expect("services=1")
	w.sleep(10 * time.Second)
	w.answer(watches(func(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
		r.URL.Path = "/apis/discovery.k8s.io/v1/endpointslices"
		w.api.ServeHTTP(rw, r)
	}), "services")
	w.breakWatches()
	w.sleep(time.Minute)
	w.api.Put(slice("s-2"))
	w.sleep(time.Minute)
	w.expect("")
}

func emptyListOfNoKind(w *world) {
	s := w.add("services", nil)
	w.run()
	w.expect("services=1")
	w.sleep(10 * time.Second)
	w.answer(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Query().Has("watch") {
			next.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprint(rw, `{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":null}`)
	}, "services")
	refusesList(w, s, "the upstream sent List in place of a list of services")
}

func objectForAList(w *world) {
	w.answer(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprint(rw, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"s","resourceVersion":"7"}}`)
	}, "services")
	s := w.add("services", nil)
	w.run()
	w.sleep(time.Minute)
	w.expect("")
	if err := s.State().Err; err == nil || !strings.HasSuffix(err.Error(), "in place of a list") || s.State().Synced {
		w.t.Errorf("%+v", s.State())
	}
}

func listAtFirst(w *world) {
	s := w.add("services", nil)
	w.answer(emptyList(""), "services")
	w.run()
	if heard := w.heard(); heard != "services=0" || !s.State().Synced {
		w.t.Errorf("%q, %+v", heard, s.State())
	}
}

func listWithWitness(w *world) {
	witness, err := w.group.NodeWitness("node0")
	if err != nil {
		w.t.Fatal(err)
	}
	s := w.add("services", func(o *Options) { o.Witness = witness })
	w.run()
	w.sleep(10 * time.Second)
	w.heard()
	w.answer(emptyList("1000"), "services")
	w.answer(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprint(rw, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`)
	}, "nodes")
	w.breakWatches()
	w.sleep(time.Minute)
	w.expect("")
	if err := s.State().Err; err == nil || !strings.Contains(err.Error(), "does not know node node0") {
		w.t.Errorf("%v", err)
	}
	w.answer(nil, "nodes")
	w.sleep(time.Minute)
	if heard := w.heard(); !strings.HasPrefix(heard, "services=0") {
		w.t.Errorf("heard %q", heard)
	}
}

// restored is a sink that has objects of a snapshot.
type restored struct{ sink }

func (restored) ObjectCount() int { return 3 }

// TestRefusedAndAbsent: for an optional source that is a state, asked about rarely; a needed one keeps what it has.
func TestRefusedAndAbsent(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		hand hand
		want string
		is   func(State) bool
	}{
		"403": {
			status(http.StatusForbidden, metav1.StatusReasonForbidden), "endpoints forbidden",
			func(s State) bool { return s.Forbidden && !s.Absent },
		},
		"401": {
			status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), "endpoints forbidden",
			func(s State) bool { return s.Forbidden && !s.Absent },
		},
		"404": {
			status(http.StatusNotFound, metav1.StatusReasonNotFound), "endpoints absent",
			func(s State) bool { return s.Absent && !s.Forbidden },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.add("endpoints", optional)
				w.answer(test.hand, "endpoints")
				w.run()
				w.sleep(5 * time.Second)
				if heard := w.heard(); !strings.HasPrefix(heard, test.want) || !test.is(s.State()) ||
					s.State().Err == nil {
					t.Errorf("heard %q, %+v", heard, s.State())
				}
				w.sleep(25 * time.Second)
				began := w.now()
				w.sleep(time.Hour)
				if got := len(w.asked("endpoints", began)); got < 30 || got > 60 {
					t.Errorf("asked %d times in an hour", got)
				}
				w.answer(nil, "endpoints")
				w.sleep(2 * time.Minute)
				if state := s.State(); !state.Synced || state.Absent || state.Forbidden || state.Err != nil {
					t.Errorf("when it is there: %+v", state)
				}
			})
		})
		t.Run(name+" of a needed source", func(t *testing.T) {
			inWorld(t, func(w *world) {
				s := w.followed("endpoints")
				w.answer(test.hand, "endpoints")
				w.breakWatches()
				w.sleep(10 * time.Second)
				if state := s.State(); state.Forbidden || state.Absent {
					t.Errorf("too early: %+v", state)
				}
				w.sleep(time.Minute)
				w.expect("")
				if state := s.State(); state.Err == nil || state.Absent || state.Forbidden == (name == "404") {
					t.Errorf("%+v", state)
				}
			})
		})
	}
}

// TestOptionalSourcesComeBackWithTheRest: their long pauses are not for outages.
func TestOptionalSourcesComeBackWithTheRest(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("services", nil)
		s := w.add("endpoints", optional)
		w.answer(refuseConnection, "services", "endpoints")
		w.run()
		w.sleep(10 * time.Minute)
		w.answer(nil, "services", "endpoints")
		w.sleep(longestPause*3/2 + 2*quiet)
		if state := s.State(); state.Err != nil {
			t.Errorf("%+v", state)
		}
	})
}

// TestAnsweredFromACache: an upstream that is there, and whose API server is not.
func TestAnsweredFromACache(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.followed("services")

		// An event comes just before the cloud leaves.
		w.api.Put(service("t"))
		synctest.Wait()
		contact := s.State().LastContact
		w.heard()
		offline := func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			rw.Header().Set("Content-Type", "application/json")
			if !isWatch(r) {
				api.ServeHTTP(rw, r)
			}
		}
		began := w.now()
		w.answer(offline, "services")
		w.breakWatches()
		w.sleep(10 * time.Second)
		if state := s.State(); !state.FromCache || !errors.Is(state.Err, ErrFromCache) ||
			!state.LastContact.Equal(contact) {
			t.Errorf("after 10 s: %+v, last contact was %s", state, contact)
		}
		w.sleep(10 * time.Minute)
		if state := s.State(); !state.FromCache || !state.LastContact.Equal(contact) || !state.Synced {
			t.Errorf("after 10 minutes: %+v", state)
		}
		if got := len(w.asked("services", began)); got > 130 {
			t.Errorf("asked %d times in 10 minutes", got)
		}
		// The cache is older than what was heard: it is not believed.
		w.heard()
		w.answer(func(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
			rw.Header().Set("Content-Type", "application/json")
			if !isWatch(r) {
				fmt.Fprint(rw,
					`{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"7"},`+
						`"items":[{"metadata":{"name":"old","namespace":"default"}}]}`)
			}
		}, "services")
		w.sleep(time.Minute)
		w.expect("")
		if state := s.State(); !state.FromCache || !errors.Is(state.Err, ErrFromCache) ||
			!state.LastContact.Equal(contact) {
			t.Errorf("an old list: %+v", state)
		}
		// One that really follows clears it.
		w.answer(nil, "services")
		w.sleep(30 * time.Second)
		if state := s.State(); state.FromCache || state.Err != nil || !state.LastContact.After(contact) {
			t.Errorf("when it follows: %+v", state)
		}
	})
}

// TestACacheThatSaysSo holds its watches until the API server is back. Such a watch is no contact, and the end of it is
// no failure.
func TestACacheThatSaysSo(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		w.run()
		w.sleep(10 * time.Second)
		contact := s.State().LastContact
		away := make(chan struct{})
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			rw.Header().Set("Warning", `112 lite-apiserver "kube-apiserver is away"`)
			if !isWatch(r) {
				api.ServeHTTP(rw, r)
				return
			}
			rw.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-away:
			case <-r.Context().Done():
			}
		}, "services")
		w.breakWatches()
		began := w.now()
		w.sleep(40 * time.Second)
		if state := s.State(); !state.FromCache || !errors.Is(state.Err, ErrFromCache) ||
			!state.LastContact.Equal(contact) || len(w.asked("services", began)) > 4 {
			t.Errorf("away: %+v, last contact was %s, asked %v", state, contact, w.asked("services", began))
		}
		w.answer(nil, "services")
		close(away)
		w.sleep(3 * time.Second)
		if state := s.State(); state.FromCache || state.Err != nil || !state.LastContact.After(contact) {
			t.Errorf("back: %+v", state)
		}
	})
}

// cautious is a sink that takes what a cache has restored.
type cautious struct{ sink }

func (s cautious) SetRestored(restored bool) {
	s.w.say(fmt.Sprintf("%s restored=%v", s.name, restored))
}

// TestACacheThatRestores: a Sink that takes its changes knows which are restored, before the first and after the last.
// That what it has is not restored any more only a list says.
func TestACacheThatRestores(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", func(o *Options) { o.Sink = cautious{sink{w, "services"}} })
		w.run()
		w.sleep(10 * time.Second)
		w.expect("services=1")
		restores := func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			rw.Header().Set("Warning", `112 - "restored"`)
			api.ServeHTTP(rw, r)
		}
		w.answer(restores, "services")
		w.breakWatches()
		w.sleep(time.Second)
		w.api.Put(service("corrected"))
		w.sleep(10 * time.Second)
		w.expect("services restored=true, services+corrected")
		if state := s.State(); state.FromCache || state.Err != nil {
			t.Errorf("restored: %+v", state)
		}
		w.answer(nil, "services")
		w.breakWatches()
		w.sleep(10 * time.Second)
		w.expect("services=2, services restored=false")

		w.answer(restores, "services")
		w.group.Relist()
		w.sleep(10 * time.Second)
		w.expect("services restored=true, services=2")
		// Lists of a cache before watches of an API server are no reason to list all the time.
		w.answer(lists(restores), "services")
		w.breakWatches()
		began := w.now()
		w.sleep(time.Minute)
		if asked := len(w.asked("services", began)); asked > 40 || !errors.Is(s.State().Err, ErrFromCache) {
			t.Errorf("asked %d times: %+v", asked, s.State())
		}
		w.heard()
		w.answer(nil, "services")
		w.sleep(time.Minute)
		w.expect("services=2, services restored=false")
	})
}

// TestACacheAtTheStart: what only a cache ever said is no contact at all.
func TestACacheAtTheStart(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			if !isWatch(r) {
				api.ServeHTTP(rw, r)
			}
		}, "services")
		w.run()
		w.sleep(time.Minute)
		if state := s.State(); !state.FromCache || !state.LastContact.IsZero() || !state.Synced {
			t.Errorf("%+v", state)
		}
	})
}

// TestListWithoutAVersionIsNotOlder: what a list without a resourceVersion has may be of any age.
func TestListWithoutAVersionIsNotOlder(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Behave(upstreamtest.Behaviour{NoListRevision: true})
		s := w.add("services", nil)
		w.run()
		w.sleep(3 * quiet)
		w.api.Put(service("t"))
		w.api.Delete(service("t")) // the last version is that of an object that has gone
		synctest.Wait()
		w.heard()
		w.api.Forget()
		synctest.Wait()
		w.expect("services=1")
		if state := s.State(); state.FromCache || state.Lists != 2 {
			t.Errorf("%+v", state)
		}
	})
}

// TestListThatFailsBehindACache: the watch is tried all the same.
func TestListThatFailsBehindACache(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.followed("services")
		notFound := status(http.StatusNotFound, metav1.StatusReasonNotFound)
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			if !isWatch(r) {
				notFound(rw, r, api)
			}
		}, "services")
		w.breakWatches()
		w.sleep(5 * time.Minute)
		w.expect("")
		if state := s.State(); !state.FromCache || state.Absent {
			t.Errorf("%+v", state)
		}
		w.answer(lists(notFound), "services")
		w.sleep(time.Minute)
		if state := s.State(); state.FromCache || state.Err != nil || state.Lists != 1 {
			t.Errorf("when watches work again: %+v", state)
		}
	})
}

// TestServerThatStops: two watches that end at once are no cache, and no error.
func TestServerThatStops(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		w.run()
		w.sleep(10 * time.Second)
		ends := 0
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			if ends++; ends <= emptyWatches-1 {
				return
			}
			api.ServeHTTP(rw, r)
		}, "services")
		w.breakWatches()
		w.sleep(20 * time.Second)
		if state := s.State(); state.FromCache || state.Err != nil || state.Lists != 1 {
			t.Errorf("%+v", state)
		}
	})
}

// TestHangingWatch: one that says nothing from its start on is given up within 150 s, also where no bookmark ever came;
// and one that is merely quiet is no error.
func TestHangingWatch(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		var opened []time.Duration
		w.answer(func(rw http.ResponseWriter, r *http.Request, api http.Handler) {
			if !isWatch(r) {
				api.ServeHTTP(rw, r)
				return
			}
			opened = append(opened, w.now())
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Value(clientKey{}).(context.Context).Done() // it does not keep to timeoutSeconds either
		}, "services")
		w.run()
		w.sleep(10 * time.Minute)
		if len(opened) < 4 {
			t.Fatalf("watches were opened after %v", opened)
		}
		for i := 1; i < len(opened); i++ {
			if hung := opened[i] - opened[i-1]; hung > 151*time.Second {
				t.Errorf("a watch hung for %s", hung)
			}
		}
		if state := s.State(); state.Lists != 1 {
			t.Errorf("%+v", state)
		}
	})
}

// TestWatchesAreLongAfterABookmark: a watch is renewed every minute or two until the upstream has sent a bookmark,
// by which its silence is noticed.
func TestWatchesAreLongAfterABookmark(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.Behave(upstreamtest.Behaviour{Bookmarks: 50 * time.Second})
		w.add("services", nil)
		w.run()
		w.sleep(5 * time.Minute)
		began := w.now()
		w.sleep(time.Hour)
		if asked := w.asked("services", began); len(asked) > 15 {
			t.Errorf("asked %d times in an hour: %v", len(asked), asked)
		}
	})
}

// TestUserAgents: every source has its own, in the part before the first space, and watches are not compressed.
func TestUserAgents(t *testing.T) {
	inWorld(t, func(w *world) {
		w.add("nodes", func(o *Options) { o.MetadataOnly = true })
		own := w.add("nodes", func(o *Options) { o.Name, o.FieldSelector = "node", "metadata.name=node0" })
		w.add("services", func(o *Options) { o.Agent = "services.two" })
		w.run()
		if _, err := own.Request("addresses").Do(context.Background()).Raw(); err != nil {
			t.Fatal(err)
		}
		agents := map[string]bool{}
		for _, r := range w.api.Requests() {
			agent := r.Header.Get("User-Agent")
			agents[agent] = true
			if !strings.HasSuffix(agent, " (linux)") {
				t.Errorf("User-Agent %q", agent)
			}
			if r.Query["watch"] != nil && r.Header.Get("Accept-Encoding") != "identity" {
				t.Errorf("a watch with Accept-Encoding %q", r.Header.Get("Accept-Encoding"))
			}
			if r.Query["limit"] != nil {
				t.Errorf("a followed list in pages: %v", r.Query)
			}
		}
		for _, part := range []string{"nodes", "node", "services.two", "addresses"} {
			if !agents["tester/v1+"+part+" (linux)"] {
				t.Errorf("%s has no User-Agent of its own: %v", part, agents)
			}
		}
	})
}

// TestOddUpstreams lists upstreams that answer otherwise than a kube-apiserver.
func TestOddUpstreams(t *testing.T) {
	t.Parallel()
	for name, behaviour := range map[string]upstreamtest.Behaviour{
		"no resourceVersion": {NoListRevision: true}, "JSON": {JSONOnly: true}, "whole objects": {WholeObjects: true},
		"whole objects in JSON": {WholeObjects: true, JSONOnly: true},
		"pages":                 {PageSize: 1}, "pages in JSON": {PageSize: 1, JSONOnly: true},
		"pages without resourceVersion":         {PageSize: 1, NoListRevision: true},
		"pages in JSON without resourceVersion": {PageSize: 1, JSONOnly: true, NoListRevision: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.Put(service("t"))
				w.api.Behave(behaviour)
				w.add("services", func(o *Options) { o.MetadataOnly = true })
				w.run()
				w.expect("services=2")
				w.sleep(3 * quiet)
				w.api.Put(service("u"))
				w.api.Delete(service("s"))
				synctest.Wait()
				w.expect("services+u, services-s")
			})
		})
	}
}

// TestRetry: new credentials are tried at once.
func TestRetry(t *testing.T) {
	inWorld(t, func(w *world) {
		s := w.add("services", nil)
		e := w.add("endpoints", optional)
		w.answer(status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized), "services", "endpoints")
		w.run()
		w.sleep(5 * time.Minute)
		w.answer(nil, "services", "endpoints")
		w.group.Retry()
		synctest.Wait()
		if a, b := s.State(), e.State(); a.Err != nil || b.Err != nil {
			t.Errorf("%+v, %+v", a, b)
		}
	})
}

// TestForbiddenSince: only 403 takes rights away. 401 is about a token, and other errors are about nothing.
func TestForbiddenSince(t *testing.T) {
	s := &Source{options: Options{Optional: true}}
	forbidden := apierrors.NewForbidden(corev1.Resource("pods"), "x", errors.New("y"))
	for _, other := range []error{apierrors.NewUnauthorized("x"), errors.New("x")} {
		for range 2 {
			before := s.State().ForbiddenSince
			s.noteFailure(t.Context(), forbidden)
			since := s.State().ForbiddenSince
			if since.IsZero() || !before.IsZero() && since != before {
				t.Errorf("forbidden since %s, and before since %s", since, before)
			}
		}
		if s.noteFailure(t.Context(), other); !s.State().ForbiddenSince.IsZero() {
			t.Errorf("%v does not end it", other)
		}
	}
	s.noteFailure(t.Context(), forbidden)
	if s.noteSuccess(); !s.State().ForbiddenSince.IsZero() {
		t.Error("an answer does not end it")
	}
}
