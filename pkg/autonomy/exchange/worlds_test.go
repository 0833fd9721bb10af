package exchange

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var (
	worldsSeed = flag.Uint64("worlds.seed", 0, "plays this world only")
	worldsRuns = flag.Int("worlds.runs", 5, "how many worlds are played")
	worldsWork = flag.Int("worlds.work", 10000, "how long each of them is: seconds times pairs of nodes")
)

// TestWorlds plays random sites of 2 to 100 nodes with real Exchanges. Machines lose their power or are shut down,
// wrappers hang, end, lose their snapshot or come from another version, cables lose packets in one direction or both,
// firewalls drop or refuse connections, keys differ, and programs without the key open connections. What each wrapper
// says of the others is judged by what the world knows of their machines, processes and cables.
func TestWorlds(t *testing.T) {
	for i := range *worldsRuns {
		seed := uint64(i + 1)
		if *worldsSeed != 0 {
			seed = *worldsSeed
		}
		count := []int{2, 3, 4, 2, 7, 3, 12, 2, 30, 5}[seed%10]
		if seed%50 == 49 {
			count = 100
		}
		t.Run(fmt.Sprintf("%d of %d nodes", seed, count), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { playWorld(t, seed, count) })
		})
		if *worldsSeed != 0 {
			return
		}
	}
}

// process is what a wrapper's process does at the moment.
type process int

const (
	runs process = iota
	hangs
	ended
)

// firewall is what a machine does with connections that another one opens to it.
type firewall int

const (
	accepts firewall = iota
	refuses
	drops
)

// machine is a machine of a site, and what is true of it.
type machine struct {
	*node

	w       *siteWorld
	on      bool
	process process
	key     byte
	// changed is when anything of these has last changed, and needs since when it is without its upstream; zero while
	// it has it, since followed. shared is when it was last given other pods, and pods are these.
	changed, needs, followed, shared time.Time
	pods                             string

	mu sync.Mutex
	// thaw is closed when the process does not hang any more; nil while it does not. later is what the process has
	// done meanwhile, and the others notice then.
	thaw  chan struct{}
	later []func()
}

// view is what is true between two machines, as the first sees the second.
type view struct {
	// lost says that packets of the second do not arrive at the first, and firewall is that of the second.
	lost     bool
	firewall firewall
	changed  time.Time
	// state is what the first has to find, since then, and before that it was former.
	state, former finding
	since         time.Time
	// met says that the first knows of the second, and perhaps that it may.
	met, perhaps bool
}

// finding is what one wrapper has to find of another.
type finding int

const (
	alive finding = iota
	suspected
	silent
	// uncertain is a node of which the other cannot be sure.
	uncertain
)

type siteWorld struct {
	*testing.T

	r        *rand.Rand
	lan      *lan
	machines []*machine
	pairs    map[[2]int]*view
	events   map[int][]func()
	second   int
	ctx      context.Context
	wg       sync.WaitGroup
}

func playWorld(t *testing.T, seed uint64, count int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	w := &siteWorld{
		T: t, r: rand.New(rand.NewPCG(seed, 2)), lan: newLAN(), pairs: map[[2]int]*view{}, events: map[int][]func(){},
		ctx: ctx,
	}
	w.lan.cut = func(from, to netip.Addr) bool { // Dial and Write hold the lock
		a, b := w.at(from), w.at(to)
		return !a.on || !b.on || w.pairs[[2]int{b.index(), a.index()}].lost
	}
	for _, n := range newSite(t, w.lan, count) {
		m := &machine{node: n, w: w, on: true, key: 1, changed: time.Now()}
		n.listen, n.dial = m.listenGated, m.dialGated
		w.machines = append(w.machines, m)
	}
	for i := range w.machines {
		for j := range w.machines {
			w.pairs[[2]int{i, j}] = &view{changed: time.Now(), since: time.Now()}
		}
	}
	for _, m := range w.machines {
		m.start()
		m.share()
		if w.r.IntN(4) > 0 {
			m.setAway(true)
		}
	}
	length := min(*worldsWork/(count*(count-1)), 6*3600)
	w.trouble()
	for w.second = range max(length, 60) {
		if t.Failed() {
			break
		}
		for _, do := range w.events[w.second] {
			do()
		}
		delete(w.events, w.second)
		time.Sleep(time.Second)
		w.judge()
	}
	for _, m := range w.machines {
		m.unhang()
	}
	stop()
	w.wg.Wait()
	for _, m := range w.machines {
		w.wg.Go(m.stop)
	}
	w.wg.Wait()
}

