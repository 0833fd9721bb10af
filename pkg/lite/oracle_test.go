package lite

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/program/store"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

var worlds = flag.Int("lite.worlds", 40, "how many random worlds the oracle plays")

// world is a kube-apiserver with one set of pods, a node that follows it, and the truth about both.
type world struct {
	t      *testing.T
	random *rand.Rand
	dir    string
	// version is kube-apiserver's. truth has the pods of each version: their UIDs, by their names. changed has at which
	// version they have last changed, by name and version.
	version uint64
	truth   map[uint64]map[string]string
	changed map[uint64]map[string]uint64
	// committed is the version that is on the disk. ends has the UIDs of the pods that the kubelet has asked to remove,
	// true for those that kube-apiserver has confirmed as gone. asked also has those of which it has refused that.
	committed   uint64
	ends, asked map[string]bool
	// back are ends that do not count any longer, because kube-apiserver was restored, but that may be on the disk.
	// again are those that were refused twice: they count after the next start. refusals are those of this process.
	back, again map[string]bool
	refusals    map[string]int
	uids        int

	// accounts are answered, too.
	accounts []types.NamespacedName
	store    *Store
	disk     *store.Store
	// listed is set while the node follows a watch; else its next contact is a list.
	listed bool
}

func newWorld(t *testing.T, random *rand.Rand) *world {
	t.Helper()
	return &world{t: t, random: random, dir: inMemory(t), version: 1, truth: map[uint64]map[string]string{1: {}},
		changed: map[uint64]map[string]uint64{1: {}}, ends: map[string]bool{}, asked: map[string]bool{},
		back: map[string]bool{}, again: map[string]bool{}, refusals: map[string]int{}}
}

var oraclePods = podScope("node0")

// start is a start of the process: from the disk.
func (w *world) start() {
	maps.Copy(w.ends, w.back)
	maps.Copy(w.ends, w.again)
	clear(w.back)
	clear(w.again)
	clear(w.refusals)
	w.store, w.listed = newStore("node0"), false
	w.store.allow(w.accounts)
	opened, state, problems := store.Open(store.Options{Dir: w.dir, Lasting: isLasting, State: w.store.wholeState,
		StateSaved: w.store.noteStateSaved, HourlyBytes: hourlyBytes})
	if problems = append(problems, w.store.load(state)...); len(problems) > 0 {
		w.t.Fatal(problems)
	}
	w.disk = opened
}

func (w *world) pod(name string) *wire.Object {
	return wiretest.Object(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
		UID: types.UID(w.truth[w.version][name]), ResourceVersion: strconv.FormatUint(w.changed[w.version][name], 10)}})
}

// change is a change in the cloud; the node hears of it if it follows.
func (w *world) change() {
	name := fmt.Sprintf("pod-%d", w.random.IntN(5))
	pods := maps.Clone(w.truth[w.version])
	_, there := pods[name]
	changed := maps.Clone(w.changed[w.version])
	w.version++
	changed[name] = w.version
	w.changed[w.version] = changed
	to := sink{w.store, oraclePods}
	if there && w.random.IntN(2) == 0 {
		delete(pods, name)
		w.truth[w.version] = pods
		if w.listed {
			to.ChangeAt(strconv.FormatUint(w.version, 10), func() { to.Remove("shop", name) })
		}
		return
	}
	if !there {
		w.uids++
		pods[name] = fmt.Sprintf("uid-%d", w.uids)
	}
	w.truth[w.version] = pods
	if w.listed {
		to.ChangeAt(strconv.FormatUint(w.version, 10), func() { to.Apply(w.pod(name)) })
	}
}

// restore sets kube-apiserver back to a backup, in versions that are higher (etcdutl snapshot restore --bump-revision).
func (w *world) restore() {
	if w.random.IntN(4) > 0 {
		return
	}
	versions := slices.Sorted(maps.Keys(w.truth))
	backup := versions[w.random.IntN(len(versions))]
	w.version += 1000
	w.truth[w.version], w.changed[w.version], w.listed = w.truth[backup], w.changed[backup], false
}

// list is a new contact with kube-apiserver. A pod that was not there any longer, and is there again, was restored, and
// so was one that is there as it was before.
func (w *world) list() {
	to := sink{w.store, oraclePods}
	var objects []*wire.Object
	heard, _, known := w.store.readScope(oraclePods)
	for name, uid := range w.truth[w.version] {
		objects = append(objects, w.pod(name))
		if !known || w.truth[heard][name] == uid && w.changed[heard][name] <= w.changed[w.version][name] {
			continue
		}
		if confirmed, ended := w.ends[uid]; ended {
			w.back[uid] = confirmed
			delete(w.ends, uid)
		} else if _, ended := w.again[uid]; ended {
			w.back[uid] = false
		}
		delete(w.again, uid)
		delete(w.refusals, uid)
	}
	to.ChangeAt(strconv.FormatUint(w.version, 10), func() { to.Replace(objects) })
	w.listed = true
}

