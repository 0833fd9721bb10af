package lite

import (
	"bytes"
	"context"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/pkg/lite/journal"
)

// TestHourlyBytes: a node on which a megabyte changes every second writes no more than its budget, and has the newest
// state on the disk when the process ends. A calm one is written within a second.
func TestHourlyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "journal")
		opened, _, _, err := journal.Open(dir, nil, isLasting)
		if err != nil {
			t.Fatal(err)
		}
		s := &Server{store: newStore("node0"), journal: opened}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.keep(ctx)
			close(ended)
		}()
		change := func(i int, size int) {
			s.store.mu.Lock()
			s.store.pending["x"] = append(strconv.AppendInt(nil, int64(i), 10), bytes.Repeat([]byte{'.'}, size)...)
			s.store.mu.Unlock()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		change(0, 10)
		if s.written() == 0 || s.saving.Load() {
			t.Error("a calm node is not written within a second")
		}
		const seconds = 900
		for i := range seconds {
			change(i, 1<<20)
		}
		if limit := int64(hourlyBytes*(1+seconds/3600.0)) + 8<<20; s.written() > limit || !s.saving.Load() {
			t.Errorf("%d bytes in %d s, want %d at most", s.written(), seconds, limit)
		}
		cancel()
		<-ended
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		opened, state, _, err := journal.Open(dir, nil, isLasting)
		if err != nil || !bytes.HasPrefix(state["x"], []byte(strconv.Itoa(seconds-1)+".")) {
			t.Errorf("the newest change is lost: %.20s, %v", state["x"], err)
		}
		_ = opened.Close() // it was only read
	})
}
