package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
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
	name string

	// The fields below are guarded by Exchange.mu.

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

// heard notes that a node has proved that it has the key and is alive. err is nil or errVersion; with that, its report
// is no longer known. e.mu is held.
func (e *Exchange) heard(name string, err error) {
	if p := e.peers[name]; p != nil {
		p.partner, p.err, p.missed, p.failing = true, err, 0, time.Time{}
		if err != nil {
			p.word, p.version = nil, 0
		}
	}
}

// askAll asks the neighbours whose turn it is, but no more than questionsPerSecond.
func (e *Exchange) askAll(ctx context.Context) {
	needed := e.config.Needed()
	e.mu.Lock()
	defer e.mu.Unlock()
	due := make([]*peer, 0, len(e.peers))
	for _, p := range e.peers {
		wait := interval * 3 / 4 // it is checked once an interval
		if !needed {
			p.word, p.version, p.failing = nil, 0, time.Time{} // they may be old when they are needed again
			if wait = checkInterval; p.err != nil {
				wait /= 10 // a neighbour that starts later asks this node itself
			}
		}
		if !p.asking && time.Since(p.asked) >= wait {
			due = append(due, p)
		}
	}
	slices.SortFunc(due, func(a, b *peer) int { return a.asked.Compare(b.asked) })
	for _, p := range due[:min(len(due), questionsPerSecond)] {
		p.asked, p.asking = time.Now(), true
		asked := question{Version: p.version, Needs: needed}
		e.wg.Go(func() { e.ask(ctx, p, asked) })
	}
}

// ask asks a neighbour once.
func (e *Exchange) ask(ctx context.Context, p *peer, asked question) {
	begun := time.Now()
	l, answered, err := e.tryAsk(ctx, p, asked)
	var word *facts.LivePods
	if err == nil && asked.Needs && answered.Version != asked.Version && answered.Version != 0 {
		word = &facts.LivePods{AsOf: begun.Add(-answered.Age)}
		word.Pods, err = e.decodePods(answered.Pods)
	}
	e.config.Asked(err)
	e.ignored(err)
	e.mu.Lock()
	defer e.mu.Unlock()
	p.asking, p.err = false, err
	if err == nil || errors.Is(err, errVersion) {
		e.heard(p.name, err)
		if word != nil { // without another report the last one stands
			p.word, p.version = word, answered.Version
		}
		return
	}
	if p.missed++; !errors.Is(err, errNothing) {
		p.missed = 0
	}
	if p.missed == misses {
		klog.FromContext(ctx).Info("A node of the site is silent", "node", p.name, "err", err)
	}
	if p.failing.IsZero() && asked.Needs {
		p.failing = begun
	}
	e.drop(p.name, l) // if there is one
}

// errNothing means that nothing has arrived from the other machine. All other errors are about this node, or about
// something that the machine has sent, even if it only accepts or refuses connections.
var errNothing = errors.New("nothing arrives")

// unreached adds errNothing to a connection's error that means it.
func unreached(err error) error {
	if utilnet.IsTimeout(err) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.ENETDOWN) {
		return fmt.Errorf("%w: %w", errNothing, err)
	}
	return err
}

// tryAsk asks a neighbour over the newest connection, whichever side made it, or over another one if none is open.
func (e *Exchange) tryAsk(ctx context.Context, p *peer, asked question) (l *link, answered answer, err error) {
	until := time.Now().Add(patience)
	e.mu.Lock()
	if open := e.links[p.name]; len(open) > 0 {
		l = open[len(open)-1]
	}
	e.mu.Unlock()
	if l == nil {
		if l, err = e.connect(ctx, p); err != nil {
			return nil, answer{}, err
		}
		e.keep(p.name, l)
	}
	answered, err = l.ask(asked, until)
	return l, answered, unreached(err)
}

// connect connects to a neighbour, at the first of its addresses that answers.
func (e *Exchange) connect(ctx context.Context, p *peer) (l *link, err error) {
	e.mu.Lock()
	locals, addresses := e.locals, p.addresses
	e.mu.Unlock()
	err = fmt.Errorf("node %s has no address of the families of %v", p.name, locals)
	for _, to := range addresses {
		from := slices.IndexFunc(locals, func(local netip.Addr) bool { return local.Is4() == to.Is4() })
		if from < 0 {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, patience/time.Duration(len(addresses)))
		defer cancel()
		conn, failed := e.config.Dial(attempt, locals[from], netip.AddrPortFrom(to, e.config.Port))
		if failed != nil {
			err = unreached(failed)
			continue
		}
		// From here errors do not mean errNothing, because the machine has accepted the connection.
		if l, err = e.secure(attempt, conn, tls.Client, p.name); err == nil {
			return l, nil
		}
		_ = conn.Close()
	}
	return nil, err
}
