package follow

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/upstreamtest"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

var restoreSeeds = flag.Int("restore-seeds", 20, "how many random worlds TestRestoredAtRandom plays")

// mirror is a Sink that has what the upstream was last heard to have: a label of each object.
type mirror struct {
	mu      sync.Mutex
	objects map[string]string
}

func (m *mirror) Apply(o *wire.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[o.Name] = o.Labels["content"]
}

func (m *mirror) Remove(_, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
}

func (m *mirror) Replace(all []*wire.Object) {
	m.mu.Lock()
	clear(m.objects)
	m.mu.Unlock()
	for _, o := range all {
		m.Apply(o)
	}
}

func (m *mirror) SetAbsent() {}

func (m *mirror) has() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.objects)
}

// restorable is a world whose upstream is set back, and what it has by the test's own account.
type restorable struct {
	*world
	mirror *mirror
	source *Source
	now    map[string]string
	// backup and saved are what a backup has.
	backup *upstreamtest.Backup
	saved  map[string]string
	count  int
}

func (w *world) restorable() *restorable {
	r := &restorable{world: w, mirror: &mirror{objects: map[string]string{}}, now: map[string]string{"s": ""}}
	r.source = w.add("services", func(o *Options) { o.Sink = r.mirror })
	w.run()
	w.sleep(10 * time.Second)
	return r
}

// put writes an object with a content that none had before.
func (r *restorable) put(name string) {
	r.count++
	s := service(name)
	s.Labels = map[string]string{"content": fmt.Sprint(r.count)}
	r.now[name] = fmt.Sprint(r.count)
	r.api.Put(s)
}

func (r *restorable) remove(name string) {
	delete(r.now, name)
	r.api.Delete(service(name))
}

func (r *restorable) takeBackup() { r.backup, r.saved = r.api.Backup(), maps.Clone(r.now) }

func (r *restorable) restore() {
	r.api.Restore(r.backup)
	r.now = maps.Clone(r.saved)
}

// cutLink lets every request fail, and breaks what is under way.
func (r *restorable) cutLink() {
	r.answer(refuseConnection, "services")
	r.breakWatches()
}

func (r *restorable) expectEqual(when string) {
	r.t.Helper()
	if got := r.mirror.has(); !maps.Equal(got, r.now) {
		r.t.Errorf("%s: the sink has %v, the upstream %v", when, got, r.now)
	}
}

// TestRestoredAndPassed: no version shows a restore after which as much was written as before. A list heals it: soon
// after a break of some minutes, and else within half a day or so.
func TestRestoredAndPassed(t *testing.T) {
	for name, test := range map[string]struct{ away, within time.Duration }{
		"a break of minutes": {longBreak + time.Minute, 30 * time.Second},
		"a short break":      {time.Minute, listInterval * 5 / 4},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				r := w.restorable()
				r.takeBackup()
				r.put("late")
				r.sleep(time.Second)
				r.cutLink()
				r.restore()
				r.put("new")
				r.put("other")
				r.sleep(test.away)
				r.answer(nil, "services")
				r.sleep(test.within)
				r.expectEqual("after " + test.within.String())
			})
		})
	}
}

// TestBreaksCostOneRequest: after a break one small request of its own User-Agent asks whether the upstream has the
// version, and nothing is listed. A watch whose time is over is no break.
func TestBreaksCostOneRequest(t *testing.T) {
	inWorld(t, func(w *world) {
		r := w.restorable()
		asks := func() (asked []upstreamtest.Request) {
			for _, request := range r.api.Requests() {
				if len(request.Query["limit"]) > 0 {
					asked = append(asked, request)
				}
			}
			return asked
		}
		r.sleep(30 * time.Minute)
		if got := asks(); len(got) > 0 {
			t.Errorf("asked without a break: %v", got)
		}
		for range 3 {
			r.breakWatches()
			r.sleep(20 * time.Second)
		}
		got := asks()
		if len(got) != 3 {
			t.Fatalf("asked %d times after 3 breaks", len(got))
		}
		for _, request := range got {
			if agent := request.Header.Get("User-Agent"); request.Query["limit"][0] != "1" ||
				request.Query["resourceVersion"][0] != r.source.State().ResourceVersion ||
				!strings.HasPrefix(agent, "tester/v1+services-version") {
				t.Errorf("asked %v as %s", request.Query, agent)
			}
		}
		if lists := r.source.State().Lists; lists != 1 {
			t.Errorf("%d lists", lists)
		}
	})
}

