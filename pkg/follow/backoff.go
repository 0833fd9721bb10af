package follow

import "time"

const (
	// firstPause is the mean pause after a first failure, and longestPause the mean pause after many.
	firstPause   = 500 * time.Millisecond
	longestPause = 15 * time.Second
	// optionalAttempts is how many attempts an optional source makes at the pace of the others. After these it pauses
	// for at least optionalPause.
	optionalAttempts = 5
	optionalPause    = time.Minute
)

type backoff struct {
	// random returns a number in [0, 1).
	random func() float64
	// mean is the mean of the next pause; 0 before the first.
	mean time.Duration
}

// next returns the pause before the next attempt: between half and one and a half of its mean. With less random pauses
// all nodes would return to a restarted API server at the same moment.
func (b *backoff) next() time.Duration {
	mean := max(b.mean, firstPause)
	b.mean = min(2*mean, longestPause)
	return time.Duration((0.5 + b.random()) * float64(mean))
}

// reset makes the next pause a first one.
func (b *backoff) reset() { b.mean = 0 }
