package follow

import (
	"math/rand/v2"
	"time"
)

// SourcesBehindHub is how many sources of a wrapper a hub has: nodes, node, services and endpointslices.
const SourcesBehindHub = 4

// Pauses returns the pauses between the attempts of a Group, one with every call.
func Pauses() func() time.Duration {
	b := backoff{random: rand.Float64}
	return b.next
}
