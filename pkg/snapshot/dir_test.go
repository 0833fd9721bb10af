package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/application-grid/application-grid/pkg/storage"
	"github.com/application-grid/application-grid/pkg/wire"
)

// TestWhatWasServedIsServedAgain by another process, and nothing that the node may not see is on its disk.
func TestWhatWasServedIsServedAgain(t *testing.T) {
	before := liveStore(t, 3)
	addresses := map[netip.Addr]string{netip.MustParseAddr("192.0.2.1"): "node0", netip.MustParseAddr("2001:db8::1"): "node1"}
	before.SetNodeAddresses(addresses)
	path := saved(t, before)

	restored, minRevision := open(t, path).Load()
	if restored == nil || !restored.AsOf.Equal(epoch) || restored.NodeName != "node0" {
		t.Fatalf("got %+v", restored)
	}
	after := storage.New(storage.Options{NodeName: "node0", KeepKubernetesEndpoint: true, State: restored, MinRevision: minRevision})
	if _, _, err := after.List(storage.Services, ""); err == nil {
		t.Error("served before it was asked to be")
	}
	if !after.Restore() {
		t.Fatal("not restored")
	}
	if got, want := shown(t, after), shown(t, before); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := after.NodeAddresses(); !maps.Equal(got, addresses) {
		t.Errorf("got the addresses %v", got)
	}
	if after.Revision() <= before.Revision() {
		t.Errorf("revisions went from %d to %d", before.Revision(), after.Revision())
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
	if got := names(t, path); !slices.Contains(got, "snapshot.rejected") || slices.Contains(got, "snapshot") {
		t.Fatalf("%s: not set aside: %q", what, got)
	}
	if _, err := d.Save(state(t, liveStore(t, 1)), 7, epoch); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	if again, _ := open(t, path).Load(); again == nil {
		t.Fatalf("%s: the next snapshot is not read", what)
	}
}

// TestDamagedSnapshot: one flipped bit anywhere, and every truncation.
func TestDamagedSnapshot(t *testing.T) {
	path := saved(t, liveStore(t, 20))
	file := filepath.Join(path, "snapshot")
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
		if restored, _ := open(t, path).Load(); restored != nil {
			t.Fatalf("a bit flipped in byte %d of %d is not noticed", i, len(whole))
		}
	}
	for length := range whole {
		put(whole[:length])
		if restored, _ := open(t, path).Load(); restored != nil {
			t.Fatalf("cut to %d of %d bytes, and not noticed", length, len(whole))
		}
	}
	put(append(bytes.Clone(whole), 0))
	expectRejected(t, path, "one byte more")
	put(bytes.Repeat([]byte("garbage\n"), 1000))
	expectRejected(t, path, "garbage")
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
	body := good.Bytes()[:good.Len()-sha256.Size]
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
	newer := bytes.Clone(body)
	newer[len(magic)+3] = version + 1
	for what, data := range map[string][]byte{
		"of another node":           otherNode.Bytes(),
		"the other file":            revisionOnly.Bytes(),
		"a revision out of bounds":  tooGreat.Bytes(),
		"of a later version":        resealed(newer),
		"no records":                compressed(),
		"an unknown record":         compressed(9, 0),
		"a record without end":      compressed(recordObject, 200),
		"an enormous record":        compressed(recordObject, 0xff, 0xff, 0xff, 0xff, 0x7f),
		"an object without section": compressed(recordNode, 1, 'n', recordObject, 0, recordEnd, 0),
		"an object that is none":    compressed(recordNode, 1, 'n', recordSection, 1, 's', recordObject, 1, 0xff, recordEnd, 0),
		"an address that is none":   compressed(recordNode, 1, 'n', recordAddress, 1, 'x', recordEnd, 0),
		"a number that is none":     compressed(recordRevision, 1, 1, recordEnd, 0),
	} {
		path := t.TempDir()
		if err := os.WriteFile(filepath.Join(path, "snapshot"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		expectRejected(t, path, what)
	}
}

// TestRevisionsGrow over processes that die at any time, whatever the clock says.
func TestRevisionsGrow(t *testing.T) {
	path := t.TempDir()
	var last uint64
	for i := range 20 {
		d := open(t, path)
		restored, minRevision := d.Load()
		s := storage.New(storage.Options{
			NodeName: "node0", KeepKubernetesEndpoint: true, State: restored, MinRevision: minRevision,
			Clock: func() time.Time { return epoch.Add(-time.Duration(i) * 24 * time.Hour) }, // a clock that is set back
		})
		if s.Revision() <= last {
			t.Fatalf("process %d begins at %d, the one before ended at %d", i, s.Revision(), last)
		}
		if err := d.Reserve(s.Revision()); err != nil {
			t.Fatal(err)
		}
		fill(t, s, 3)
		if i%3 == 0 {
			if _, err := d.Save(state(t, s), s.Revision(), epoch); err != nil {
				t.Fatal(err)
			}
			if i%2 == 0 { // also without the smaller file
				if err := os.Remove(filepath.Join(path, "revision")); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.Services().Remove("ns", "s000")
		last = s.Revision()
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
	if err := os.Symlink("/dev/full", filepath.Join(path, "snapshot.new")); err != nil {
		t.Fatal(err)
	}
	s.Services().Replace([]*wire.Object{})
	if _, err := d.Save(state(t, s), s.Revision(), epoch); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("got %v", err)
	}
	if got := names(t, path); !slices.Equal(got, []string{"revision", "snapshot"}) {
		t.Errorf("there is %q", got)
	}
	restored, _ := open(t, path).Load()
	if !restored.Has(storage.InputServices) {
		t.Error("the earlier snapshot is gone")
	}
	if _, err := d.Save(state(t, s), s.Revision(), epoch); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

// TestHalfWritten: what a process that died left aside is neither read nor in the way.
func TestHalfWritten(t *testing.T) {
	path := saved(t, liveStore(t, 1))
	if err := os.WriteFile(filepath.Join(path, "snapshot.new"), []byte(magic+"half"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	if restored, _ := d.Load(); restored == nil {
		t.Fatal("the whole one is not read")
	}
	if _, err := d.Save(state(t, liveStore(t, 2)), 1, epoch); err != nil {
		t.Fatal(err)
	}
	if got := names(t, path); !slices.Equal(got, []string{"revision", "snapshot"}) {
		t.Errorf("there is %q", got)
	}
}

func BenchmarkSave(b *testing.B) {
	s := liveStore(b, 2000)
	d := open(b, b.TempDir())
	for b.Loop() {
		size, err := d.Save(state(b, s), s.Revision(), epoch)
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