func (w *siteWorld) at(address netip.Addr) *machine {
	a := address.As4()
	return w.machines[int(a[2])*200+int(a[3])-1]
}

func (m *machine) index() int { return slices.Index(m.w.machines, m) }

func (w *siteWorld) between(low, high int) int { return low + w.r.IntN(high-low+1) }

// in has something done some seconds later.
func (w *siteWorld) in(seconds int, do func()) {
	w.events[w.second+max(1, seconds)] = append(w.events[w.second+max(1, seconds)], do)
}

// trouble keeps the world in trouble, which comes in bunches.
func (w *siteWorld) trouble() {
	next := w.between(1, 20)
	if w.r.IntN(4) == 0 {
		next = w.between(30, 120)
	}
	w.in(next, w.trouble)
	m, o := w.machines[w.r.IntN(len(w.machines))], w.machines[w.r.IntN(len(w.machines))]
	lasts := w.between(1, 15)
	if w.r.IntN(2) == 0 {
		lasts = w.between(15, 120)
	}
	switch w.r.IntN(16) {
	case 0:
		m.powerCut(lasts)
	case 1: // it is shut down in an orderly way: its wrapper ends first
		m.end()
		w.in(w.between(1, 5), func() { m.powerCut(lasts) })
	case 2: // of the site
		for _, m := range w.machines {
			m.powerCut(w.between(1, 5) + w.r.IntN(2)*lasts)
		}
	case 3, 4:
		m.hang(lasts)
	case 5, 6: // it is killed, or updated
		m.end()
		if m.protocol = 0; w.r.IntN(3) == 0 {
			m.protocol = w.between(protocol-1, protocol+1)
		}
		lost := w.r.IntN(4) == 0
		w.in(lasts, func() { m.begin(lost) })
	case 7, 8, 9: // a cable, in one direction or both
		w.lose(m, o, lasts)
		if w.r.IntN(2) == 0 {
			w.lose(o, m, lasts)
		}
	case 10: // the site splits
		half := 1 + w.r.IntN(len(w.machines))
		for _, a := range w.machines[:half] {
			for _, b := range w.machines[half:] {
				w.lose(a, b, lasts)
				w.lose(b, a, lasts)
			}
		}
	case 11, 12:
		w.protect(m, o, firewall(w.between(int(refuses), int(drops))), lasts)
	case 13: // a person makes a mistake
		m.setKey(2)
		w.in(lasts, func() { m.setKey(1) })
	case 14:
		m.setAway(m.needs.IsZero())
		w.in(lasts, func() { m.setAway(true) })
	case 15:
		m.share()
		w.intrude(m, o, lasts)
	}
}

// change notes that something of a machine has changed.
func (m *machine) change() { m.changed = time.Now() }

func (m *machine) setAway(away bool) {
	if away != m.needs.IsZero() {
		return
	}
	if m.away.Store(away); away {
		m.needs = time.Now()
	} else {
		m.needs, m.followed = time.Time{}, time.Now()
	}
}

// share gives the wrapper another pod, which is not ready in any number of Services although it is in others.
func (m *machine) share() {
	if m.on && m.process == runs {
		m.pods, m.shared = fmt.Sprintf("p=10.0.%d.%d", m.w.between(0, 255), m.w.between(1, 250)), time.Now()
		for i := range m.w.r.IntN(3) * m.w.r.IntN(20) {
			m.pods += fmt.Sprintf("%cservice-%02d", "/,"[min(i, 1)], i)
		}
		m.runs(m.pods)
	}
}

