package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/internal/testkit/liveheap"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// service is a version of a Service, with a label that selectors ask for and a body that tells versions apart.
func service(name, uid, color string, port int32) Version {
	o := wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID(uid), Labels: map[string]string{"color": color},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
	})
	v, err := NewVersion(served.Services, o, o.Body)
	if err != nil {
		panic(err)
	}
	return v
}

func ready(options Options) *History {
	options.Revisions = NewRevisions(100)
	h := New(options)
	h.Update(time.Time{}, func(u *Update) { u.SetReadable(served.Services, nil) })
	return h
}

func put(h *History, v Version) {
	h.Update(time.Now(), func(u *Update) { u.Put(served.Services, v, 0) })
}

func remove(h *History, name string) {
	h.Update(time.Now(), func(u *Update) {
		u.Remove(served.Services, types.NamespacedName{Namespace: "ns", Name: name})
	})
}

// follower holds what a client with a selector holds, and checks every event against it.
type follower struct {
	t        *testing.T
	selector Selector
	held     map[string]string // what tells versions apart, by name
	revision uint64
	cursor   *Cursor
	lists    int
}

func describe(o *Object) string { return fmt.Sprintf("%s %s %x", o.UID, o.Labels["color"], o.Body) }

// list starts from the state that the History has.
func (f *follower) list(h *History) {
	f.t.Helper()
	objects, revision, err := h.List(served.Services, "", 0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.held, f.revision, f.cursor = map[string]string{}, revision, nil
	for _, o := range objects {
		if f.selector.Matches(o) {
			f.held[o.Name] = describe(o)
		}
	}
	f.lists++
}

// resume opens a cursor where the client is.
func (f *follower) resume(h *History) {
	f.t.Helper()
	var err error
	if f.cursor, err = h.Watch(served.Services, f.revision); errors.Is(err, ErrExpired) {
		f.list(h)
		f.cursor, err = h.Watch(served.Services, f.revision)
		if errors.Is(err, ErrExpired) {
			f.t.Fatalf("a client that has just listed at %d cannot watch from there", f.revision)
		}
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// take takes up to limit events. It returns false when there are none.
func (f *follower) take(h *History, limit int) bool {
	f.t.Helper()
	if f.cursor == nil {
		f.resume(h)
	}
	events, _, err := f.cursor.Next(limit)
	if errors.Is(err, ErrExpired) {
		f.list(h)
		return true
	}
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range events {
		f.apply(e)
	}
	if len(events) == 0 {
		f.revision = f.cursor.Revision() // as a bookmark says
	}
	return len(events) > 0
}

// apply takes one event as the writer of a watch would send it.
func (f *follower) apply(e Event) {
	f.t.Helper()
	name := e.Object.Name
	before, there := f.held[name]
	matches := e.Type != watch.Deleted && f.selector.Matches(e.Object)
	matched := e.Previous != nil && f.selector.Matches(e.Previous)
	if e.Object.Revision <= f.revision {
		f.t.Fatalf("%s of %s at %d, after %d", e.Type, name, e.Object.Revision, f.revision)
	}
	switch {
	case matches && matched && !there:
		f.t.Fatalf("MODIFIED %s at %d, which is not there (%+v)", name, e.Object.Revision, e)
	case matches && !matched && there:
		f.t.Fatalf("ADDED %s at %d, which is there as %s", name, e.Object.Revision, before)
	case !matches && matched && !there:
		f.t.Fatalf("DELETED %s at %d, which is not there", name, e.Object.Revision)
	case matches:
		f.held[name] = describe(e.Object)
	case matched:
		if gone := e.DeletedObject(); gone.Revision != e.Object.Revision {
			f.t.Fatalf("DELETED %s with revision %d, not %d", name, gone.Revision, e.Object.Revision)
		}
		delete(f.held, name)
	}
	if matches || matched {
		f.revision = e.Object.Revision
	}
}

// TestSlowCursorsConverge: cursors that fall off the log again and again, read in small batches, break off, and go on
// from the last event that they took. Every event fits what the client holds, and in the end all hold what a list has.
func TestSlowCursorsConverge(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for i := range 40 {
		t.Run(fmt.Sprint("seed=", seed+uint64(i)), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed+uint64(i), 1))
			h := ready(Options{LogEvents: 2 + r.IntN(40), LogBytes: 1500 + r.IntN(20000)})
			red, err := labels.Parse("color=red")
			if err != nil {
				t.Fatal(err)
			}
			var followers []*follower
			for j := range 8 {
				f := &follower{t: t}
				if j%2 == 1 {
					f.selector.Labels = red
				}
				f.list(h)
				followers = append(followers, f)
			}
			uids := map[string]int{}
			for step := range 600 {
				name := fmt.Sprint("s", r.IntN(12))
				switch r.IntN(6) {
				case 0:
					remove(h, name)
					uids[name]++
				case 1:
					// Deleted and created again, in one step.
					uids[name]++
					fallthrough
				default:
					put(h,
						service(name, fmt.Sprint(name, uids[name]), []string{"red", "green"}[r.IntN(2)], int32(step)))
				}
				f := followers[r.IntN(len(followers))]
				switch r.IntN(8) {
				case 0:
					f.cursor = nil // the connection breaks
				case 1:
					for f.take(h, 1+r.IntN(3)) {
					}
				default:
					f.take(h, 1+r.IntN(3))
				}
			}
			for j, f := range followers {
				for f.take(h, 1+r.IntN(3)) {
				}
				want := &follower{t: t, selector: f.selector}
				want.list(h)
				if fmt.Sprint(f.held) != fmt.Sprint(want.held) {
					t.Errorf("follower %d holds %v, want %v", j, f.held, want.held)
				}
			}
		})
	}
}

