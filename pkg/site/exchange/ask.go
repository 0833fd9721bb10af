package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// patience is how long a question may take, with the connection and the answer: less than two intervals.
	patience = 1900 * time.Millisecond
	// leavePatience is how long it may take to say that this wrapper stops.
	leavePatience = 200 * time.Millisecond
)

// peer is another node that is asked.
type peer struct {
	e    *Exchange
	name string

	// The fields below are guarded by e.mu.

	addresses []netip.Addr
	// asked is when it was asked last, and asking is set while it is.
	asked  time.Time
	asking bool
	// alive is set if it has answered the last question, and failures counts the questions since. missed counts those
	// after which nothing has come back from its machine, and err is why there was no answer.
	alive            bool
	failures, missed int
	err              error
	// left is when its wrapper has said that it stops; zero if it has answered since.
	left time.Time
	// word is what the node has said of its pods, in this version; nil if that is not known.
	word    *facts.LivePods
	version uint32

	// Only the goroutine that asks uses these. link is the kept connection; nil if there is none. last is the address
	// at which the neighbour was reached.
	link *link
	last netip.Addr
}

// isDue reports whether the neighbour is to be asked. e.mu is held.
func (p *peer) isDue() bool {
	wait := checkInterval
	switch {
	case p.e.needed:
		wait = interval * 3 / 4 // it is looked at once an interval
	case p.failures > 0:
		// One that starts at the same time answers a moment later, one that is away is asked more and more seldom.
		wait = min(interval<<min(p.failures, 10), checkInterval/10)
	}
	return !p.asking && time.Since(p.asked) >= wait
}

// askAll asks the neighbours whose turn it is, but no more than questionsPerSecond.
func (e *Exchange) askAll(ctx context.Context) {
	needed := e.config.Needed()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.needed = needed
	due := make([]*peer, 0, len(e.peers))
	for _, p := range e.peers {
		if !needed {
			p.word, p.version = nil, 0 // when it is needed again it may be old
		}
		if p.isDue() {
			due = append(due, p)
		}
	}
	slices.SortFunc(due, func(a, b *peer) int { return a.asked.Compare(b.asked) })
	for _, p := range due[:min(len(due), questionsPerSecond)] {
		p.asked, p.asking = time.Now(), true
		e.wg.Go(func() { p.ask(ctx) })
	}
}

// ask asks the neighbour once.
func (p *peer) ask(ctx context.Context) {
	err := p.tryAsk(ctx)
	p.e.config.Observer.Asked(err)
	p.e.ignored(err)
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	p.asking, p.err, p.alive = false, err, err == nil
	p.failures++
	switch {
	case err == nil:
		p.failures, p.missed, p.left = 0, 0, time.Time{}
	case isNothing(err):
		p.missed++
	default:
		p.missed = 0
	}
	if err != nil || !p.e.needed || p.e.peers[p.name] != p {
		p.drop()
	}
}

// isNothing reports whether an error means that nothing has come from the other machine. All others are about what it
// has sent, if only that it refuses connections, or about this node.
func isNothing(err error) bool {
	return IsTimeout(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.ENETDOWN)
}

// tryAsk asks the neighbour over the kept connection, or over a new one.
func (p *peer) tryAsk(ctx context.Context) (err error) {
	begun := time.Now()
	until := begun.Add(patience)
	p.e.mu.Lock()
	ask := question{Version: p.version, Needs: p.e.needed}
	if p.link != nil && !p.e.has(p.link.key) {
		p.drop()
	}
	p.e.mu.Unlock()
	if p.link == nil {
		if p.link, err = p.connect(ctx, patience); err != nil {
			return err
		}
	}
	if err := p.link.send(ask, until); err != nil {
		return err
	}
	var answered answer
	if err := p.link.receive(&answered, maxAnswer, until); err != nil || !ask.Needs || answered.Version == ask.Version {
		return err
	}
	return p.take(answered, begun)
}

// take takes what is new of an answer.
func (p *peer) take(answered answer, begun time.Time) error {
	var word *facts.LivePods
	if answered.Version != 0 {
		pods, leftOut, err := decodePods(answered.Pods)
		if err == nil && answered.Age > maxAge {
			err = fmt.Errorf("it is %d ms old", answered.Age)
		}
		if err != nil {
			return ignore(reasonFormat, "the answer of node %s: %w", p.name, err)
		}
		for range leftOut {
			p.e.config.Observer.Ignored(ReasonAddress)
		}
		age := time.Duration(answered.Age) * time.Millisecond //nolint:gosec // a year at most
		word = &facts.LivePods{AsOf: begun.Add(-age), Pods: pods}
	}
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if p.e.needed {
		p.word, p.version = word, answered.Version
	}
	return nil
}

// connect connects to the neighbour, at the address that was reached last, or else at each that it has.
func (p *peer) connect(ctx context.Context, patience time.Duration) (*link, error) {
	e := p.e
	e.mu.Lock()
	keys, between, locals := e.keys, parties{e.cluster, e.config.NodeName, p.name}, e.locals
	addresses := slices.Clone(p.addresses)
	e.mu.Unlock()
	if i := slices.Index(addresses, p.last); i > 0 {
		addresses[0], addresses[i] = addresses[i], addresses[0]
	}
	err := fmt.Errorf("node %s has no address of the families of %v", p.name, locals)
	for _, to := range addresses {
		from := slices.IndexFunc(locals, func(local netip.Addr) bool { return local.Is4() == to.Is4() })
		if from < 0 {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, patience/time.Duration(len(addresses)))
		defer cancel()
		var conn net.Conn
		conn, err = e.config.Network.Dial(attempt, locals[from], netip.AddrPortFrom(to, e.config.Port))
		if err != nil {
			continue
		}
		var l *link
		if l, err = secure(attempt, conn, tls.Client, keys, between); err == nil {
			p.last = to
			return l, nil
		}
		_ = conn.Close()
	}
	return nil, err
}

// leave says that this wrapper stops, also to a neighbour to which no connection is kept, if any may need that.
func (p *peer) leave(wanted bool) {
	if p.link == nil && wanted {
		p.link, _ = p.connect(context.Background(), leavePatience)
	}
	if p.link != nil {
		_ = p.link.send(question{Leaving: true}, time.Now().Add(leavePatience))
	}
	p.drop()
}

// drop closes the kept connection.
func (p *peer) drop() {
	if p.link != nil {
		_ = p.link.Close()
		p.link = nil
	}
}