func (m *machine) setKey(key byte) {
	m.key = key
	m.keys(testKey(key))
	m.change()
}

func (m *machine) powerCut(lasts int) {
	if !m.on {
		return
	}
	m.setOn(false)
	m.w.lan.crash(m.address)
	m.change()
	m.end()
	m.w.in(lasts, func() {
		m.setOn(true)
		m.w.lan.setCut(m.w.lan.cut)
		m.change()
		m.w.in(m.w.between(1, 10), func() { m.begin(false) })
	})
}

func (m *machine) setOn(on bool) {
	m.w.lan.mu.Lock()
	defer m.w.lan.mu.Unlock()
	m.on = on
}

// end ends the wrapper. The kernel closes its connections.
func (m *machine) end() {
	if m.process == ended {
		return
	}
	m.unhang()
	if m.w.r.IntN(2) == 0 {
		synctest.Wait() // it does what it was about to do
	}
	m.process = ended
	m.change()
	m.stop()
}

// begin starts the wrapper again, with its snapshot or without.
func (m *machine) begin(lost bool) {
	if m.process != ended || !m.on {
		return
	}
	if lost {
		m.node.mu.Lock()
		m.partners = nil
		m.node.mu.Unlock()
		for j := range m.w.machines {
			p := m.w.pairs[[2]int{m.index(), j}]
			p.met, p.perhaps = false, false
		}
	}
	m.process = runs
	m.change()
	m.start()
	m.share()
}

// hang stops the wrapper's process for a while (SIGSTOP, or a disk that does not answer).
func (m *machine) hang(lasts int) {
	if m.process != runs || !m.on {
		return
	}
	m.process = hangs
	m.change()
	m.mu.Lock()
	m.thaw = make(chan struct{})
	m.mu.Unlock()
	thaw := m.thaw
	m.w.in(lasts, func() {
		if m.thaw == thaw {
			m.unhang()
		}
	})
}

func (m *machine) unhang() {
	if m.process != hangs {
		return
	}
	m.process = runs
	m.change()
	m.mu.Lock()
	later := m.later
	close(m.thaw)
	m.thaw, m.later = nil, nil
	m.mu.Unlock()
	for _, do := range later {
		do()
	}
}

// wait waits while the process hangs, or until done is closed.
func (m *machine) wait(done <-chan struct{}) {
	m.mu.Lock()
	thaw := m.thaw
	m.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-done:
		}
	}
}

// hasLater reports whether the process hangs, so that the others notice later what it does.
func (m *machine) hasLater(do func()) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.thaw != nil {
		m.later = append(m.later, do)
	}
	return m.thaw != nil
}

// lose has packets from one machine not arrive at another.
func (w *siteWorld) lose(from, to *machine, lasts int) {
	set := func(lost bool) func() {
		return func() {
			w.lan.mu.Lock()
			w.pairs[[2]int{to.index(), from.index()}].lost = lost
			w.lan.mu.Unlock()
			w.pairs[[2]int{to.index(), from.index()}].changed = time.Now()
			w.pairs[[2]int{from.index(), to.index()}].changed = time.Now()
			w.lan.setCut(w.lan.cut) // what was lost is sent again
		}
	}
	if from != to {
		set(true)()
		w.in(lasts, set(false))
	}
}

// protect has a machine refuse or drop the connections of another one. Those that are open stay.
func (w *siteWorld) protect(of, against *machine, how firewall, lasts int) {
	set := func(how firewall) func() {
		return func() {
			w.lan.mu.Lock()
			w.pairs[[2]int{against.index(), of.index()}].firewall = how
			w.lan.mu.Unlock()
			w.pairs[[2]int{against.index(), of.index()}].changed = time.Now()
			w.pairs[[2]int{of.index(), against.index()}].changed = time.Now()
		}
	}
	if of != against {
		set(how)()
		w.in(lasts, set(accepts))
	}
}

