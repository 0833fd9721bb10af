package await_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/internal/testkit/await"
)

func TestNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, asked := time.Now(), 0
		err := await.NoError(t.Context(), time.Second, func(context.Context) error {
			if asked++; asked < 4 {
				return errors.New("not yet")
			}
			return nil
		})
		if took := time.Since(begin); err != nil || took != 3*time.Second {
			t.Errorf("asked %d times in %s: %v", asked, took, err)
		}
	})
}

// TestLastErrorIsTheAnswer: an attempt that the end of the context has cut off says nothing of what was waited for.
func TestLastErrorIsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 1500*time.Millisecond, errors.New("too late"))
		defer cancel()
		asked := 0
		err := await.NoError(ctx, time.Second, func(ctx context.Context) error {
			if asked++; asked == 1 {
				return errors.New("closed")
			}
			<-ctx.Done()
			return ctx.Err()
		})
		if err == nil || err.Error() != "too late: closed" {
			t.Errorf("got %v", err)
		}
	})
}

func TestNothingIsAskedAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	err := await.NoError(ctx, time.Second, func(context.Context) error {
		t.Error("asked")
		return nil
	})
	if err == nil || err.Error() != "stopped" {
		t.Errorf("got %v", err)
	}
}

type failed struct{ message string }

func (*failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) { f.message = fmt.Sprintf(format, args...) }

func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := await.Patience{Within: 10 * time.Second, Between: time.Second}
		begin := time.Now()
		late := func() error {
			if time.Since(begin) < 3*time.Second {
				return errors.New("early")
			}
			return nil
		}
		if took := p.Until(t, "three seconds", late); took != 3*time.Second {
			t.Errorf("it took %s", took)
		}
		f := &failed{}
		p.Until(f, "a thing", func() error { return errors.New("no") })
		if f.message != "a thing: not within 10s: no" {
			t.Errorf("got %q", f.message)
		}
		f = &failed{}
		p.UntilQuiet(f, func() string { return "noise" })
		if !strings.HasSuffix(f.message, "not within 10s: noise") {
			t.Errorf("got %q", f.message)
		}
		p.UntilQuiet(t, func() string { return "" })
	})
}