func (w *world) commit() {
	w.commitGone()
	version, _, _ := w.store.readScope(oraclePods)
	left := int64(hourlyBytes)
	if w.accounts != nil && w.random.IntN(2) == 0 {
		left = 1 // what accounts read waits
	}
	changes := w.store.selectPending(left)
	err := w.disk.Commit(changes.values())
	if err == nil && w.random.IntN(5) == 0 {
		err = w.disk.Rewrite()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	w.store.noteSaved(changes)
	w.committed = version
}

// taken are the values of the changes that would be written now.
func taken(s *Store, left int64) map[string][]byte { return s.selectPending(left).values() }

func (w *world) commitGone() {
	changes := w.store.pendingRemovals()
	if err := w.disk.Commit(changes.values()); err != nil {
		w.t.Fatal(err)
	}
	w.store.noteSaved(changes)
	clear(w.back)
}

// remove is the kubelet's DELETE of a pod that it has, or has asked to remove before, and kube-apiserver's answer: it
// is gone, it is refused, or nobody knows.
func (w *world) remove() {
	_, objects, _ := w.store.readScope(oraclePods)
	uids := slices.Sorted(maps.Keys(w.ends))
	for _, o := range objects {
		uids = append(uids, o.UID)
	}
	if len(uids) == 0 {
		return
	}
	uid := uids[w.random.IntN(len(uids))]
	at := time.Now().Add(-time.Duration(w.random.IntN(2)) * 2 * goneFor)
	say := func(how outcome) {
		w.store.setRemoval(types.UID(uid), removal{at: at, outcome: how})
		w.commitGone()
	}
	say(intended)
	if w.asked[uid] = true; !w.ends[uid] {
		w.ends[uid] = false // it has an end that may be taken back
	}
	delete(w.again, uid)
	switch w.random.IntN(3) {
	case 0:
		say(confirmed)
		w.ends[uid] = true
	case 1:
		if say(refused); !w.ends[uid] {
			delete(w.ends, uid)
			if w.refusals[uid]++; w.refusals[uid] > 1 {
				w.again[uid] = false
			}
		}
	}
}

// shown are the pods of a version without those that the kubelet has asked to remove, and was not refused.
func (w *world) shown(version uint64) map[string]string {
	pods := maps.Clone(w.truth[version])
	maps.DeleteFunc(pods, func(_, uid string) bool {
		_, ended := w.ends[uid]
		return ended
	})
	return pods
}

// judge asks what a kubelet would be answered now without kube-apiserver.
func (w *world) judge(seed uint64) {
	version, objects, ok := w.store.readScope(oraclePods)
	if !ok {
		if w.committed > 0 {
			w.t.Fatalf("seed %d: what was committed at %d is not known", seed, w.committed)
		}
		return
	}
	if version < w.committed {
		w.t.Fatalf("seed %d: version %d, and %d was committed", seed, version, w.committed)
	}
	want := w.shown(version)
	got := map[string]string{}
	for _, o := range objects {
		got[o.Name] = o.UID
	}
	if !maps.Equal(got, want) {
		w.t.Fatalf("seed %d: at version %d there are %v, and kube-apiserver said %v", seed, version, got, want)
	}
}

// TestOracle plays kube-apiserver, a link that comes and goes, losses of power, and a kubelet that removes pods.
// Whenever the kubelet asks, it is answered what kube-apiserver said at one version, not older than what was on the
// disk, without the pods that it has removed.
func TestOracle(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*worlds) {
		w := newWorld(t, rand.New(rand.NewPCG(seed, 7)))
		w.start()
		for range 300 {
			switch w.random.IntN(20) {
			case 0: // a loss of power: what was not committed is gone
				if err := w.disk.Close(); err != nil {
					t.Fatal(err)
				}
				w.start()
			case 1:
				w.listed = false // the link is down
			case 2, 3:
				w.list()
			case 4, 5, 6:
				w.commit()
			case 7:
				w.remove()
			case 8:
				w.restore()
			default:
				w.change()
			}
			w.judge(seed)
		}
		if err := w.disk.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// inMemory is a directory that needs no disk, if the machine has one: losses of power are played here.
func inMemory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "lite") //nolint:usetesting // that would be on a disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
