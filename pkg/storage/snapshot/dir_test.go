package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// TestWhatWasServedIsServedAgain by another process, and nothing that the node may not see is on its disk.
func TestWhatWasServedIsServedAgain(t *testing.T) {
	before := liveStore(t, 3)
	addresses := map[netip.Addr]string{
		netip.MustParseAddr("192.0.2.1"): "node0", netip.MustParseAddr("2001:db8::1"): "node1",
	}
	before.UpdateNotes(func(n *facts.Notes) { n.Addresses = addresses })
	internal := map[string][]netip.Addr{
		"node0": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, "node2": nil,
	}
	before.UpdateNotes(func(n *facts.Notes) { n.InternalIPs = internal })
	partners := map[string]struct{}{"node2": {}}
	before.UpdateNotes(func(n *facts.Notes) { n.Partners = partners })
	path := saved(t, before)

	_, restored, minRevision := open(t, path)
	if restored == nil || !restored.AsOf.Equal(epoch) || restored.NodeName != "node0" ||
		restored.Revision != before.History.Revision() {
		t.Fatalf("got %+v", restored)
	}
	if minRevision <= before.History.Revision() {
		t.Errorf("the next process may begin at %d, this one is at %d", minRevision, before.History.Revision())
	}
	after := emptyStore(minRevision)
	after.Restore(restored)
	if _, _, err := after.History.List(served.Services, "", 0); !errors.Is(err, served.ErrNotReady) {
		t.Errorf("served before it was asked to be: %v", err)
	}
	if !after.View.AllowRestored() {
		t.Fatal("not restored")
	}
	if got, want := shown(t, after), shown(t, before); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, r := range served.All() {
		if got, want := revisionsOf(after.History, r), revisionsOf(before.History, r); !maps.Equal(got, want) {
			t.Errorf("%s: got the revisions %v, want %v", r.Resource, got, want)
		}
	}
	if got := after.Notes().Addresses; !maps.Equal(got, addresses) {
		t.Errorf("got the addresses %v", got)
	}
	if got := after.Notes().InternalIPs; !maps.EqualFunc(got, internal, slices.Equal) {
		t.Errorf("got the InternalIPs %v", got)
	}
	if got := after.Notes().Partners; !maps.Equal(got, partners) {
		t.Errorf("got the partners %v", got)
	}
	if after.History.Revision() <= before.History.Revision() {
		t.Errorf("revisions went from %d to %d", before.History.Revision(), after.History.Revision())
	}
	for _, section := range restored.Sections {
		for _, o := range section.Objects {
			if bytes.Contains(o.Body, []byte("10.1.1.1")) || o.Name == "node1" {
				t.Errorf("%s %s is of another site", section.Input, o.Name)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(path, "*"))
	if err != nil || len(files) == 0 {
		t.Errorf("%q, %v", files, err)
	}
	for _, name := range files {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// TestNotASnapshot: a whole store whose content is not what this node may serve. Nothing of it is served, its revision
// counts, and the next snapshot takes its place, also if the store has written everything that there is before.
func TestNotASnapshot(t *testing.T) {
	whole := saved(t, liveStore(t, 2))
	all := kept(t, whole)
	object := slices.Sorted(maps.Keys(all))[len(all)-2]
	if !strings.HasPrefix(object, objectPrefix) {
		t.Fatalf("%q is no object", object)
	}
	for what, changes := range map[string]map[string][]byte{
		"of another node":             {keyHead: bytes.Replace(all[keyHead], []byte("node0"), []byte("node1"), 1)},
		"an address that is none":     {keyHead: []byte(`{"NodeName":"node0","Addresses":{"x":""}}`)},
		"an unknown field":            {keyHead: bytes.Replace(all[keyHead], []byte("{"), []byte(`{"x":0,`), 1)},
		"no JSON":                     {keyHead: []byte("x")},
		"no mark":                     {keyMark: nil},
		"a section that is not there": {keyHead: []byte(`{"NodeName":"node0"}`)},
		"an object that is none":      {object: append(bytes.Clone(all[object][:17]), 0xff)},
		"an empty object":             {object: {}},
		"an object without shown":     {object: append([]byte{0}, all[object][17:]...)},
		"shown cut short":             {object: all[object][:16]},
		"an unknown kind of object":   {object: append([]byte{2}, all[object][1:]...)},
	} {
		for _, rewritten := range []bool{false, true} {
			path := filepath.Join(t.TempDir(), "state")
			if err := os.CopyFS(path, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			change(t, path, changes)
			d, restored, minRevision := open(t, path)
			if restored != nil || minRevision < reserve {
				t.Errorf("%s: served %v, revision %d", what, restored, minRevision)
			}
			if rewritten {
				if err := d.store.Rewrite(); err != nil {
					t.Fatal(err)
				}
			}
			save(t, d, state(t, liveStore(t, 1)), minRevision+1)
			closeDir(t, d)
			if again := loaded(t, path); again == nil || len(sectionOf(again, facts.InputServices).Objects) != 1 {
				t.Errorf("%s, rewritten %v: the next snapshot is read as %+v", what, rewritten, again)
			}
		}
	}
	change(t, whole, map[string][]byte{keyRevision: []byte("9223372036854775809")})
	if _, restored, minRevision := open(t, whole); restored != nil || minRevision > maxRevision {
		t.Errorf("a revision out of bounds: %v %d", restored, minRevision)
	}
}

// TestForm: a Snapshot is read as it was written, and equal ones are equal. A name in facts.Snapshot that changes makes
// snapshots unreadable, so that nobody misunderstands them.
func TestForm(t *testing.T) {
	const head = `{"NodeName":"node0","AsOf":"0001-01-01T00:00:00Z","Revision":0,` +
		`"Sections":[{"Input":"nodes"},{"Input":"services"}],` +
		`"Addresses":{"192.0.2.1":"node0","192.0.2.2":"node1","2001:db8::1":"node0"},` +
		`"InternalIPs":{"node0":["2001:db8::1","192.0.2.1"],"node1":null},"Partners":{"node1":{},"node2":{}},` +
		`"PodNotes":[{"Note":1}]}`
	const mark = `{"AsOf":"2026-01-02T03:04:05Z","Revision":4,"ShareMark":"AQI="}`
	here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	v6 := netip.MustParseAddr("2001:db8::1")
	written := &facts.Snapshot{
		NodeName: "node0", AsOf: epoch, Revision: 4,
		Sections: []facts.Section{
			{Input: facts.InputNodes, Objects: []*wire.Object{node(t, "node0", "a", "")}},
			{Input: facts.InputServices, Objects: []*wire.Object{wiretest.Service("s", "")},
				Shown: []facts.Shown{{Revision: 3, Digest: 1<<64 - 1}}},
		},
		Notes: facts.Notes{
			Addresses:   map[netip.Addr]string{v6: "node0", there: "node1", here: "node0"},
			InternalIPs: map[string][]netip.Addr{"node1": nil, "node0": {v6, here}},
			Partners:    map[string]struct{}{"node2": {}, "node1": {}},
			PodNotes:    []byte(`[{"Note":1}]`),
		},
		ShareMark: []byte{1, 2},
	}
	path := t.TempDir()
	d, _, _ := open(t, path)
	save(t, d, written, 5)
	all := kept(t, path)
	if string(all[keyHead]) != head || string(all[keyMark]) != mark {
		t.Errorf("got %s and %s\nwant %s and %s", all[keyHead], all[keyMark], head, mark)
	}
	if want := strconv.Itoa(5 + reserve); string(all[keyRevision]) != want || len(all) != 5 {
		t.Errorf("got %q, want the revision %s", all, want)
	}
	closeDir(t, d)
	d, read, _ := open(t, path)
	for _, again := range []*facts.Snapshot{read, written} {
		if written, err := d.Save(again, 5); err != nil || written {
			t.Errorf("the same State is written again: %v", err)
		}
	}
}

// formerDir is a directory as the version before the store has written it, of liveStore(3).
func formerDir(t *testing.T) string {
	t.Helper()
	path := t.TempDir()
	if err := os.CopyFS(path, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFormerSnapshot is read once, and removed when the store has what was in it.
func TestFormerSnapshot(t *testing.T) {
	path := formerDir(t)
	d, restored, minRevision := open(t, path)
	want := liveStore(t, 3)
	if restored == nil || !restored.AsOf.Equal(epoch) || minRevision < reserve {
		t.Fatalf("got %+v, revision %d", restored, minRevision)
	}
	after := emptyStore(minRevision)
	after.Restore(restored)
	after.View.AllowRestored()
	if got, want := shown(t, after), shown(t, want); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	// The digests were others then, so that each object has a new revision.
	for _, r := range served.All() {
		for name, revision := range revisionsOf(after.History, r) {
			if revision <= minRevision {
				t.Errorf("%s %s has the revision %d, and %d may have been given out", r.Resource, name, revision,
					minRevision)
			}
		}
	}
	if err := d.reserveRevisions(minRevision); err != nil {
		t.Fatal(err)
	}
	closeDir(t, d)
	if files, err := filepath.Glob(filepath.Join(path, "*-node0*")); err != nil || len(files) > 0 {
		t.Errorf("left over: %q, %v", files, err)
	}
	d, again, _ := open(t, path)
	if again == nil {
		t.Fatal("it was not taken over")
	}
	if written, err := d.Save(restored, minRevision); written || err != nil {
		t.Errorf("it was not taken over as it is: %v", err)
	}
}

// TestFormerSnapshotThatIsDamaged, in any byte or cut off anywhere, is not served.
func TestFormerSnapshotThatIsDamaged(t *testing.T) {
	path := formerDir(t)
	file := filepath.Join(path, "snapshot-node0")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 1 << (i % 8)
		for _, data := range [][]byte{damaged, whole[:i]} {
			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}
			if restored := loaded(t, path); restored != nil {
				t.Fatalf("damage in byte %d of %d is not noticed", i, len(whole))
			}
		}
	}
	if _, _, minRevision := open(t, path); minRevision < reserve {
		t.Errorf("the reserved revisions do not count: %d", minRevision)
	}
	if _, restored, minRevision := openAs(t, formerDir(t), "node1", epoch); restored != nil || minRevision != 0 {
		t.Errorf("node1 is served what is node0's: %v", restored)
	}
}

// TestOneProcessAtATime has a directory, whatever its node: two would give out the same revisions.
func TestOneProcessAtATime(t *testing.T) {
	path := saved(t, liveStore(t, 1))
	first, _, _ := open(t, path)
	for _, nodeName := range []string{"node0", "node1"} {
		second, state, _, err := Open(Options{Path: path, NodeName: nodeName, Logger: logr.Discard()})
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "--state-dir") || state != nil {
			t.Errorf("%s: got %v", nodeName, err)
		}
		if err := second.Close(); err != nil {
			t.Errorf("closing what was not had: %v", err)
		}
	}
	save(t, first, state(t, liveStore(t, 2)), 7)
	closeDir(t, first)
	if restored := loaded(t, path); restored == nil || len(sectionOf(restored, facts.InputServices).Objects) != 2 {
		t.Errorf("the next one finds %+v", restored)
	}
}

func revisionsOf(h *history.History, r *served.Resource) map[types.NamespacedName]uint64 {
	revisions := make(map[types.NamespacedName]uint64)
	for key, o := range h.Objects(r) {
		revisions[key] = o.Revision
	}
	return revisions
}

// TestRevisionsOfASection come back as they were, in whatever order, and only where there were any.
func TestRevisionsOfASection(t *testing.T) {
	_, slices3 := objects(t, 3)
	for _, revisions := range [][]uint64{
		nil, {1, 2, 3}, {3, 2, 1}, {0, 0, 0}, {1 << 63, 1, 1<<64 - 1}, {7, 7, 1 << 62},
	} {
		var shown []facts.Shown
		for _, revision := range revisions {
			shown = append(shown, facts.Shown{Revision: revision, Digest: revision * 0x9e3779b97f4a7c15})
		}
		written := &facts.Snapshot{NodeName: "node0", AsOf: epoch, Revision: 4711, Sections: []facts.Section{
			{Input: facts.InputNodes, Objects: []*wire.Object{node(t, "node0", "a", "")}},
			{Input: facts.InputEndpointSlices, Objects: slices3, Shown: shown},
			{Input: facts.InputServices},
		}}
		path := t.TempDir()
		d, _, _ := open(t, path)
		save(t, d, written, 5000)
		closeDir(t, d)
		read := loaded(t, path)
		if read == nil || read.Revision != 4711 {
			t.Fatalf("got %+v", read)
		}
		for _, section := range written.Sections {
			got := sectionOf(read, section.Input)
			if got == nil || !slices.Equal(got.Shown, section.Shown) || (got.Shown == nil) != (section.Shown == nil) ||
				len(got.Objects) != len(section.Objects) {
				t.Fatalf("%s: got %+v, want %+v", section.Input, got, section)
			}
			for i, o := range got.Objects {
				if !o.Equal(section.Objects[i]) || o.Name != section.Objects[i].Name {
					t.Errorf("%s: object %d is another one", section.Input, i)
				}
			}
		}
		for i, o := range slices3 {
			shownAt := read.Shown()
			if shown == nil {
				if len(shownAt) != 0 {
					t.Errorf("shown at %v", shownAt)
				}
				continue
			}
			if got := shownAt[facts.Key{Resource: served.EndpointSlices, Name: o.Key()}]; got != shown[i] {
				t.Errorf("%s was shown at %v, read as %v", o.Name, shown[i], got)
			}
		}
	}
}

// TestRevisionsGrow over processes that die at any time, with no clock to help.
func TestRevisionsGrow(t *testing.T) {
	path := t.TempDir()
	var last uint64
	for i := range 20 {
		d, restored, minRevision := open(t, path)
		s := emptyStore(minRevision)
		if restored != nil {
			s.Restore(restored)
		}
		if s.History.Revision() <= last {
			t.Fatalf("process %d begins at %d, the one before ended at %d", i, s.History.Revision(), last)
		}
		if err := d.reserveRevisions(s.History.Revision()); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 3)
		if i%3 == 0 {
			if _, err := d.Save(state(t, s), s.History.Revision()); err != nil {
				t.Fatal(err)
			}
		}
		if i%4 == 3 { // the newest file is lost
			damageNewest(t, path)
		}
		s.Services().Remove("ns", "s000")
		last = s.History.Revision()
		closeDir(t, d) // as the kernel does for a process that dies
	}
}

// damageNewest damages the newest file of a store in its first state, if there is an older one.
func damageNewest(t *testing.T, path string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(path, "store-0*"))
	if err != nil || len(files) < 2 {
		return
	}
	file, err := os.OpenFile(files[len(files)-1], os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt([]byte("damaged"), 60)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestReserveIsRare: it is a writing too.
func TestReserveIsRare(t *testing.T) {
	d, _, _ := open(t, t.TempDir())
	if err := d.reserveRevisions(1000); err != nil {
		t.Fatal(err)
	}
	first := d.reserved
	for _, used := range []uint64{1001, 1000 + reserve/4} {
		if err := d.reserveRevisions(used); err != nil || d.reserved != first {
			t.Errorf("at %d: %d, %v", used, d.reserved, err)
		}
	}
	used := first - 10
	if err := d.reserveRevisions(used); err != nil || d.reserved <= used+reserve/2 {
		t.Errorf("at %d: %d, %v", used, d.reserved, err)
	}
}

// TestDirectoryThatCannotBeUsed keeps nobody from going on. It is used once it can be.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(file, "state")
	d, restored, minRevision := open(t, path)
	if restored != nil || minRevision != 0 {
		t.Errorf("got %v %d", restored, minRevision)
	}
	if _, err := d.Save(state(t, liveStore(t, 1)), 1); err == nil {
		t.Error("saved nowhere, without an error")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	save(t, d, state(t, liveStore(t, 1)), 1)
	closeDir(t, d)
	if loaded(t, path) == nil {
		t.Error("nothing was saved")
	}
}

// TestEveryState that was saved is the one that is read, over removals, changes and large ones.
func TestEveryState(t *testing.T) {
	path := t.TempDir()
	s := liveStore(t, 20)
	for i := range 40 {
		switch i % 4 {
		case 0:
			s.Services().Remove("ns", fmt.Sprintf("s%03d", i/4))
		case 1:
			s.EndpointSlices().Apply(slice(t, "s003", fmt.Sprintf("10.7.%d.9", i)))
		case 2:
			s.UpdateNotes(func(n *facts.Notes) { n.Partners = map[string]struct{}{fmt.Sprint("node", i): {}} })
		default:
			for n := range 20 {
				s.Services().Apply(large(n, i))
			}
		}
		d, _, _ := open(t, path)
		want := state(t, s)
		if _, err := d.Save(want, s.History.Revision()); err != nil {
			t.Fatal(err)
		}
		closeDir(t, d)
		got, gotErr := contentOf(loaded(t, path))
		wanted, wantErr := contentOf(want)
		if err := errors.Join(gotErr, wantErr); err != nil {
			t.Fatal(err)
		}
		if !maps.EqualFunc(collected(got), collected(wanted), bytes.Equal) {
			t.Fatalf("%d: got %s, want %s", i, got.head, wanted.head)
		}
	}
}

func collected(c content) map[string][]byte {
	all := map[string][]byte{}
	for key, value := range c.entries() {
		all[key] = bytes.Clone(value)
	}
	return all
}

func BenchmarkSave(b *testing.B) {
	s := liveStore(b, 2000)
	d, _, _ := open(b, b.TempDir())
	for i := 0; b.Loop(); i++ {
		s.EndpointSlices().Apply(slice(b, "s001", fmt.Sprintf("10.7.%d.%d", i>>8&255, i&255)))
		save(b, d, state(b, s), s.History.Revision())
	}
	b.ReportMetric(float64(d.store.Written())/float64(b.N), "bytes/op")
}

func FuzzRead(f *testing.F) {
	former, err := os.ReadFile(filepath.Join("testdata", "snapshot-node0"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(former[len(formerHead):len(former)-sha256.Size], []byte("{}"), []byte("{}"), []byte{0})
	f.Fuzz(func(t *testing.T, former, head, mark, object []byte) {
		sealed := append([]byte(formerHead), former...)
		sum := sha256.Sum256(sealed)
		_, _ = parseFormer(append(sealed, sum[:]...)) // it does not panic
		read, err := parse(map[string][]byte{
			keyHead: head, keyMark: mark, objectPrefix + "services\x00ns\x00s": object,
		})
		if err != nil || read.Snapshot == nil {
			return
		}
		again, err := contentOf(read.Snapshot)
		if err == nil {
			_, err = parse(collected(again))
		}
		if err != nil {
			t.Errorf("%q is read, but not what is written of it: %v", head, err)
		}
	})
}
