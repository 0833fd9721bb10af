// Package await waits for what happens in another goroutine or in another process: in tests, and in the programs that
// start a cluster for them. A test that crosses no network is better off in a bubble of testing/synctest, which needs
// no patience. The product does not import it.
package await

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// NoError calls ask until it returns no error or ctx ends, with this pause between two calls. ask gets a context that
// ends with ctx. The error names why ctx ended, and what the last call that ctx did not cut off has returned.
func NoError(ctx context.Context, between time.Duration, ask func(context.Context) error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		if ctx.Err() != nil {
			if last == nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w: %w", context.Cause(ctx), last)
		}
		err := ask(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		timer.Reset(between)
	}
}

// Patience is how long a test waits, and the pause between two looks.
type Patience struct {
	Within, Between time.Duration
}

// T is the part of testing.TB that waiting needs.
type T interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Until calls ask until it returns no error, and returns how long that took. The test fails when the time is over; what
// says what is waited for.
func (p Patience) Until(t T, what string, ask func() error) time.Duration {
	t.Helper()
	begin := time.Now()
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.Within, fmt.Errorf("not within %s", p.Within))
	defer cancel()
	if err := NoError(ctx, p.Between, func(context.Context) error { return ask() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return time.Since(begin)
}

// UntilQuiet calls complain until it returns nothing. The test fails with the last complaint when the time is over.
func (p Patience) UntilQuiet(t T, complain func() string) {
	t.Helper()
	p.Until(t, "it continues to complain", func() error {
		if complaint := complain(); complaint != "" {
			return errors.New(complaint)
		}
		return nil
	})
}
