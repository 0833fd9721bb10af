package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

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
	before.SetNodeAddresses(addresses)
	internal := map[string][]netip.Addr{
		"node0": {netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, "node2": nil,
	}
	before.SetInternalIPs(internal)
	partners := map[string]struct{}{"node2": {}}
	before.SetPartners(partners)
	path := saved(t, before)

	d := open(t, path)
	restored, minRevision := d.Load()
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
	if !after.View.ServeRestored() {
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
	if got := after.NodeAddresses(); !maps.Equal(got, addresses) {
		t.Errorf("got the addresses %v", got)
	}
	if got := after.InternalIPs(); !maps.EqualFunc(got, internal, slices.Equal) {
		t.Errorf("got the InternalIPs %v", got)
	}
	if got := after.Partners(); !maps.Equal(got, partners) {
		t.Errorf("got the partners %v", got)
	}
	if after.History.Revision() <= before.History.Revision() {
		t.Errorf("revisions went from %d to %d", before.History.Revision(), after.History.Revision())
	}
	for _, section := range restored.Sections {
		for _, o := range section.Objects {
			if bytes.Contains(o.Body, []byte("10.1.1.1")) || o.Name == "node1" {
				t.Errorf("%s %s is of another unit", section.Input, o.Name)
			}
		}
	}
	for _, name := range names(t, path) {
		info, err := os.Stat(filepath.Join(path, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info.Mode(), err)
		}
	}
}

// expectRejected: nothing is served of it, it is set aside, and it is not in the way of the next.
func expectRejected(t *testing.T, path, what string) {
	t.Helper()
	d := open(t, path)
	restored, _ := d.Load()
	if restored != nil {
		t.Fatalf("%s: served", what)
	}
	if got := names(t, path); !slices.Contains(got, snapshotFile+rejectedSuffix) || slices.Contains(got, snapshotFile) {
		t.Fatalf("%s: not set aside: %q", what, got)
	}
	if _, err := d.Save(state(t, liveStore(t, 1)), 7, epoch); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	closeDir(t, d)
	if again := loaded(t, path); again == nil {
		t.Fatalf("%s: the next snapshot is not read", what)
	}
}

// TestDamagedSnapshot: one flipped bit anywhere, and every truncation.
func TestDamagedSnapshot(t *testing.T) {
	path := saved(t, liveStore(t, 20))
	file := filepath.Join(path, snapshotFile)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	put := func(data []byte) {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for i := range whole {
		damaged := bytes.Clone(whole)
		damaged[i] ^= 1 << (i % 8)
		put(damaged)
		if i%97 == 0 { // the whole of it now and then; it writes files
			expectRejected(t, path, "bit flipped")
			continue
		}
		if restored := loaded(t, path); restored != nil {
			t.Fatalf("a bit flipped in byte %d of %d is not noticed", i, len(whole))
		}
	}
	for length := range whole {
		put(whole[:length])
		if restored := loaded(t, path); restored != nil {
			t.Fatalf("cut to %d of %d bytes, and not noticed", length, len(whole))
		}
	}
	put(append(bytes.Clone(whole), 0))
	expectRejected(t, path, "one byte more")
	put(bytes.Repeat([]byte("garbage\n"), 1000))
	expectRejected(t, path, "garbage")
	// A flipped bit in the version is damage, not another version.
	damaged := bytes.Clone(whole)
	damaged[len(magic)+3] ^= 1
	put(damaged)
	expectRejected(t, path, "another version with the checksum of this one")
}

// resealed is a file with the checksum that belongs to its contents.
func resealed(data []byte) []byte {
	sum := sha256.Sum256(data)
	return append(bytes.Clone(data), sum[:]...)
}

// TestForeignSnapshot: whole files that are not what this node may serve.
func TestForeignSnapshot(t *testing.T) {
	s := liveStore(t, 2)
	good := &bytes.Buffer{}
	c := content{revision: 5, state: state(t, s)}
	if _, err := c.write(good); err != nil {
		t.Fatal(err)
	}
	compressed := func(records ...byte) []byte {
		b := bytes.NewBuffer(binary.BigEndian.AppendUint32([]byte(magic), version))
		w := gzip.NewWriter(b)
		_, _ = w.Write(records)
		_ = w.Close()
		return resealed(b.Bytes())
	}
	otherNode := &bytes.Buffer{}
	foreign := *c.state
	foreign.NodeName = "node1"
	if _, err := (content{revision: 5, state: &foreign}).write(otherNode); err != nil {
		t.Fatal(err)
	}
	revisionOnly, tooGreat := &bytes.Buffer{}, &bytes.Buffer{}
	if _, err := (content{revision: 5}).write(revisionOnly); err != nil {
		t.Fatal(err)
	}
	if _, err := (content{revision: 1 << 63, state: c.state}).write(tooGreat); err != nil {
		t.Fatal(err)
	}
	// A file whose records are those of a good one, with some more before the end.
	withRecords := func(records ...byte) []byte {
		return compressed(append([]byte{recordNode, 5, 'n', 'o', 'd', 'e', '0'}, append(records, recordEnd, 0)...)...)
	}
	shown := []byte{2, 1, 2, 3, 4, 5, 6, 7, 8} // a revision and a digest
	for what, data := range map[string][]byte{
		"of another node":           otherNode.Bytes(),
		"the other file":            revisionOnly.Bytes(),
		"a revision out of bounds":  tooGreat.Bytes(),
		"no records":                compressed(),
		"an unknown record":         compressed(9, 0),
		"a record without end":      compressed(recordObject, 200),
		"an enormous record":        compressed(recordObject, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"an object without section": compressed(recordNode, 1, 'n', recordObject, 0, recordEnd, 0),
		"an object that is none": compressed(recordNode, 1, 'n', recordSection, 1, 's', recordObject, 1, 0xff,
			recordEnd, 0),
		"an address that is none": compressed(recordNode, 1, 'n', recordAddress, 1, 'x', recordEnd, 0),
		"a number that is none":   compressed(recordRevision, 1, 1, recordEnd, 0),
		"a served number of none": withRecords(recordServed, 1, 1),
		"shown without section":   withRecords(append([]byte{recordShown, 9}, shown...)...),
		"more shown than there":   withRecords(append([]byte{recordSection, 1, 's', recordShown, 9}, shown...)...),
		"fewer shown than there":  withRecords(recordSection, 1, 's', recordObject, 0, recordShown, 0),
		"a revision without end":  withRecords(recordSection, 1, 's', recordObject, 0, recordShown, 1, 0x80),
		"a revision beyond 64 bits": withRecords(append(
			[]byte{recordSection, 1, 's', recordObject, 0, recordShown, 20}, bytes.Repeat([]byte{0xff}, 20)...,
		)...),
		"a digest cut short": withRecords(append(
			[]byte{recordSection, 1, 's', recordObject, 0, recordShown, 8}, shown[:8]...,
		)...),
		"bytes after the digest": withRecords(append(
			[]byte{recordSection, 1, 's', recordObject, 0, recordShown, 10}, append(shown, 0)...,
		)...),
	} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, snapshotFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		expectRejected(t, path, what)
	}
	// What it is compared with is not rejected because it was made here.
	for what, data := range map[string][]byte{
		"whole":       good.Bytes(),
		"with shown":  withRecords(append([]byte{recordSection, 1, 's', recordObject, 0, recordShown, 9}, shown...)...),
		"none so far": withRecords(recordSection, 1, 's', recordShown, 0),
	} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, snapshotFile), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if loaded(t, path) == nil {
			t.Errorf("a good one, %s, is not read", what)
		}
	}
}

