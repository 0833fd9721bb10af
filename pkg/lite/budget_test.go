package lite

import (
	"bytes"
	"context"
	"crypto/rand"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/pkg/program/store"
)

// TestHourlyBytes: a node on which a megabyte changes every second writes no more than its budget, and has the newest
// state on the disk when the process ends. A calm one is written within a second.
func TestHourlyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(inMemory(t), "store")
		kept := newStore("node0")
		opened, _, problems := store.Open(store.Options{Dir: dir, Lasting: isLasting, State: kept.all,
			HourlyBytes: hourlyBytes})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		s := &Server{store: kept, disk: opened, config: Config{Dir: filepath.Dir(dir)}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			s.keep(ctx)
			close(ended)
		}()
		noise := make([]byte, 1<<20)
		_, _ = rand.Read(noise)
		change := func(i int, size int) {
			s.store.mu.Lock()
			s.store.change("x", append(strconv.AppendInt(nil, int64(i), 10), noise[:size]...))
			s.store.mu.Unlock()
			time.Sleep(time.Second)
			synctest.Wait()
		}
		change(0, 10)
		if s.written() == 0 || !s.due() {
			t.Error("a calm node is not written within a second")
		}
		const seconds = 900
		for i := range seconds {
			change(i, 1<<20)
		}
		if limit := int64(hourlyBytes*(1+seconds/3600.0)) + 8<<20; s.written() > limit || s.due() {
			t.Errorf("%d bytes in %d s, want %d at most", s.written(), seconds, limit)
		}
		cancel()
		<-ended
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		state, problems := store.Read(dir, nil)
		if len(problems) > 0 || !bytes.HasPrefix(state["x"], []byte(strconv.Itoa(seconds-1))) {
			t.Errorf("the newest change is lost: %.20q, %v", state["x"], problems)
		}
	})
}