// intrude has programs without the key, on one machine, open connections to another one's wrapper.
func (w *siteWorld) intrude(from, to *machine, lasts int) {
	if from == to {
		return
	}
	ctx, stop := context.WithTimeout(w.ctx, time.Duration(lasts)*time.Second)
	says := []string{"", "GET / HTTP/1.1\r\n\r\n", strings.Repeat("\x16\x03\x01", 100)}[w.r.IntN(3)]
	for range []int{5, 100}[w.r.IntN(2)] {
		pause := time.Duration(w.between(300, 700)) * time.Millisecond
		w.wg.Go(func() {
			for ctx.Err() == nil {
				attempt, cancel := context.WithTimeout(ctx, time.Second)
				conn, err := w.lan.Dial(attempt, from.address, netip.AddrPortFrom(to.address, testPort))
				cancel()
				if err == nil {
					_, _ = io.WriteString(conn, says)
					_ = conn.SetReadDeadline(time.Now().Add(3 * time.Second))
					_, _ = io.Copy(io.Discard, conn) // until the other side has had enough
					_ = conn.Close()
				}
				select {
				case <-ctx.Done():
				case <-time.After(pause):
				}
			}
		})
	}
	w.in(lasts, stop)
	w.in(w.between(1, 5), func() { // the neighbour itself needs another connection
		from.end()
		w.in(w.between(1, 5), func() { from.begin(false) })
	})
}

// listenGated and dialGated are the network of a machine's process.
func (m *machine) listenGated(local netip.AddrPort) (net.Listener, error) {
	listener, err := m.w.lan.Listen(local)
	if err != nil {
		return nil, err
	}
	return gatedListener{listener, m}, nil
}

func (m *machine) dialGated(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	m.wait(ctx.Done())
	m.w.lan.mu.Lock()
	other := m.w.at(to.Addr())
	p := m.w.pairs[[2]int{m.index(), other.index()}]
	how, on := p.firewall, other.on
	m.w.lan.mu.Unlock()
	_, reached := m.w.lan.to(from, to)
	switch {
	case !on && to.Addr().As4()[3]%2 == 0: // nobody answers to ARP
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EHOSTUNREACH}
	case how == drops:
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	case how == refuses && reached:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	conn, err := m.w.lan.Dial(ctx, from, to)
	if err != nil {
		return nil, err
	}
	return &gatedConn{Conn: conn, m: m, closed: make(chan struct{})}, nil
}

type gatedListener struct {
	net.Listener
	m *machine
}

func (g gatedListener) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	g.m.wait(nil)
	return &gatedConn{Conn: conn, m: g.m, closed: make(chan struct{})}, nil
}

// gatedConn is a connection of a process that may hang.
type gatedConn struct {
	net.Conn
	m      *machine
	closed chan struct{}
	once   sync.Once
}

func (g *gatedConn) Read(to []byte) (int, error) {
	n, err := g.Conn.Read(to)
	g.m.wait(g.closed)
	return n, err
}

func (g *gatedConn) Write(p []byte) (int, error) {
	p = slices.Clone(p)
	if g.m.hasLater(func() { _, _ = g.Conn.Write(p) }) {
		return len(p), nil
	}
	return g.Conn.Write(p)
}

func (g *gatedConn) Close() error {
	g.once.Do(func() {
		close(g.closed)
		if !g.m.hasLater(func() { _ = g.Conn.Close() }) {
			_ = g.Conn.Close()
		}
	})
	return nil
}

// of returns what the first of two wrappers has to find of the second.
func (w *siteWorld) of(viewer, other *machine) finding {
	there, back := w.pairs[[2]int{viewer.index(), other.index()}], w.pairs[[2]int{other.index(), viewer.index()}]
	switch {
	case !other.on || there.lost || back.lost:
		return silent
	case other.process == runs && viewer.key == other.key && there.firewall == accepts:
		return alive
	case other.process == runs && viewer.key == other.key: // only the other one can open a connection
		if back.firewall == accepts && !other.needs.IsZero() && viewer.protocolOf() == other.protocolOf() {
			return alive
		}
		return uncertain
	case there.firewall == drops:
		return silent
	default:
		return suspected
	}
}

