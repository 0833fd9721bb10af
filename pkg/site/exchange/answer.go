package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

const (
	// idle is how long a connection may be without a question.
	idle = 2 * maxMembers / questionsPerSecond * time.Second
	// maxConnections is the most connections that others may have open at once, maxConnectionsOf the most of one
	// address. One is needed, and another while it takes the place of a broken one.
	maxConnections, maxConnectionsOf = maxMembers + 100, 4
	// questionBurst is how many questions may come at once on a connection, on which twice as many are taken as a
	// neighbour asks.
	questionBurst = 10
	// acceptPause is the pause after a connection could not be accepted, for example because there are no files left.
	acceptPause = 100 * time.Millisecond
)

// listen listens at those of this node's addresses at which it does not yet: after a boot they may come one by one. It
// returns why nothing is exchanged.
func (e *Exchange) listen(ctx context.Context) (err error) {
	if !e.listened.IsZero() && time.Since(e.listened) < keyInterval {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.err
	}
	e.listened = time.Now()
	if e.listeners == nil {
		e.listeners = make(map[netip.Addr]net.Listener)
		e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	}
	for _, local := range e.locals {
		if e.listeners[local] != nil {
			continue
		}
		listener, failed := e.config.Network.Listen(netip.AddrPortFrom(local, e.config.Port))
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("listening on TCP: %w", failed))
			continue
		}
		klog.FromContext(ctx).Info("The site exchange listens", "address", listener.Addr().String())
		e.listeners[local] = listener
		e.wg.Go(func() { e.accept(listener) })
	}
	if len(e.listeners) > 0 {
		return nil
	}
	klog.FromContext(ctx).Error(err, "The site exchange cannot listen", "addresses", e.locals)
	e.close()
	e.listened = time.Now()
	return err
}

// close ends the exchange. The neighbours hear that this wrapper stops.
func (e *Exchange) close() {
	if e.listeners == nil {
		return
	}
	for _, listener := range e.listeners {
		_ = listener.Close()
	}
	e.cancel()
	e.mu.Lock()
	for conn := range e.open {
		_ = conn.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
	e.mu.Lock()
	for _, p := range e.peers {
		p.cancel = nil
	}
	e.mu.Unlock()
	e.listeners, e.listened = nil, time.Time{}
}

func (e *Exchange) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			time.Sleep(acceptPause)
			continue
		}
		from, asker, err := e.admit(conn)
		if err != nil {
			e.ignored(err)
			_ = conn.Close()
			continue
		}
		e.wg.Go(func() {
			e.ignored(e.answerAll(conn, asker))
			_ = conn.Close()
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.open, conn)
			if e.of[from]--; e.of[from] == 0 {
				delete(e.of, from)
			}
		})
	}
}

// ignored counts what is ignored.
func (e *Exchange) ignored(err error) {
	var ignored *ignoredError
	if errors.As(err, &ignored) {
		e.config.Observer.Ignored(ignored.reason)
		klog.FromContext(e.ctx).V(4).Info("Something was ignored", "err", err)
	}
}

// admit finds out who has made a connection, and takes a place for it.
func (e *Exchange) admit(conn net.Conn) (from netip.Addr, asker string, err error) {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return from, "", ignore(reasonStranger, "%s is no address", conn.RemoteAddr())
	}
	from = remote.Addr().Unmap()
	e.mu.Lock()
	defer e.mu.Unlock()
	asker, member := e.byAddress[from]
	switch {
	case !member:
		go e.doubt.Do(e.config.AddressDoubted)
		return from, "", ignore(reasonStranger, "no node of the site has the address %s", from)
	case e.ctx.Err() != nil || len(e.open) == maxConnections || e.of[from] == maxConnectionsOf:
		return from, "", ignore(reasonFlood, "node %s has too many connections", asker)
	}
	e.open[conn] = struct{}{}
	e.of[from]++
	return from, asker, nil
}

// answerAll answers the questions on a connection until it ends.
func (e *Exchange) answerAll(conn net.Conn, asker string) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	e.mu.Lock()
	keys, between := e.keys, parties{e.cluster, asker, e.config.NodeName}
	e.mu.Unlock()
	l, encoded, err := welcome(conn, keys, between)
	var ignored *ignoredError
	if errors.As(err, &ignored) && ignored.reason == reasonKey {
		e.mu.Lock()
		if p := e.peers[asker]; p != nil {
			p.otherKey = time.Now()
		}
		e.mu.Unlock()
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
		if !limit.Allow() {
			return ignore(reasonFlood, "node %s asks too often", asker)
		}
		answer, valid := e.answer(asker, question, l.key)
		if !valid {
			return nil // the key was taken out
		}
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		if err := l.write(answer.encode()); err != nil {
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

// answer returns the answer to a question. It is not valid if the question's key is none any more.
func (e *Exchange) answer(asker string, question message, key []byte) (answer message, valid bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.ContainsFunc(e.keys, func(k []byte) bool { return bytes.Equal(k, key) }) {
		return message{}, false
	}
	if question.flags&flagNeeds != 0 {
		e.wanted = time.Now()
	}
	if p := e.peers[asker]; p != nil {
		p.otherKey = time.Time{}
		if question.flags&flagLeaving != 0 {
			p.left = time.Now()
		}
	}
	answer.version = e.version
	if e.asOf.IsZero() {
		return answer, true
	}
	answer.flags |= flagPods
	if question.flags&flagNeeds != 0 && question.version != answer.version {
		answer.age = uint64(max(time.Since(e.asOf), 0).Milliseconds()) //nolint:gosec // not negative
		answer.pods = e.own
	}
	return answer, true
}
