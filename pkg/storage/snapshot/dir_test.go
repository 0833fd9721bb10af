package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
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
	"github.com/application-grid/application-grid/pkg/storage/wire/wiretest"
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
				t.Errorf("%s %s is of another site", section.Input, o.Name)
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

// compressed is a file of this data, with the right checksum.
func compressed(data ...byte) []byte {
	b := bytes.NewBuffer(binary.BigEndian.AppendUint32([]byte(magic), version))
	w := gzip.NewWriter(b)
	_, _ = w.Write(data)
	_ = w.Close()
	return resealed(b.Bytes())
}

// decompressed is what is compressed in a file.
func decompressed(tb testing.TB, file []byte) []byte {
	tb.Helper()
	r, err := gzip.NewReader(bytes.NewReader(file[headSize : len(file)-sha256.Size]))
	if err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// ofValues is a file of these values.
func ofValues(values ...string) []byte {
	var data []byte
	for _, value := range values {
		data = append(binary.AppendUvarint(data, uint64(len(value))), value...)
	}
	return compressed(data...)
}

// written is the file of a content.
func written(tb testing.TB, c content) []byte {
	tb.Helper()
	b := &bytes.Buffer{}
	if err := c.write(b); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

// dirWith is a directory with this file as its snapshot.
func dirWith(t *testing.T, data []byte) string {
	t.Helper()
	path := t.TempDir()
	if err := os.WriteFile(filepath.Join(path, snapshotFile), data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestForeignSnapshot: whole files that are not what this node may serve.
func TestForeignSnapshot(t *testing.T) {
	own := state(t, liveStore(t, 2))
	foreign := *own
	foreign.NodeName = "node1"
	const (
		none    = `{"State": {"NodeName": "node0"}}`
		section = `{"State": {"NodeName": "node0", "Sections": [{"Input": "s"}]}}`
		object  = "\x0a\x00" // with empty metadata
		shown   = "a revision,a digest"
	)
	for what, data := range map[string][]byte{
		"of another node":             written(t, content{Revision: 5, State: &foreign}),
		"the other file":              written(t, content{Revision: 5}),
		"a revision out of bounds":    written(t, content{Revision: 1 << 63, State: own}),
		"a revision beyond 64 bits":   ofValues(`{"Revision": 18446744073709551616, "State": {"NodeName": "node0"}}`),
		"an address that is none":     ofValues(`{"State": {"NodeName": "node0", "Addresses": {"x": ""}}}`),
		"an unknown field":            ofValues(`{"State": {"NodeName": "node0", "x": 0}}`),
		"an object as JSON":           ofValues(strings.Replace(section, `"Input"`, `"Objects"`, 1), "", ""),
		"no values":                   compressed(),
		"no JSON":                     ofValues(object),
		"an empty JSON":               ofValues("null"),
		"JSON cut short":              ofValues(none[:len(none)-1]),
		"JSON and something else":     ofValues(none + "{}"),
		"a length cut short":          compressed(0x80),
		"a length beyond 64 bits":     compressed(bytes.Repeat([]byte{0xff}, 20)...),
		"an enormous value":           compressed(0xff, 0xff, 0xff, 0xff, 0x7f),
		"a value cut short":           compressed(3, 'n', 'u'),
		"an object without section":   ofValues(none, object),
		"an object that is none":      ofValues(section, "\xff", "", ""),
		"a section that is not there": ofValues(section),
		"a section without end":       ofValues(section, object),
		"objects without shown":       ofValues(section, object, ""),
		"more shown than there":       ofValues(section, "", shown[:16]),
		"fewer shown than there":      ofValues(section, object, object, "", shown[:16]),
		"shown cut short":             ofValues(section, object, "", shown[:15]),
		"more than a digest":          ofValues(section, object, "", shown[:17]),
		"one section more":            ofValues(section, object, "", shown[:16], "", ""),
	} {
		expectRejected(t, dirWith(t, data), what)
	}
	// What it is compared with is not rejected because it was made here.
	for what, data := range map[string][]byte{
		"whole":       written(t, content{Revision: 5, State: own}),
		"no section":  ofValues(none),
		"none so far": ofValues(section, "", ""),
		"with shown":  ofValues(section, object, "", shown[:16]),
		"not shown":   ofValues(section, object, "", ""),
	} {
		if loaded(t, dirWith(t, data)) == nil {
			t.Errorf("a good one, %s, is not read", what)
		}
	}
}

// TestForm: a snapshot is read as it was written, and equal ones are equal files. Another form needs another version.
func TestForm(t *testing.T) {
	const form = `{"Revision":5,"State":{"NodeName":"node0","AsOf":"2026-01-02T03:04:05Z","Revision":4,` +
		`"Sections":[{"Input":"nodes"},{"Input":"services"}],` +
		`"Addresses":{"192.0.2.1":"node0","192.0.2.2":"node1","2001:db8::1":"node0"},` +
		`"InternalIPs":{"node0":["2001:db8::1","192.0.2.1"],"node1":null},"Partners":{"node1":{},"node2":{}},` +
		`"PodNotes":[{"Note":1}],"ShareMark":"AQI="}}`
	here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	v6 := netip.MustParseAddr("2001:db8::1")
	shown := []facts.Shown{{Revision: 3, Digest: 1<<64 - 1}}
	c := content{Revision: 5, State: &facts.State{
		NodeName: "node0", AsOf: epoch, Revision: 4,
		Sections: []facts.Section{
			{Input: facts.InputNodes, Objects: []*wire.Object{node(t, "node0", "a", "")}},
			{Input: facts.InputServices, Objects: []*wire.Object{wiretest.Service("s", "")}, Shown: shown},
		},
		Addresses:   map[netip.Addr]string{v6: "node0", there: "node1", here: "node0"},
		InternalIPs: map[string][]netip.Addr{"node1": nil, "node0": {v6, here}},
		Partners:    map[string]struct{}{"node2": {}, "node1": {}},
		PodNotes:    []byte(`[{"Note":1}]`), ShareMark: []byte{1, 2},
	}}
	file := written(t, c)
	data := decompressed(t, file)
	length, n := binary.Uvarint(data)
	if got := string(data[n:][:length]); got != form || version != 3 {
		t.Errorf("version %d has another form: got\n%s, want\n%s", version, got, form)
	}
	got, err := read(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written(t, got), file) {
		t.Errorf("written again, the file is another one: got %+v of %+v", got.State, c.State)
	}
	got.State.Partners = nil
	c.State.Partners = map[string]struct{}{}
	if !bytes.Equal(written(t, got), written(t, c)) {
		t.Error("no partners and an empty map of them are different")
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
			{Input: facts.InputServices},
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
	if err != nil || len(sectionOf(c.State, facts.InputServices).Objects) != 3 {
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
	file := written(f, content{Revision: 5, State: state(f, liveStore(f, 2))})
	f.Add(file)
	f.Add(decompressed(f, file))
	f.Fuzz(func(t *testing.T, data []byte) {
		// As it came, as if its checksum were right, and as if it were what is compressed.
		for _, file := range [][]byte{data, resealed(data), compressed(data...)} {
			c, err := read(bytes.NewReader(file), int64(len(file)))
			if err != nil {
				continue
			}
			again := written(t, c)
			if _, err := read(bytes.NewReader(again), int64(len(again))); err != nil {
				t.Errorf("%q is read, but not what is written of it: %v", data, err)
			}
		}
	})
}