func (m *machine) protocolOf() int { return cmp.Or(m.protocol, protocol) }

// judge judges what each wrapper says of the others.
func (w *siteWorld) judge() {
	round := time.Duration(len(w.machines)/questionsPerSecond) * time.Second
	now := time.Now()
	for i, viewer := range w.machines {
		if !viewer.on || viewer.process != runs {
			for j := range w.machines {
				w.pairs[[2]int{i, j}].state = uncertain
			}
			continue
		}
		viewer.node.mu.Lock()
		isSilent, isSuspected := maps.Clone(viewer.silent), maps.Clone(viewer.suspected)
		viewer.node.mu.Unlock()
		words := map[string]string{}
		for name := range viewer.Words() {
			words[name] = viewer.hears(name)
		}
		for j, other := range w.machines {
			if i == j {
				continue
			}
			p := w.pairs[[2]int{i, j}]
			if is := w.of(viewer, other); is != p.state {
				p.former, p.state = p.state, is
				if now.Sub(p.since)-round <= 11*time.Second { // it may not have been found out in the last second
					p.former = uncertain
				}
				p.since = now
			}
			since := p.since
			for _, at := range []time.Time{viewer.changed, viewer.needs, other.changed} {
				if at.After(since) {
					since, p.former = at, uncertain
				}
			}
			lasts := now.Sub(since) - round
			_, hidden := isSilent[other.name]
			_, doubted := isSuspected[other.name]
			wrong := ""
			switch {
			case viewer.needs.IsZero():
				if (hidden || doubted) && now.Sub(viewer.followed) > 2*time.Second {
					wrong = "is silent or suspected although the upstream is there"
				}
			case !p.met && !p.perhaps && (hidden || doubted):
				wrong = "is silent or suspected, and has never taken part"
			case hidden && doubted:
				wrong = "is both silent and suspected"
			case p.state == alive && lasts > 10*time.Second && (hidden || doubted):
				wrong = fmt.Sprintf("runs and can be reached, and is silent: %v, suspected: %v", hidden, doubted)
			case p.state == alive && lasts > 10*time.Second && now.Sub(other.shared) > 10*time.Second &&
				now.Sub(other.changed) > 10*time.Second && viewer.protocolOf() == other.protocolOf() &&
				words[other.name] != other.pods:
				wrong = fmt.Sprintf("runs %s, and is believed to run %s", other.pods, words[other.name])
			case p.state == suspected && lasts > 15*time.Second && p.met && !doubted:
				wrong = "does not answer although its machine does, and is not suspected"
			case p.state == suspected && lasts > 10*time.Second && hidden:
				wrong = "is silent although its machine answers"
			case p.state == suspected && p.former == alive && now.Sub(since) < 9*time.Second && (hidden || doubted):
				wrong = "is silent or suspected after less than 10 s"
			case p.state == silent && lasts > 12*time.Second && p.met && !hidden:
				wrong = "is away, and not silent"
			case p.state == silent && p.former == alive && now.Sub(since) < 3*time.Second && (hidden || doubted):
				wrong = "is silent or suspected although it was there a moment ago"
			}
			if wrong != "" {
				w.Errorf("second %d: %s %s (for %s) to %s: %+v; machine on %v, process %d; silent %v, suspected %v; %v",
					w.second, other.name, wrong, now.Sub(since), viewer.name, *p, other.on, other.process,
					slices.Sorted(maps.Keys(isSilent)), slices.Sorted(maps.Keys(isSuspected)),
					viewer.Status().Unreached)
				return
			}
			for _, at := range []time.Time{viewer.changed, other.changed, p.changed} {
				p.perhaps = p.perhaps || now.Sub(at) <= time.Second // it may have run for a moment
			}
			if p.state != silent && other.process == runs && viewer.key == other.key {
				p.perhaps = true
				p.met = p.met || p.state == alive && (!viewer.needs.IsZero() && lasts > 10*time.Second ||
					lasts > checkInterval+30*time.Second)
			}
		}
	}
}
