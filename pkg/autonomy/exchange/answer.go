package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
)

// listen listens at those of this node's addresses at which it does not yet: after a boot they may come one by one. It
// returns why nothing is exchanged.
func (e *Exchange) listen(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var failed error
	for _, local := range e.locals {
		if e.listeners[local] != nil {
			continue
		}
		listener, err := e.config.Listen(netip.AddrPortFrom(local, e.config.Port))
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("listening on TCP: %w", err))
			continue
		}
		klog.FromContext(ctx).Info("The site exchange listens", "address", listener.Addr().String())
		e.listeners[local] = listener
		e.wg.Go(func() { e.accept(listener) })
	}
	if len(e.listeners) > 0 {
		return nil
	}
	return failed
}

func (e *Exchange) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			time.Sleep(interval) // for example because there are no files left
			continue
		}
		e.wg.Go(func() {
			defer conn.Close()
			e.ignored(e.answerAll(conn))
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.open, conn)
		})
	}
}

// ignored counts what is ignored.
func (e *Exchange) ignored(err error) {
	if ignored, ok := errors.AsType[*ignoredError](err); ok {
		e.config.Observer.Ignored(ignored.reason)
		klog.Background().V(4).Info("Something was ignored", "err", err)
	}
}

// admit finds out which node has made a connection, and takes a place for it.
func (e *Exchange) admit(conn net.Conn) (asker string, err error) {
	remote, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	from := remote.Addr().Unmap()
	e.mu.Lock()
	defer e.mu.Unlock()
	asker, member := e.byAddress[from]
	if err != nil || !member {
		go e.unknown.Do(e.config.AddressUnknown)
		return "", ignore(reasonStranger, "no node of the site has the address %s", from)
	}
	same := 0
	for _, other := range e.open {
		if other == from {
			same++
		}
	}
	if len(e.listeners) == 0 || len(e.open) == maxConnections || same == maxConnectionsOf {
		return "", ignore(reasonFlood, "node %s has too many connections", asker)
	}
	e.open[conn] = from
	return asker, nil
}

// answerAll answers the questions on a connection until it ends.
func (e *Exchange) answerAll(conn net.Conn) error {
	asker, err := e.admit(conn)
	if err != nil {
		return err
	}
	until := time.Now().Add(patience)
	ctx, cancel := context.WithDeadline(context.Background(), until)
	defer cancel()
	l, err := e.secure(ctx, conn, tls.Server, asker)
	if err != nil {
		return err
	}
	limit := rate.NewLimiter(rate.Every(interval/2), questionBurst)
	for ; ; until = time.Now().Add(idle) {
		var asked question
		if err := l.receive(&asked, maxQuestion, until); err != nil {
			return err
		}
		if !limit.Allow() {
			return ignore(reasonFlood, "node %s asks too often", asker)
		}
		if err := l.send(e.answer(asker, asked), time.Now().Add(patience)); err != nil {
			return err
		}
	}
}

func (e *Exchange) answer(asker string, asked question) (answered answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if asked.Needs {
		e.wanted = time.Now()
	}
	if p := e.peers[asker]; p != nil && asked.Leaving {
		p.left = time.Now()
	}
	if e.own == nil {
		return answer{}
	}
	answered.Version = e.version
	if asked.Needs && asked.Version != e.version {
		answered.Age, answered.Pods = time.Since(e.asOf), e.own
	}
	return answered
}
