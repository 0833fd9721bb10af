package follow

import "time"

const (
	// firstPause is the mean pause after a first failure, longestPause that after many.
	firstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
	// optionalAttempts is how many attempts an optional source makes at the pace of the others; then it pauses for
	// optionalPause at least.
	optionalAttempts = 5
	optionalPause    = time.Minute
)

// backoff says how long to pause between attempts.
type backoff struct {
	// random returns a number in [0, 1).
	random func() float64
	// mean is that of the next pause; 0 for the first.
	mean time.Duration
}

// next is the pause before the next attempt: from half its mean to one and a half of it. Were the pauses of a fleet
// less random, it would return to a restarted API server at one moment.
func (b *backoff) next() time.Duration {
	mean := max(b.mean, firstPause)
	b.mean = min(2*mean, longestPause)
	return time.Duration((0.5 + b.random()) * float64(mean))
}

// reset lets the next pause be a first one.
func (b *backoff) reset() { b.mean = 0 }
