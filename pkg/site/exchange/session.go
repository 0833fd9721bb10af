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
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

const (
	// patience is how long a question may take, with the connection and the answer.
	patience = 2 * time.Second
	// idle is how long a connection may be without a question.
	idle = 2 * maxMembers / questionsPerSecond * time.Second
	// leavePatience is how long the last message on a connection may take.
	leavePatience = 200 * time.Millisecond
	// maxConnections is the most connections that others may have open at once, maxConnectionsOf the most of one
	// address. One is needed, and another while it takes the place of a broken one.
	maxConnections, maxConnectionsOf = maxMembers + 100, 4
	// questionBurst is how many questions may come at once on a connection, on which twice as many are taken as a
	// neighbour asks.
	questionBurst = 10
	// acceptPause is the pause after a connection could not be accepted, for example because there are no files left.
	acceptPause = 100 * time.Millisecond
)

// session is the part of an Exchange that belongs to this node's addresses and a cluster.
type session struct {
	e       *Exchange
	locals  []netip.Addr
	cluster string
	ctx     context.Context //nolint:containedctx // that of all goroutines of the session
	cancel  context.CancelFunc
	wg      sync.WaitGroup

	// Only the goroutine of Run uses these.

	listeners map[netip.Addr]net.Listener
	askers    map[string]*asker

	mu sync.Mutex
	// open has the connections of others and, once the first question has come, their links; of counts them by address.
	// Both are guarded by mu.
	open map[net.Conn]*link
	of   map[netip.Addr]int
}

func newSession(ctx context.Context, e *Exchange, locals []netip.Addr, cluster string) *session {
	s := &session{
		e: e, locals: locals, cluster: cluster, listeners: make(map[netip.Addr]net.Listener),
		askers: make(map[string]*asker), open: make(map[net.Conn]*link), of: make(map[netip.Addr]int),
	}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s
}

// listen listens at those of this node's addresses at which it does not yet: after a boot they may come one by one.
func (s *session) listen() (err error) {
	for _, local := range s.locals {
		if s.listeners[local] != nil {
			continue
		}
		listener, failed := s.e.config.Network.Listen(netip.AddrPortFrom(local, s.e.config.Port))
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("listening on TCP: %w", failed))
			continue
		}
		klog.FromContext(s.ctx).Info("The site exchange listens", "address", listener.Addr().String())
		s.listeners[local] = listener
		s.wg.Go(func() { s.accept(listener) })
	}
	return err
}

// close ends the session.
func (s *session) close() {
	for _, listener := range s.listeners {
		_ = listener.Close()
	}
	s.mu.Lock()
	for conn, l := range s.open {
		if l != nil {
			_ = conn.SetWriteDeadline(time.Now().Add(leavePatience))
			_ = l.write(message{flags: flagLeaving}.encode())
		}
		_ = conn.Close()
	}
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

func (s *session) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			select {
			case <-time.After(acceptPause):
				continue
			case <-s.ctx.Done():
				return
			}
		}
		from, asker, err := s.admit(conn)
		if err != nil {
			s.ignored(err)
			_ = conn.Close()
			continue
		}
		s.wg.Go(func() {
			s.ignored(s.answerAll(conn, asker))
			_ = conn.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.open, conn)
			if s.of[from]--; s.of[from] == 0 {
				delete(s.of, from)
			}
		})
	}
}

// ignored counts what is ignored.
func (s *session) ignored(err error) {
	var ignored *ignoredError
	if errors.As(err, &ignored) {
		s.e.config.Observer.Ignored(ignored.reason)
		klog.FromContext(s.ctx).V(4).Info("Something was ignored", "err", err)
	}
}

// admit finds out who has made a connection, and takes a place for it.
func (s *session) admit(conn net.Conn) (from netip.Addr, asker string, err error) {
	peer, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return from, "", ignore(reasonStranger, "%s is no address", conn.RemoteAddr())
	}
	from = peer.Addr().Unmap()
	asker, member := s.e.directory().byAddress[from]
	if !member {
		s.e.doubtAddresses()
		return from, "", ignore(reasonStranger, "no node of the site has the address %s", from)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil || len(s.open) == maxConnections || s.of[from] == maxConnectionsOf {
		return from, "", ignore(reasonFlood, "node %s has too many connections", asker)
	}
	s.open[conn] = nil
	s.of[from]++
	return from, asker, nil
}

func (e *Exchange) doubtAddresses() {
	e.mu.Lock()
	pause := doubtPause
	if !e.missing {
		pause = checkInterval
	}
	due := e.doubted.IsZero() || time.Since(e.doubted) >= pause
	if due {
		e.doubted = time.Now()
	}
	e.mu.Unlock()
	if due {
		e.config.AddressDoubted()
	}
}