// TestCachesProveNothing: an answer that is older than what is known, or a 404, may come from a cache. Nothing goes
// back for it.
func TestCachesProveNothing(t *testing.T) {
	for name, says := range map[string]func(older http.Handler) hand{
		"older": func(older http.Handler) hand {
			return func(rw http.ResponseWriter, r *http.Request, _ http.Handler) {
				query := r.URL.Query()
				query.Set("resourceVersion", "0")
				r.URL.RawQuery = query.Encode()
				older.ServeHTTP(rw, r)
			}
		},
		"not found": func(http.Handler) hand { return status(http.StatusNotFound, metav1.StatusReasonNotFound) },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				older := upstreamtest.New()
				r := w.restorable()
				r.put("known")
				r.sleep(time.Second)
				r.answer(lists(says(older)), "services")
				r.breakWatches()
				r.sleep(time.Minute)
				r.expectEqual("after the break")
				if state := r.source.State(); state.Err != nil || state.Lists != 1 {
					t.Errorf("%+v", state)
				}
			})
		})
	}
}

// TestRestoredAtRandom plays random worlds: objects come and go, the link is down or silent, histories expire, and the
// upstream is restored, also while the link is down, and passes the version that was known. In the end a source has
// what the upstream has; in every other world, in which no version is passed, soon after each restore too.
func TestRestoredAtRandom(t *testing.T) {
	for seed := range uint64(*restoreSeeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, func(w *world) { playRestores(w.restorable(), rand.New(rand.NewPCG(seed, 1)), int(seed%2)) })
		})
	}
}

func playRestores(r *restorable, random *rand.Rand, passes int) {
	var story []string
	note := func(format string, args ...any) { story = append(story, fmt.Sprintf(format, args...)) }
	// shows is set while versions show everything. Where none may be passed, nothing is written after a restore until
	// the source has had the time to notice it: unnoticed.
	shows, unnoticed := true, false
	change := func() {
		if unnoticed {
			return
		}
		name := string(rune('a' + random.IntN(6)))
		if random.IntN(3) == 0 {
			r.remove(name)
		} else {
			r.put(name)
		}
	}
	silent := func(_ http.ResponseWriter, request *http.Request, _ http.Handler) { <-request.Context().Done() }
	for range 60 {
		switch n := random.IntN(20); {
		case n < 10:
			change()
		case n < 12:
			note("down")
			r.cutLink()
		case n < 13:
			note("silent")
			r.answer(silent, "services")
			r.breakWatches()
		case n < 15:
			note("up")
			r.answer(nil, "services")
		case n < 16:
			r.api.Forget()
		case n < 18 || r.backup == nil:
			note("backup")
			r.takeBackup()
		default:
			writes := random.IntN(12) * passes
			note("restored, and written %d times", writes)
			r.restore()
			for range writes {
				change()
			}
			shows, unnoticed = passes == 0, passes == 0
		}
		r.sleep(time.Duration(random.IntN(4)*random.IntN(100)) * time.Second)
		if random.IntN(6) == 0 && shows {
			r.answer(nil, "services")
			r.sleep(3 * time.Minute) // a request that hangs is given up
			r.expectEqual("soon, after " + strings.Join(story, "; "))
			unnoticed = false
		}
	}
	r.answer(nil, "services")
	r.sleep(3*time.Minute + listInterval*5/4)
	r.expectEqual("in the end, after " + strings.Join(story, "; "))
}
