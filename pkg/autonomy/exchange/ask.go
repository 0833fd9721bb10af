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

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// patience is how long a question may take, with the connection and the answer: less than two intervals.
const patience = 1900 * time.Millisecond

// peer is another node that is asked.
type peer struct {
	e    *Exchange
	name string

	// The fields below are guarded by e.mu.

	addresses []netip.Addr
	// asked is when it was last asked, and asking is set while an answer is awaited.
	asked  time.Time
	asking bool
	// partner is set once it has taken part, in this process or an earlier one.
	partner bool
	// err is why it has not answered the last question; nil if it has. missed counts the last questions to which its
	// machine sent nothing. failing is when the first question failed while its report was needed; zero if it answers.
	err     error
	missed  int
	failing time.Time
	// word is the node's report on its pods, in this version; nil if it is not known.
	word    *facts.LivePods
	version uint32
}

// heard notes that the neighbour has proved that it has the key and is alive. err is nil or a *versionError; with that,
// the neighbour's report is no longer known. e.mu is held.
func (p *peer) heard(err error) {
	p.partner, p.err, p.missed, p.failing = true, err, 0, time.Time{}
	if err != nil {
		p.word, p.version = nil, 0
	}
}

// isDue reports whether the neighbour is to be asked. e.mu is held.
func (p *peer) isDue() bool {
	wait := checkInterval
	switch {
	case p.e.needed:
		wait = interval * 3 / 4 // it is checked once an interval
	case p.err != nil:
		wait = checkInterval / 10 // a neighbour that starts later asks this node itself
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
			p.word, p.version = nil, 0 // it may be old when it is needed again
			p.failing = time.Time{}
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
	e, begun := p.e, time.Now()
	e.mu.Lock()
	asked := question{Version: p.version, Needs: e.needed}
	e.mu.Unlock()
	used, answered, err := p.tryAsk(ctx, asked, begun.Add(patience))
	var word *facts.LivePods
	if err == nil && asked.Needs && answered.Version != asked.Version && answered.Version != 0 {
		word, err = p.read(answered, begun)
	}
	e.config.Observer.Asked(err)
	e.ignored(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	p.asking, p.err = false, err
	_, otherVersion := errors.AsType[*versionError](err)
	switch {
	case err == nil:
		p.heard(nil)
		if e.needed && word != nil { // without another report the last one stands
			p.word, p.version = word, answered.Version
		}
		return
	case otherVersion:
		p.heard(err)
		return
	case isNothing(err):
		if p.missed++; p.missed == misses {
			klog.FromContext(ctx).Info("A node of the site is silent", "node", p.name, "err", err)
		}
	default:
		p.missed = 0
	}
	if p.failing.IsZero() && e.needed {
		p.failing = begun
	}
	if used != nil {
		used.end()
	}
}

// nothing is an error that means that nothing has arrived from the other machine.
type nothing struct{ error }

func (n nothing) Unwrap() error { return n.error }

// isNothing reports whether an error means that nothing has arrived from the other machine. All other errors are about
// this node, or about something that the machine has sent, even if it only accepts or refuses connections.
func isNothing(err error) bool {
	_, is := errors.AsType[nothing](err)
	return is
}

// unreached wraps a connection's error in nothing if it means that nothing has arrived.
func unreached(err error) error {
	if utilnet.IsTimeout(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.ENETDOWN) {
		return nothing{err}
	}
	return err
}

// tryAsk asks the neighbour over the newest connection, whichever side made it, or over another one if none is open.
func (p *peer) tryAsk(ctx context.Context, asked question, until time.Time) (used *link, answered answer, err error) {
	p.e.mu.Lock()
	l := newest(p.e.links[p.name])
	p.e.mu.Unlock()
	if l == nil {
		if l, err = p.connect(ctx); err != nil {
			return nil, answer{}, err
		}
		p.e.keep(p.name, l)
	}
	answered, err = l.ask(asked, until)
	return l, answered, unreached(err)
}

// read reads the pods of an answer. asked is when the question was sent.
func (p *peer) read(answered answer, asked time.Time) (*facts.LivePods, error) {
	pods, leftOut, err := decodePods(answered.Pods)
	if err != nil {
		return nil, ignore(reasonFormat, "the answer of node %s: %w", p.name, err)
	}
	for range leftOut {
		p.e.config.Observer.Ignored(ReasonAddress)
	}
	return &facts.LivePods{AsOf: asked.Add(-answered.Age), Pods: pods}, nil
}

// connect connects to the neighbour, at the first of its addresses that answers.
func (p *peer) connect(ctx context.Context) (*link, error) {
	e := p.e
	e.mu.Lock()
	locals, addresses := e.locals, p.addresses
	e.mu.Unlock()
	err := fmt.Errorf("node %s has no address of the families of %v", p.name, locals)
	for _, to := range addresses {
		from := slices.IndexFunc(locals, func(local netip.Addr) bool { return local.Is4() == to.Is4() })
		if from < 0 {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, patience/time.Duration(len(addresses)))
		defer cancel()
		var conn net.Conn
		conn, err = e.config.Dial(attempt, locals[from], netip.AddrPortFrom(to, e.config.Port))
		if err != nil {
			err = unreached(err)
			continue
		}
		// From here errors do not mean nothing, because the machine has accepted the connection.
		l, failed := e.secure(attempt, conn, tls.Client, p.name)
		if err = failed; err == nil {
			return l, nil
		}
		_ = conn.Close()
	}
	return nil, err
}
