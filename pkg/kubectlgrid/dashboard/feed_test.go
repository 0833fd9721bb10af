package dashboard

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// TestFeedGathers: many changes at a time are one revision, and a change that comes later is another.
func TestFeedGathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		f := newFeed()
		go f.run(ctx)
		begin, next := f.latest()
		for range 1000 {
			f.signal()
		}
		time.Sleep(gathered - time.Millisecond)
		synctest.Wait()
		if revision, _ := f.latest(); revision != begin {
			t.Errorf("revision %d before the changes are gathered", revision)
		}
		<-next
		if revision, _ := f.latest(); revision != begin+1 {
			t.Errorf("revision %d of the changes of one moment", revision)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if revision, _ := f.latest(); revision != begin+1 {
			t.Errorf("revision %d, and nothing has changed", revision)
		}
		_, next = f.latest()
		f.signal()
		at := time.Now()
		<-next
		if took := time.Since(at); took != gathered {
			t.Errorf("a change was told after %s", took)
		}
		stop()
		synctest.Wait()
	})
}