// TestABurstExpelsNobody: a change of every object, of several times the bytes that the log may hold, reaches a cursor
// of before it without a new list. A second one does not.
func TestABurstExpelsNobody(t *testing.T) {
	const objects = 500
	h := ready(Options{LogBytes: 50_000})
	burst := func(port int32) {
		for i := range objects {
			put(h, service(fmt.Sprintf("s%03d", i), "u", "red", port))
		}
	}
	burst(1)
	for port := range int32(3) {
		f := &follower{t: t}
		f.list(h)
		f.resume(h)
		burst(2 + port)
		batches := 0
		for f.take(h, 50) {
			batches++
		}
		if f.lists != 1 || batches != objects/50 {
			t.Errorf("%d lists, %d batches of 50 for %d objects", f.lists, batches, objects)
		}
	}
	f := &follower{t: t}
	f.list(h)
	f.resume(h)
	burst(5)
	burst(6)
	for f.take(h, 50) {
	}
	want := &follower{t: t}
	want.list(h)
	if f.lists != 2 || fmt.Sprint(f.held) != fmt.Sprint(want.held) {
		t.Errorf("after two bursts it has listed %d times", f.lists)
	}
}

// TestThePastIsBoundedInMemory asserts the heap: what the log holds on to, whatever the objects are like.
func TestThePastIsBoundedInMemory(t *testing.T) {
	for name, change := range map[string]func(h *History, i int){
		"bodies": func(h *History, i int) {
			v := service("s", "u", "red", int32(i))
			v.Body = append(make([]byte, 0, 40_000), v.Body...)
			put(h, v)
		},
		"labels": func(h *History, i int) {
			put(h, service("s", "u", strings.Repeat(fmt.Sprint(i), 5000), 1))
		},
		"small objects": func(h *History, i int) {
			put(h, service(fmt.Sprint("s", i%1000), "u", fmt.Sprint(i), int32(i)))
		},
		"deletions": func(h *History, i int) {
			v := service(fmt.Sprint("s", i), "u", "red", int32(i))
			v.Body = append(make([]byte, 0, 20_000), v.Body...)
			put(h, v)
			remove(h, v.Name)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := ready(Options{})
			change(h, 0)
			before := liveheap.Size()
			for i := range 20_000 {
				change(h, i)
			}
			grown := liveheap.Size() - before
			// The objects that "small objects" shows are a megabyte.
			if most := DefaultLogBytes + 2<<20; grown > most {
				t.Errorf("the heap has grown by %d bytes, more than %d; counted: %+v", grown, most, h.Stats()[0])
			}
			runtime.KeepAlive(h)
		})
	}
}

