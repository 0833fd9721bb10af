package siteexchange

import (
	"net/netip"
	"sync"

	"golang.org/x/time/rate"
)

// What a member may send at most. memberlist sends a few packets a second to each other node, and more when many nodes
// change at once. A node asks when another one's pods have changed.
const (
	packetsPerSecond, packetBurst         = 200, 1000
	connectionsPerSecond, connectionBurst = 20, 100
	questionsPerSecond, questionBurst     = 1, 5
)

// limits are the limits of what the members send. Packets have their own, because anyone in the network can send some
// from the address of a member.
type limits struct{ packets, connections, questions limiter }

func newLimits() *limits {
	return &limits{
		packets:     newLimiter(packetsPerSecond, packetBurst),
		connections: newLimiter(connectionsPerSecond, connectionBurst),
		questions:   newLimiter(questionsPerSecond, questionBurst),
	}
}

// keep forgets all addresses but those of members.
func (l *limits) keep(members map[netip.Addr]string) {
	for _, limiter := range []*limiter{&l.packets, &l.connections, &l.questions} {
		limiter.keep(members)
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

func newLimiter(perSecond rate.Limit, burst int) limiter {
	return limiter{rate: perSecond, burst: burst, of: make(map[netip.Addr]*rate.Limiter)}
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

func (l *limiter) keep(members map[netip.Addr]string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for address := range l.of {
		if _, member := members[address]; !member {
			delete(l.of, address)
		}
	}
}