// answerAll answers the questions on a connection until it ends.
func (s *session) answerAll(conn net.Conn, asker string) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	l, encoded, err := welcome(conn, s.e.keys.keys(), parties{s.cluster, asker, s.e.config.NodeName})
	var ignored *ignoredError
	if errors.As(err, &ignored) && ignored.reason == reasonKey {
		s.e.mu.Lock()
		s.e.peer(asker).otherKey = time.Now()
		s.e.mu.Unlock()
	}
	if err != nil {
		return err
	}
	limit := rate.NewLimiter(rate.Every(interval/2), questionBurst)
	for {
		question, err := parseMessage(encoded)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(s.e.keys.keys(), func(key []byte) bool { return bytes.Equal(key, l.key) }) {
			return nil // it was taken out
		}
		if !limit.Allow() {
			return ignore(reasonFlood, "node %s asks too often", asker)
		}
		answer, err := s.e.answer(asker, question)
		if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		s.mu.Lock() // so that close does not write at the same time
		s.open[conn] = l
		err = l.write(answer.encode())
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := conn.SetDeadline(time.Now().Add(idle)); err != nil {
			return err
		}
		if encoded, err = l.read(maxQuestion); err != nil {
			return err
		}
	}
}

// answer returns the answer to a question.
func (e *Exchange) answer(asker string, question message) (message, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if question.flags&flagNeeds != 0 {
		e.wanted = time.Now()
	}
	p := e.peer(asker)
	p.otherKey = time.Time{}
	if question.flags&flagLeaving != 0 {
		p.left = time.Now()
	}
	answer := message{version: version{e.run, e.sequence}}
	if e.own == nil {
		return answer, nil
	}
	answer.flags |= flagPods
	if question.flags&flagNeeds == 0 || question.version == answer.version {
		return answer, nil
	}
	if e.encoded == nil {
		var err error
		if e.encoded, err = encodePods(e.own); err != nil {
			return message{}, err
		}
		if len(e.encoded) > maxAnswer-1024 {
			return message{}, fmt.Errorf("the answer would have %d bytes", len(e.encoded))
		}
	}
	answer.pods = e.encoded
	return answer, nil
}

// asker asks one neighbour.
type asker struct {
	s      *session
	name   string
	cancel context.CancelFunc
	// needed says whether the neighbour's word is needed, wake has it looked at.
	wake chan struct{}

	mu     sync.Mutex
	needed bool // guarded by mu

	// Only the asker's goroutine uses these. link is the kept connection; nil if there is none. last is the address at
	// which the neighbour was reached.
	link *link
	last netip.Addr
}

// attendAll has all members asked, and nobody else.
func (s *session) attendAll(needed bool) {
	members := s.e.directory().asked(s.e.config.NodeName)
	for name, a := range s.askers {
		if _, member := members[name]; !member {
			a.cancel()
			delete(s.askers, name)
		}
	}
	for name := range members {
		a := s.askers[name]
		if a == nil {
			ctx, cancel := context.WithCancel(s.ctx)
			a = &asker{s: s, name: name, cancel: cancel, wake: make(chan struct{}, 1), needed: needed}
			s.askers[name] = a
			s.wg.Go(func() { a.run(ctx) })
		}
		a.mu.Lock()
		changed := a.needed != needed
		a.needed = needed
		a.mu.Unlock()
		if changed {
			select {
			case a.wake <- struct{}{}:
			default:
			}
		}
	}
}

func (a *asker) isNeeded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.needed
}

// run asks the neighbour until ctx is done.
func (a *asker) run(ctx context.Context) {
	defer a.drop()
	failures := 0
	for a.rest(ctx, rand.N(interval)); ctx.Err() == nil; { //nolint:gosec // it spreads questions
		err := a.ask(ctx)
		if ctx.Err() != nil {
			break
		}
		a.s.e.config.Observer.Asked(err)
		a.s.ignored(err)
		wait := a.s.e.pace()
		if !a.isNeeded() {
			a.drop()
			// A neighbour that starts at the same time answers a moment later; one that is away is asked more and more
			// seldom.
			if failures++; err == nil {
				wait, failures = checkInterval, 0
			} else {
				wait = min(wait<<min(failures, 10), checkInterval/10)
			}
		}
		a.rest(ctx, wait*3/4+rand.N(wait/2)) //nolint:gosec // as above
	}
	if a.link != nil {
		_ = a.link.SetWriteDeadline(time.Now().Add(leavePatience))
		_ = a.link.write(message{flags: flagLeaving}.encode())
	}
}

