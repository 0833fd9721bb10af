package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// patience is how long a question may take, with the connection and the answer.
	patience = 2 * time.Second
	// leavePatience is how long it may take to say that this wrapper stops.
	leavePatience = 200 * time.Millisecond
)

// peer is another node that is asked.
type peer struct {
	e    *Exchange
	name string
	// wake has it looked at whether the neighbour's word is needed.
	wake chan struct{}

	// The fields below are guarded by e.mu.

	addresses []netip.Addr
	// cancel ends the peer's goroutine; nil if it was not started.
	cancel context.CancelFunc
	// alive is set if it has answered the last question, missed counts the questions since that nothing has come back
	// from its machine, and err is why there was no answer.
	alive  bool
	missed int
	err    error
	// left is when its wrapper has said that it stops; zero if it has answered since. otherKey is when it has asked
	// with another key.
	left, otherKey time.Time
	// word is what the node has said of its pods, in this version; nil if that is not known.
	word    *facts.LivePods
	version uint64

	// Only the peer's goroutine uses these. link is the kept connection; nil if there is none. last is the address at
	// which the neighbour was reached.
	link *link
	last netip.Addr
}

// attendAll has all peers asked.
func (e *Exchange) attendAll(needed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := needed != e.needed
	e.needed = needed
	for _, p := range e.peers {
		if !needed {
			p.word, p.version = nil, 0 // when it is needed again it may be old
		}
		if p.cancel == nil {
			var ctx context.Context
			ctx, p.cancel = context.WithCancel(e.ctx)
			e.wg.Go(func() { p.run(ctx) })
		}
		if changed {
			poke(p.wake)
		}
	}
}

// poke has what waits for a channel look at what has changed.
func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// run asks the neighbour until ctx is done, and then says that this wrapper stops.
func (p *peer) run(ctx context.Context) {
	e, failures := p.e, 0
	for wait := rand.N(interval); ; { //nolint:gosec // it spreads questions
		select {
		case <-time.After(wait):
		case <-p.wake:
		case <-ctx.Done():
			p.leave(context.WithoutCancel(ctx))
			return
		}
		asked := time.Now()
		err := p.ask(ctx)
		if ctx.Err() != nil {
			wait = 0
			continue
		}
		e.config.Observer.Asked(err)
		e.ignored(err)
		e.mu.Lock()
		needed := e.needed
		wait = e.pace()
		e.mu.Unlock()
		if !needed {
			p.drop()
			// A neighbour that starts at the same time answers a moment later; one that is away is asked more and more
			// seldom.
			if failures++; err == nil {
				wait, failures = checkInterval, 0
			} else {
				wait = min(wait<<min(failures, 10), checkInterval/10)
			}
		}
		wait = wait*3/4 + rand.N(wait/2) - time.Since(asked) //nolint:gosec // as above
	}
}

// leave says that this wrapper stops, also to a neighbour to which no connection is kept, if any may need that.
func (p *peer) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	if p.link == nil && p.e.Wanted() {
		p.link, _ = p.connect(ctx)
	}
	if p.link != nil {
		_ = p.link.SetWriteDeadline(time.Now().Add(leavePatience))
		_ = p.link.write(message{flags: flagLeaving}.encode())
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

// ask asks the neighbour once. A connection that has broken is made again.
func (p *peer) ask(ctx context.Context) error {
	kept := p.link != nil
	err := p.tryAsk(ctx)
	if kept && err != nil && !IsTimeout(err) {
		err = p.tryAsk(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	was := p.alive
	p.err, p.alive = err, err == nil
	switch {
	case err == nil:
		p.missed, p.left = 0, time.Time{}
	case lives(err):
		p.missed = 0
	case !errors.Is(err, syscall.EADDRNOTAVAIL): // this node's own address is not there
		p.missed++
	}
	if p.alive != was || p.missed == misses {
		poke(p.e.wake)
	}
	return err
}

// lives reports whether an error of a connection was sent by the other machine.
func lives(err error) bool {
	var ignored *ignoredError
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, io.ErrClosedPipe) || errors.As(err, &ignored)
}

func (p *peer) tryAsk(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			p.drop()
		}
	}()
	e, question, asked := p.e, message{}, time.Now()
	e.mu.Lock()
	if key := e.keys[0]; p.link != nil && !bytes.Equal(p.link.key, key) {
		p.drop()
	}
	question.version = p.version
	if e.needed {
		question.flags |= flagNeeds
	}
	e.mu.Unlock()
	if p.link == nil {
		if p.link, err = p.connect(ctx); err != nil {
			return err
		}
	}
	if err := p.link.SetDeadline(asked.Add(patience)); err != nil {
		return err
	}
	if err := p.link.write(question.encode()); err != nil {
		return err
	}
	encoded, err := p.link.read(maxAnswer)
	if err != nil {
		return err
	}
	answer, err := parseMessage(encoded)
	if err != nil || question.flags&flagNeeds == 0 {
		return err
	}
	return p.take(answer, question.version, asked)
}

// take takes what the neighbour has answered when it was asked about a version.
func (p *peer) take(answer message, version uint64, asked time.Time) error {
	var word *facts.LivePods
	switch {
	case answer.flags&flagPods == 0:
		answer.version = 0
	case answer.version == version:
		return nil
	case answer.age > maxAge:
		return ignore(reasonFormat, "the answer of node %s is %d ms old", p.name, answer.age)
	default:
		pods, leftOut, err := decodePods(answer.pods)
		if err != nil {
			return ignore(reasonFormat, "the answer of node %s: %w", p.name, err)
		}
		for range leftOut {
			p.e.config.Observer.Ignored(ReasonAddress)
		}
		age := time.Duration(answer.age) * time.Millisecond
		word = &facts.LivePods{AsOf: asked.Add(-age), Pods: pods}
	}
	p.e.mu.Lock()
	defer p.e.mu.Unlock()
	if p.e.needed {
		p.word, p.version = word, answer.version
	}
	return nil
}

// connect connects to the neighbour, at the address that was reached last, or else at each that it has.
func (p *peer) connect(ctx context.Context) (*link, error) {
	e := p.e
	e.mu.Lock()
	key, locals, between := e.keys[0], e.locals, parties{e.cluster, e.config.NodeName, p.name}
	type way struct{ from, to netip.Addr }
	var ways []way
	for _, to := range p.addresses {
		i := slices.IndexFunc(locals, func(l netip.Addr) bool { return l.Is4() == to.Is4() })
		switch {
		case i < 0:
		case to == p.last:
			ways = slices.Insert(ways, 0, way{locals[i], to})
		default:
			ways = append(ways, way{locals[i], to})
		}
	}
	e.mu.Unlock()
	err := fmt.Errorf("node %s has no address of the families of %v", p.name, locals)
	for _, w := range ways {
		var conn net.Conn
		attempt, cancel := context.WithTimeout(ctx, patience/time.Duration(len(ways)))
		conn, err = e.config.Network.Dial(attempt, w.from, netip.AddrPortFrom(w.to, e.config.Port))
		cancel()
		if err != nil {
			continue
		}
		if err = conn.SetDeadline(time.Now().Add(patience)); err == nil {
			var l *link
			if l, err = greet(conn, key, between); err == nil {
				p.last = w.to
				return l, nil
			}
		}
		_ = conn.Close()
	}
	return nil, err
}