// TestJSONIsForgotten: encodings stay within their bound, and are dropped when they are not used.
func TestJSONIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 1 << 20
		cache := NewJSONCache(most)
		h := ready(Options{JSON: cache})
		for i := range 2000 {
			put(h, service(fmt.Sprint("s", i), "u", strings.Repeat("x", 1000), int32(i)))
		}
		objects, _, err := h.List(served.Services, "", 0)
		if err != nil {
			t.Fatal(err)
		}
		held := func() (n int) {
			for _, encoded := range cache.kept {
				n += len(encoded)
			}
			return n
		}
		for _, o := range objects {
			if _, err := o.JSON(); err != nil {
				t.Fatal(err)
			}
			if held() > most {
				t.Fatalf("%d bytes are held", held())
			}
		}
		first, _ := objects[len(objects)-1].JSON()
		again, _ := objects[len(objects)-1].JSON()
		if &first[0] != &again[0] {
			t.Error("encoded twice")
		}
		time.Sleep(3 * jsonIdle)
		synctest.Wait()
		if held() != 0 || cache.bytes != 0 {
			t.Errorf("%d bytes are held when they are not used", held())
		}
	})
}

// TestAClientThatHasSeenMore is not served an earlier state.
func TestAClientThatHasSeenMore(t *testing.T) {
	h := New(Options{Revisions: NewRevisions(1000)})
	h.Update(time.Time{}, func(u *Update) {
		u.Put(served.Services, service("s", "u", "red", 1), 500)
		u.SetRestored(600)
		u.SetReadable(served.Services, nil)
	})
	key := types.NamespacedName{Namespace: "ns", Name: "s"}
	now := h.Revision()
	for revision, want := range map[uint64]error{
		0: nil, 500: nil, 600: nil, 601: served.ErrNotReady, 1000: served.ErrNotReady, now: nil, now + 1: ErrFuture,
	} {
		if _, _, err := h.List(served.Services, "", revision); !errors.Is(err, want) {
			t.Errorf("a list not older than %d: %v, want %v", revision, err, want)
		}
		if _, err := h.Get(served.Services, key, revision); !errors.Is(err, want) {
			t.Errorf("a get not older than %d: %v, want %v", revision, err, want)
		}
		if want == nil && revision < now {
			want = ErrExpired
		}
		if _, err := h.Watch(served.Services, revision); !errors.Is(err, want) {
			t.Errorf("a watch from %d: %v, want %v", revision, err, want)
		}
	}
	o, err := h.Get(served.Services, key, 0)
	if err != nil || o.Revision != 500 {
		t.Errorf("got %+v, %v", o, err)
	}
	h.Update(time.Time{}, func(u *Update) { u.SetRestored(0) })
	if _, _, err := h.List(served.Services, "", 800); err != nil {
		t.Errorf("when the state is the newest: %v", err)
	}
}

// TestAnEqualVersionIsNoEvent, and keeps its revision.
func TestAnEqualVersionIsNoEvent(t *testing.T) {
	h := ready(Options{})
	put(h, service("s", "u", "red", 1))
	cursor, err := h.Watch(served.Services, h.Revision())
	if err != nil {
		t.Fatal(err)
	}
	o := wiretest.Object(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "s", UID: "u", Generation: 7, ResourceVersion: "8",
			Labels:      map[string]string{"color": "red"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 1}}},
	})
	v, err := NewVersion(served.Services, o, o.Body)
	if err != nil {
		t.Fatal(err)
	}
	put(h, v)
	if events, _, err := cursor.Next(10); err != nil || len(events) > 0 {
		t.Errorf("got %v, %v", events, err)
	}
	v.Labels = map[string]string{"color": "red", "more": "x"}
	v.Meta = append(v.Meta[:len(v.Meta):len(v.Meta)], service("s", "u", "green", 1).Meta...)
	put(h, v)
	if events, _, err := cursor.Next(10); err != nil || len(events) != 1 {
		t.Errorf("got %v, %v", events, err)
	}
}
