package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// TestFrames: a transaction has frames of about frameSize, of which a reader takes only whole ones.
func TestFrames(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	entries := map[string][]byte{}
	for i := range 100 {
		value := make([]byte, 20<<10) // 12 of them fit into a frame
		_, _ = random.Read(value)     // it never fails
		entries[fmt.Sprint(i)] = value
	}
	var writer position
	var file bytes.Buffer
	file.Write(writer.begin())
	begin := writer
	none := func(int64) []byte { return nil }
	if err := writer.write(&file, maps.All(entries), none); err != nil {
		t.Fatal(err)
	}
	content := file.Bytes()[begin.offset:]
	reader, rest, frames := begin, bytes.NewReader(content), 0
	for rest.Len() > 0 {
		short, at := reader, reader.offset-begin.offset
		if _, _, err := short.readFrame(bytes.NewReader(content[at:]), frameHead); !errors.Is(err, errEnd) {
			t.Errorf("frame %d of a file without its body: %v", frames, err)
		}
		before := rest.Len()
		body, _, err := reader.readFrame(rest, int64(rest.Len()))
		if err != nil {
			t.Fatalf("frame %d: %v", frames, err)
		}
		if len(body) > frameSize || rest.Len() > 0 && len(body) < 12*(20<<10) {
			t.Errorf("frame %d has %d bytes of entries", frames, len(body))
		}
		cut := begin
		cut.offset, cut.sum = 0, short.sum
		whole := content[len(content)-before : len(content)-rest.Len()]
		if _, _, err := cut.readFrame(bytes.NewReader(whole), int64(len(whole))-1); !errors.Is(err, errEnd) {
			t.Errorf("frame %d in a file that is a byte too short: %v", frames, err)
		}
		frames++
	}
	if frames != 9 { // 8 of 12 values, and one of 4
		t.Errorf("there are %d frames", frames)
	}
}

// TestLargeEntries: an entry that is larger than a frame has one of its own, and a frame's size includes the keys.
func TestLargeEntries(t *testing.T) {
	long := func(i int) string { return fmt.Sprintf("%0*d", 60<<10, i) }
	for name, test := range map[string]struct {
		entries map[string][]byte
		frames  int
	}{
		"one value": {map[string][]byte{"a": make([]byte, frameSize+1)}, 1},
		"long keys": {map[string][]byte{long(1): {}, long(2): {}, long(3): {}, long(4): {}, long(5): {}}, 2},
	} {
		var writer position
		var file bytes.Buffer
		_ = writer.begin()
		reader := writer
		if err := writer.write(&file, maps.All(test.entries), func(int64) []byte { return nil }); err != nil {
			t.Fatal(err)
		}
		frames := 0
		for ; file.Len() > 0; frames++ {
			if _, _, err := reader.readFrame(&file, int64(file.Len())); err != nil {
				t.Fatal(err)
			}
		}
		if frames != test.frames {
			t.Errorf("%s: %d frames", name, frames)
		}
	}
}

// TestDamagedHead is damage, and no other version of the format.
func TestDamagedHead(t *testing.T) {
	content := magicPrefix + "2 plein \n" + string(make([]byte, 100))
	var reader position
	if err := reader.readHead(bytes.NewReader([]byte(content)), int64(len(content))); !errors.Is(err, errForm) {
		t.Error(err)
	}
}

// TestEntryWithoutItsValue is damage, and does not remove the key.
func TestEntryWithoutItsValue(t *testing.T) {
	var writer position
	begin := writer
	entry := appendEntry(nil, "key", []byte("value"))
	frame := writer.frame(entry[:len("key")+1], flagEnd)
	if all, err := begin.read(bufio.NewReader(bytes.NewReader(frame)), int64(len(frame))); !errors.Is(err, errEnd) {
		t.Errorf("read %v, %v", all, err)
	}
}

// TestBudgetPaysWhatIsOwed with half of what comes in, and with all of it that a full budget does not need.
func TestBudgetPaysWhatIsOwed(t *testing.T) {
	const hourly = 3600
	start := time.Unix(1e9, 0)
	for _, test := range []struct {
		left, owed         int64
		after              time.Duration
		wantLeft, wantOwed int64
	}{
		{left: 0, owed: 10000, after: 100 * time.Second, wantLeft: 50, wantOwed: 9950},
		{left: 0, owed: 20, after: 100 * time.Second, wantLeft: 80, wantOwed: 0},
		{left: hourly, owed: 10000, after: 100 * time.Second, wantLeft: hourly, wantOwed: 9900},
		{left: hourly - 20, owed: 10000, after: 100 * time.Second, wantLeft: hourly, wantOwed: 9920},
		{left: -500, owed: 0, after: 100 * time.Second, wantLeft: -400},
		{left: 100, owed: 100, after: -time.Hour, wantLeft: 100, wantOwed: 100},
	} {
		b := budget{hourly: hourly, left: test.left, owed: test.owed, at: start}
		b.fill(start.Add(test.after))
		if b.left != test.wantLeft || b.owed != test.wantOwed {
			t.Errorf("%+v: left %d, owed %d", test, b.left, b.owed)
		}
	}
	k, _ := keep(t, t.TempDir(), nil)
	if k.budget.left = 0; k.Left() > 0 {
		t.Error("a commit is due without any budget")
	}
}
