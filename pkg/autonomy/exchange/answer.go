package exchange

import (
	"context"
	"crypto/tls"
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
	// turns is how long it takes at most until a node that needs to know others' pods has asked each of them twice.
	turns = 2 * maxMembers / questionsPerSecond * time.Second
	// idle is how long a connection may be without a message: longer than the time between two questions, because a
	// node that cannot connect itself needs the connection.
	idle = checkInterval + turns
	// maxStrangers is the largest number of connections whose other side has not yet proved that it has the key. If
	// another arrives, one of them is dropped at random. maxLinksOf is the largest number of connections with one node
	// that has proved it: one is needed, and another while it replaces a broken one.
	maxStrangers, maxLinksOf = 64, 2
	// questionBurst is how many questions may arrive at once on a connection. The rate limit is twice the rate at which
	// a neighbour asks.
	questionBurst = 10
)

// listen listens at those of this node's addresses at which it does not listen yet: after a boot they may appear one by
// one. It returns an error if it listens at none.
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
			time.Sleep(interval) // for example out of file descriptors
			continue
		}
		e.wg.Go(func() {
			if err := e.admit(conn); err != nil {
				e.ignored(err)
				_ = conn.Close()
			}
		})
	}
}

// ignored counts and logs an error of reading that is an *ignoredError.
func (e *Exchange) ignored(err error) {
	if ignored, ok := errors.AsType[*ignoredError](err); ok {
		e.config.Ignored(ignored.reason)
		klog.Background().V(4).Info("Something was ignored", "err", err)
	}
}

// admit finds out which node has made a connection, and whether it has the key. Until then the connection is one of the
// strangers, and has little time.
func (e *Exchange) admit(conn net.Conn) error {
	remote, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	from := remote.Addr().Unmap()
	e.mu.Lock()
	asker, member := e.byAddress[from]
	for other := range e.strangers { // any of them
		if !member || len(e.strangers) < maxStrangers {
			break
		}
		_ = other.Close()
		delete(e.strangers, other)
	}
	if member {
		e.strangers[conn] = struct{}{}
	}
	e.mu.Unlock()
	if !member {
		go e.unknown.Do(e.config.AddressUnknown)
		return ignore(reasonStranger, "no node of the site has the address %s", from)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := e.secure(ctx, conn, tls.Server, asker)
	e.mu.Lock()
	delete(e.strangers, conn)
	if errors.Is(err, errVersion) {
		e.heard(asker, err)
	}
	e.mu.Unlock()
	if err == nil {
		e.keep(asker, l)
	}
	return err
}

// keep begins to use a connection with a node in both directions.
func (e *Exchange) keep(name string, l *link) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.listeners) == 0 {
		_ = l.NetConn().Close()
		return
	}
	if of := e.links[name]; len(of) == maxLinksOf {
		e.drop(name, of[0])
	}
	e.links[name] = append(e.links[name], l)
	e.wg.Go(func() {
		e.ignored(e.readAll(name, l))
		e.mu.Lock()
		defer e.mu.Unlock()
		e.drop(name, l)
	})
}

// drop ends a connection with a node, unless that was done, without a TLS alert, which could block. e.mu is held.
func (e *Exchange) drop(name string, l *link) {
	if i := slices.Index(e.links[name], l); i >= 0 {
		e.links[name] = slices.Delete(e.links[name], i, i+1)
		close(l.ended)
		_ = l.NetConn().Close()
	}
	if len(e.links[name]) == 0 {
		delete(e.links, name)
	}
}

// dropAll ends all connections with a node. e.mu is held.
func (e *Exchange) dropAll(name string) {
	for _, l := range slices.Clone(e.links[name]) {
		e.drop(name, l)
	}
}

// readAll answers the questions on a connection until it ends, and passes answers to the goroutine that asked.
func (e *Exchange) readAll(name string, l *link) error {
	limit := rate.NewLimiter(rate.Every(interval/2), questionBurst)
	for {
		m, err := l.receive(time.Now().Add(idle))
		if err != nil {
			return err
		}
		if m.Answer != nil {
			select {
			case l.answers <- *m.Answer:
			default:
				return ignore(reasonFormat, "node %s answers what was not asked", name)
			}
		}
		if m.Question == nil {
			continue
		}
		if !limit.Allow() {
			return ignore(reasonFlood, "node %s asks too often", name)
		}
		answered := e.answerQuestion(name, *m.Question)
		if err := l.send(message{Answer: &answered}, time.Now().Add(patience)); err != nil {
			return err
		}
	}
}

func (e *Exchange) answerQuestion(asker string, asked question) (answered answer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if asked.Needs {
		e.wanted = time.Now()
	}
	e.heard(asker, nil)
	if e.own == nil {
		return answer{}
	}
	answered.Version = e.version
	if asked.Needs && asked.Version != e.version {
		answered.Age, answered.Pods = time.Since(e.asOf), e.own
	}
	return answered
}