// drop closes the kept connection.
func (a *asker) drop() {
	if a.link != nil {
		_ = a.link.Close()
		a.link = nil
	}
}

// rest waits until the next question is due. If the neighbour says meanwhile that it stops, or if its connection
// breaks, that is not later.
func (a *asker) rest(ctx context.Context, wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	if l := a.link; l != nil {
		stop := context.AfterFunc(ctx, func() { _ = l.SetReadDeadline(time.Now()) })
		defer stop()
		if l.SetReadDeadline(time.Now().Add(wait)) == nil && ctx.Err() == nil {
			said, err := l.read(maxAnswer)
			if err == nil {
				_ = a.take(said, time.Now())
			}
			if !IsTimeout(err) {
				a.drop()
			}
		}
		return
	}
	select {
	case <-timer.C:
	case <-a.wake:
	case <-ctx.Done():
	}
}

// ask asks the neighbour once. A connection that has broken is made again.
func (a *asker) ask(ctx context.Context) error {
	kept := a.link != nil
	err := a.tryAsk(ctx)
	if kept && err != nil && !IsTimeout(err) {
		err = a.tryAsk(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	e := a.s.e
	e.mu.Lock()
	p := e.peer(a.name)
	was := p.alive
	p.err = err
	switch {
	case err == nil:
		p.alive, p.missed, p.left = true, 0, time.Time{}
	case lives(err):
		p.alive, p.missed = false, 0
	case !errors.Is(err, syscall.EADDRNOTAVAIL): // this node's own address is not there
		p.alive = false
		p.missed++
	}
	changed := p.alive != was || p.missed == misses
	e.mu.Unlock()
	if changed {
		e.poke()
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

func (a *asker) tryAsk(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			a.drop()
		}
	}()
	asked := time.Now()
	if a.link != nil && !bytes.Equal(a.link.key, a.s.e.keys.keys()[0]) {
		a.drop()
	}
	if a.link == nil {
		if a.link, err = a.connect(ctx); err != nil {
			return err
		}
	}
	if err := a.link.SetDeadline(asked.Add(patience)); err != nil {
		return err
	}
	e, question := a.s.e, message{}
	if a.isNeeded() {
		question.flags |= flagNeeds
	}
	e.mu.Lock()
	question.version = e.peer(a.name).version
	e.mu.Unlock()
	if err := a.link.write(question.encode()); err != nil {
		return err
	}
	answer, err := a.link.read(maxAnswer)
	if err != nil {
		return err
	}
	return a.take(answer, asked)
}

// take takes what the neighbour has said.
func (a *asker) take(encoded []byte, asked time.Time) error {
	e := a.s.e
	answer, err := parseMessage(encoded)
	if err != nil {
		return err
	}
	if answer.flags&flagLeaving != 0 {
		e.mu.Lock()
		e.peer(a.name).left = time.Now()
		e.mu.Unlock()
		return io.EOF
	}
	if !a.isNeeded() {
		return nil
	}
	possible := e.possibleAddress()
	e.mu.Lock()
	p := e.peer(a.name)
	known := p.version == answer.version
	if answer.flags&flagPods == 0 {
		p.word, p.version = nil, version{}
	}
	e.mu.Unlock()
	if known || answer.flags&flagPods == 0 {
		return nil
	}
	word, leftOut, err := decodePods(answer.pods, asked, possible)
	if err != nil {
		return ignore(reasonFormat, "the answer of node %s: %w", a.name, err)
	}
	for range leftOut {
		e.config.Observer.Ignored(ReasonAddress)
	}
	e.mu.Lock()
	p.word, p.version = word, answer.version
	e.mu.Unlock()
	return nil
}

// connect connects to the neighbour, at the address that was reached last, or else at each that it has.
func (a *asker) connect(ctx context.Context) (*link, error) {
	e := a.s.e
	keys, member := e.keys.keys(), e.directory().byName[a.name]
	type way struct{ from, to netip.Addr }
	var ways []way
	for _, to := range member.Addresses {
		to = to.Unmap()
		i := slices.IndexFunc(a.s.locals, func(l netip.Addr) bool { return l.Is4() == to.Is4() })
		switch {
		case i < 0:
		case to == a.last:
			ways = slices.Insert(ways, 0, way{a.s.locals[i], to})
		default:
			ways = append(ways, way{a.s.locals[i], to})
		}
	}
	err := fmt.Errorf("node %s has no address of the families of %v", a.name, a.s.locals)
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
			if l, err = greet(conn, keys[0], parties{a.s.cluster, e.config.NodeName, a.name}); err == nil {
				a.last = w.to
				return l, nil
			}
		}
		_ = conn.Close()
	}
	return nil, err
}
