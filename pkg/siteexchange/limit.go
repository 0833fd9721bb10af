package siteexchange

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// What a member may send at most. memberlist sends a few packets a second to each other node, and more when many nodes
// change at once. A node asks when another one's pods have changed.
const (
	packetsPerSecond, packetBurst     = 200, 1000
	questionsPerSecond, questionBurst = 1, 5
)

// limits are the limits of what the members send.
type limits struct{ packets, questions limiter }

func newLimits() *limits {
	return &limits{
		packets:   limiter{rate: packetsPerSecond, burst: packetBurst, of: make(map[netip.Addr]*rate.Limiter)},
		questions: limiter{rate: questionsPerSecond, burst: questionBurst, of: make(map[netip.Addr]*rate.Limiter)},
	}
}

// limiter limits what comes from each address. Its callers ask for addresses of members only.
type limiter struct {
	rate  rate.Limit
	burst int

	mu sync.Mutex
	// of is guarded by mu.
	of map[netip.Addr]*rate.Limiter
}

// allow reports whether one more may come from an address now.
func (l *limiter) allow(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.of[from]
	if of == nil {
		of = rate.NewLimiter(l.rate, l.burst)
		l.of[from] = of
	}
	return of.Allow()
}

// keep forgets all addresses but those of members.
func (l *limiter) keep(members map[netip.Addr]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address := range l.of {
		if _, member := members[address]; !member {
			delete(l.of, address)
		}
	}
}