// ofVersion is a whole file of another version of the format.
func ofVersion(file []byte, v byte) []byte {
	other := bytes.Clone(file[:len(file)-sha256.Size])
	other[len(magic)+3] = v
	return resealed(other)
}

// TestAnotherVersionIsLeftAlone until this version has a file of its own: whoever rolled a version out, or back, by
// mistake finds the other one's as it was. Then there is one of each, so that they do not fill the disk.
func TestAnotherVersionIsLeftAlone(t *testing.T) {
	for _, v := range []byte{version - 1, version + 1, 0, 255} {
		path := saved(t, liveStore(t, 2))
		others := map[string][]byte{}
		for _, name := range []string{snapshotFile, revisionFile} {
			data, err := os.ReadFile(filepath.Join(path, name))
			if err != nil {
				t.Fatal(err)
			}
			others[name] = ofVersion(data, v)
			if err := os.WriteFile(filepath.Join(path, name), others[name], 0o600); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(when string, files map[string][]byte) {
			t.Helper()
			for name, want := range files {
				if got, err := os.ReadFile(filepath.Join(path, name)); err != nil || !bytes.Equal(got, want) {
					t.Errorf("version %d, %s: %s is not as it was: %v", v, when, name, err)
				}
			}
			if got := names(t, path); len(got) != len(files) && when != "replaced" {
				t.Errorf("version %d, %s: there is %q", v, when, got)
			}
		}
		for range 2 {
			d := open(t, path)
			if restored, minRevision := d.Load(); restored != nil || minRevision != 0 {
				t.Fatalf("version %d is read as if it were this one's: %v %d", v, restored, minRevision)
			}
			closeDir(t, d)
			expect("loaded", others)
		}
		d := open(t, path)
		d.Load()
		if err := d.Reserve(100); err != nil {
			t.Fatal(err)
		}
		expect("reserved", map[string][]byte{
			snapshotFile: others[snapshotFile], revisionFile + rejectedSuffix: others[revisionFile],
			revisionFile: readFile(t, path, revisionFile),
		})
		for range 2 {
			if _, err := d.Save(state(t, liveStore(t, 1)), 100, epoch); err != nil {
				t.Fatal(err)
			}
			expect("replaced", map[string][]byte{
				snapshotFile + rejectedSuffix: others[snapshotFile],
				revisionFile + rejectedSuffix: others[revisionFile],
			})
		}
		want := []string{revisionFile, revisionFile + rejectedSuffix, snapshotFile, snapshotFile + rejectedSuffix}
		if got := names(t, path); !slices.Equal(got, want) {
			t.Errorf("version %d: there is %q, want %q", v, got, want)
		}
		closeDir(t, d)
		again := open(t, path)
		if restored, minRevision := again.Load(); restored == nil || minRevision < 100 {
			t.Errorf("version %d: this version's own is not read: %v %d", v, restored, minRevision)
		}
	}
}

func readFile(t *testing.T, path, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestFilesOfAnotherNodeAreLeftAlone: a disk may be moved to another node, and back.
func TestFilesOfAnotherNodeAreLeftAlone(t *testing.T) {
	path := saved(t, liveStore(t, 3))
	snapshot, revision := readFile(t, path, snapshotFile), readFile(t, path, revisionFile)
	for _, other := range []string{"node1", "", "node0.example", "a/../b", "node0" + rejectedSuffix} {
		d := openAs(t, path, other)
		if restored, minRevision := d.Load(); restored != nil || minRevision != 0 {
			t.Fatalf("node %q is served what is node0's: %v %d", other, restored, minRevision)
		}
		theirs := *state(t, liveStore(t, 1))
		theirs.NodeName = other
		if _, err := d.Save(&theirs, 7, epoch); err != nil {
			t.Fatal(err)
		}
		closeDir(t, d)
		if !bytes.Equal(readFile(t, path, snapshotFile), snapshot) ||
			!bytes.Equal(readFile(t, path, revisionFile), revision) {
			t.Errorf("node %q has changed node0's files", other)
		}
		d = openAs(t, path, other)
		if restored, _ := d.Load(); restored == nil || restored.NodeName != other ||
			len(sectionOf(restored, facts.InputServices).Objects) != 1 {
			t.Errorf("node %q does not find its own: %+v", other, restored)
		}
		closeDir(t, d)
	}
	if restored := loaded(t, path); restored == nil || len(sectionOf(restored, facts.InputServices).Objects) != 3 {
		t.Errorf("node0 does not find its own again: %+v", restored)
	}
	for _, name := range names(t, path) {
		if info, err := os.Stat(filepath.Join(path, name)); err != nil || info.IsDir() {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestOneProcessAtATime has a directory, whatever its node: two would give out the same revisions, and overwrite what
// the other one is writing.
func TestOneProcessAtATime(t *testing.T) {
	path := saved(t, liveStore(t, 1))
	first := open(t, path)
	first.Load()
	before := names(t, path)
	for _, nodeName := range []string{"node0", "node1"} {
		second, err := Open(path, nodeName, logr.Discard())
		if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), "--state-dir") {
			t.Errorf("%s: got %v", nodeName, err)
		}
		if err := second.Close(); err != nil {
			t.Errorf("closing what was not had: %v", err)
		}
	}
	if got := names(t, path); !slices.Equal(got, before) {
		t.Errorf("there is %q, before there was %q", got, before)
	}
	if _, err := first.Save(state(t, liveStore(t, 2)), 7, epoch); err != nil {
		t.Errorf("the one that has it cannot write any more: %v", err)
	}
	closeDir(t, first)
	if restored := loaded(t, path); restored == nil || len(sectionOf(restored, facts.InputServices).Objects) != 2 {
		t.Errorf("the next one finds %+v", restored)
	}
}

// TestReadThoughItCannotBeLocked: what is there is served; it is the next snapshot that there will not be.
func TestReadThoughItCannotBeLocked(t *testing.T) {
	path := saved(t, liveStore(t, 1))
	lock := filepath.Join(path, lockName)
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(lock, 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path, "node0", logr.Discard())
	if err == nil || errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), lock) {
		t.Errorf("got %v", err)
	}
	if restored, minRevision := d.Load(); restored == nil || minRevision == 0 {
		t.Errorf("got %v %d", restored, minRevision)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
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
		written := &facts.State{NodeName: "node0", AsOf: epoch, Revision: 4711, Sections: []facts.Section{
			{Input: facts.InputNodes, Objects: []*wire.Object{node(t, "node0", "a", "")}},
			{Input: facts.InputEndpointSlices, Objects: slices3, Shown: shown},
			{Input: facts.InputServices, Shown: []facts.Shown{}},
		}}
		path := t.TempDir()
		d := open(t, path)
		d.Load()
		if _, err := d.Save(written, 5000, epoch); err != nil {
			t.Fatal(err)
		}
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
			shownAt := read.ShownOf(served.EndpointSlices)
			if shown == nil {
				if len(shownAt) != 0 {
					t.Errorf("shown at %v", shownAt)
				}
				continue
			}
			if got := shownAt[types.NamespacedName{Namespace: o.Namespace, Name: o.Name}]; got != shown[i] {
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
		d := open(t, path)
		restored, minRevision := d.Load()
		s := emptyStore(minRevision)
		if restored != nil {
			s.Restore(restored)
		}
		if s.History.Revision() <= last {
			t.Fatalf("process %d begins at %d, the one before ended at %d", i, s.History.Revision(), last)
		}
		if err := d.Reserve(s.History.Revision()); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 3)
		if i%3 == 0 {
			if _, err := d.Save(state(t, s), s.History.Revision(), epoch); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 { // also without the smaller file
				if err := os.Remove(filepath.Join(path, revisionFile)); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Services().Remove("ns", "s000")
		last = s.History.Revision()
		closeDir(t, d) // as the kernel does for a process that dies
	}
}

// TestReserveIsRare: it is a writing too.
func TestReserveIsRare(t *testing.T) {
	d := open(t, t.TempDir())
	if err := d.Reserve(1000); err != nil {
		t.Fatal(err)
	}
	first := d.reserved
	for _, used := range []uint64{1001, 1000 + reserve/4} {
		if err := d.Reserve(used); err != nil || d.reserved != first {
			t.Errorf("at %d: %d, %v", used, d.reserved, err)
		}
	}
	used := first - 10
	if err := d.Reserve(used); err != nil || d.reserved <= used+reserve/2 {
		t.Errorf("at %d: %d, %v", used, d.reserved, err)
	}
}

// TestDirectoryThatCannotBeUsed: an error that names it, and what is there is still read.
func TestDirectoryThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := Open(filepath.Join(file, "state"), "node0", logr.Discard())
	if err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v", err)
	}
	if restored, minRevision := d.Load(); restored != nil || minRevision != 0 {
		t.Errorf("got %v %d", restored, minRevision)
	}
	if _, err := d.Save(state(t, liveStore(t, 1)), 1, epoch); err == nil {
		t.Error("saved nowhere, without an error")
	}
}

// TestDiskFull: the snapshot there is stays, and nothing that would fill the disk more.
func TestDiskFull(t *testing.T) {
	s := liveStore(t, 3)
	path := saved(t, s)
	d := open(t, path)
	d.Load()
	if err := os.Symlink("/dev/full", filepath.Join(path, snapshotFile+asideSuffix)); err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{})
	if _, err := d.Save(state(t, s), s.History.Revision(), epoch); err == nil ||
		!strings.Contains(err.Error(), "no space left") {
		t.Fatalf("got %v", err)
	}
	if got := names(t, path); !slices.Equal(got, []string{revisionFile, snapshotFile}) {
		t.Errorf("there is %q", got)
	}
	data := readFile(t, path, snapshotFile)
	c, err := read(bytes.NewReader(data), int64(len(data)))
	if err != nil || len(sectionOf(c.state, facts.InputServices).Objects) != 3 {
		t.Errorf("the earlier snapshot is gone: %+v, %v", c, err)
	}
	if _, err := d.Save(state(t, s), s.History.Revision(), epoch); err != nil {
		t.Errorf("with space again: %v", err)
	}
	closeDir(t, d)
	if restored := loaded(t, path); restored == nil || len(sectionOf(restored, facts.InputServices).Objects) != 0 {
		t.Errorf("with space again there is %+v", restored)
	}
}

