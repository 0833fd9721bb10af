package follow

import "time"

// Pauses returns the pauses between attempts of a client that is in no Group: each call the next one, as a Group has
// them.
// random returns numbers in [0, 1).
func Pauses(random func() float64) (next func() time.Duration) {
	b := &backoff{random: random}
	return b.next
}