// TestHalfWritten: what a process that died left aside is neither read nor in the way.
func TestHalfWritten(t *testing.T) {
	path := saved(t, liveStore(t, 1))
	if err := os.WriteFile(filepath.Join(path, snapshotFile+asideSuffix), []byte(magic+"half"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	if restored, _ := d.Load(); restored == nil {
		t.Fatal("the whole one is not read")
	}
	if _, err := d.Save(state(t, liveStore(t, 2)), 1, epoch); err != nil {
		t.Fatal(err)
	}
	if got := names(t, path); !slices.Equal(got, []string{revisionFile, snapshotFile}) {
		t.Errorf("there is %q", got)
	}
}

func BenchmarkSave(b *testing.B) {
	s := liveStore(b, 2000)
	d := open(b, b.TempDir())
	for b.Loop() {
		size, err := d.Save(state(b, s), s.History.Revision(), epoch)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(size), "bytes")
	}
}

func FuzzRead(f *testing.F) {
	var good bytes.Buffer
	if _, err := (content{revision: 5, state: state(f, liveStore(f, 2))}).write(&good); err != nil {
		f.Fatal(err)
	}
	f.Add(good.Bytes())
	f.Fuzz(func(_ *testing.T, data []byte) {
		// As it came, and as if its checksum were right.
		_, _ = read(bytes.NewReader(data), int64(len(data)))
		data = resealed(data)
		_, _ = read(bytes.NewReader(data), int64(len(data)))
	})
}
