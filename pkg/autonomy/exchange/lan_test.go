package exchange

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// lan is a network in memory.
type lan struct {
	mu    sync.Mutex
	hosts map[netip.AddrPort]*host
	// cut reports whether nothing comes from one address to another.
	cut func(from, to netip.Addr) bool
	// wires are the ends of all connections.
	wires map[*wire]struct{}
	// bytes counts what was sent, connections those that were made.
	bytes, connections atomic.Int64
}

func newLAN() *lan {
	return &lan{
		hosts: make(map[netip.AddrPort]*host), wires: make(map[*wire]struct{}),
		cut: func(netip.Addr, netip.Addr) bool { return false },
	}
}

// setCut changes what arrives where. What was lost is sent again, as TCP does.
func (l *lan) setCut(cut func(from, to netip.Addr) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for w := range l.wires {
		if !cut(w.local.Addr(), w.remote.Addr()) && !cut(w.remote.Addr(), w.local.Addr()) {
			w.flush()
		}
	}
}

// crash ends what a machine does without a word. Its connections are unknown to it when it is back.
func (l *lan) crash(address netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for w := range l.wires {
		if w.local.Addr() == address {
			w.out.change(func() { w.out.reset, w.out.held, w.out.ends = true, nil, false })
			w.in.change(func() { w.in.reset = true })
			delete(l.wires, w)
		}
	}
}

// to returns the host at an address, as far as it is reached from another one.
func (l *lan) to(from netip.Addr, to netip.AddrPort) (h *host, reached bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[to], !l.cut(from, to.Addr()) && !l.cut(to.Addr(), from)
}

// backlog is how many connections the kernel accepts for a process that does not.
const backlog = 4096

// Listen and Dial are an Exchange's. A connection is refused where nobody listens, and nothing comes where it is cut.
func (l *lan) Listen(local netip.AddrPort) (net.Listener, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[local] != nil {
		return nil, fmt.Errorf("%s is in use", local)
	}
	h := &host{lan: l, local: local, streams: make(chan net.Conn, backlog), done: make(chan struct{})}
	l.hosts[local] = h
	return h, nil
}

// connect is a connection from a node to another one, which is not the exchange's own.
func (l *lan) connect(t *testing.T, from, to *node) net.Conn {
	t.Helper()
	conn, err := l.Dial(t.Context(), from.address, netip.AddrPortFrom(to.address, testPort))
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (l *lan) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	if from.Is4() != to.Addr().Is4() {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.EINVAL}
	}
	h, reached := l.to(from, to)
	if !reached {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	if h == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
	l.connections.Add(1)
	l.bytes.Add(4 * 40)
	local := netip.AddrPortFrom(from, uint16(20000+l.connections.Load()%10000))
	up, down := newPipe(), newPipe()
	ours := &wire{lan: l, local: local, remote: to, in: down, out: up}
	theirs := &wire{lan: l, local: to, remote: local, in: up, out: down}
	l.mu.Lock()
	l.wires[ours], l.wires[theirs] = struct{}{}, struct{}{}
	l.mu.Unlock()
	select {
	case h.streams <- theirs:
		return ours, nil
	case <-h.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
}

// host is a Listener.
type host struct {
	lan     *lan
	local   netip.AddrPort
	streams chan net.Conn
	done    chan struct{}
}

func (h *host) Accept() (net.Conn, error) {
	select {
	case conn := <-h.streams:
		return conn, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *host) Addr() net.Addr { return net.TCPAddrFromAddrPort(h.local) }

func (h *host) Close() error {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	if h.lan.hosts[h.local] != h {
		return nil
	}
	delete(h.lan.hosts, h.local)
	close(h.done)
	for {
		select {
		case conn := <-h.streams: // unless Accept has taken it
			go conn.Close()
		default:
			return nil
		}
	}
}

// pipe is one direction of a connection. It holds what was written, as the kernel does.
type pipe struct {
	mu      sync.Mutex
	changed chan struct{} // closed at every change
	bytes   []byte
	closed  bool
	// held has what was written and has not arrived, and ends says that the end has not. reset says that one side has
	// forgotten the connection.
	held        []byte
	ends, reset bool
}

func newPipe() *pipe { return &pipe{changed: make(chan struct{})} }

func (p *pipe) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// wire is one end of a connection.
type wire struct {
	lan           *lan
	local, remote netip.AddrPort
	in, out       *pipe

	mu       sync.Mutex
	deadline time.Time
}

func (w *wire) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(w.local) }
func (w *wire) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(w.remote) }

func (w *wire) Write(p []byte) (int, error) {
	w.lan.bytes.Add(int64(len(p)) + 80) // with the headers, and an acknowledgement
	_, reached := w.lan.to(w.local.Addr(), w.remote)
	var err error
	w.out.change(func() {
		switch {
		case w.out.closed:
			err = syscall.EPIPE
		case !w.out.reset:
			w.out.held = append(w.out.held, p...)
		}
	})
	if reached {
		w.flush()
	}
	return len(p), err
}

// flush has everything arrive that was written.
func (w *wire) flush() {
	reset := false
	w.out.change(func() {
		w.out.bytes, w.out.held = append(w.out.bytes, w.out.held...), nil
		w.out.closed = w.out.closed || w.out.ends
		reset = w.out.reset
	})
	if reset {
		w.in.change(func() { w.in.closed = true })
	}
}

func (w *wire) Read(to []byte) (int, error) {
	for {
		w.in.mu.Lock()
		n := copy(to, w.in.bytes)
		w.in.bytes = w.in.bytes[n:]
		changed, closed := w.in.changed, w.in.closed
		w.in.mu.Unlock()
		w.mu.Lock()
		deadline := w.deadline
		w.mu.Unlock()
		switch {
		case n > 0:
			return n, nil
		case closed:
			return 0, io.EOF
		case !deadline.IsZero() && !time.Now().Before(deadline):
			return 0, os.ErrDeadlineExceeded
		}
		wait := time.Hour
		if !deadline.IsZero() {
			wait = time.Until(deadline)
		}
		timer := time.NewTimer(wait)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (w *wire) Close() error {
	w.out.change(func() { w.out.ends = true })
	if _, reached := w.lan.to(w.local.Addr(), w.remote); reached {
		w.flush()
		w.lan.mu.Lock()
		delete(w.lan.wires, w)
		w.lan.mu.Unlock()
	}
	w.in.change(func() { w.in.closed = true })
	return nil
}

func (w *wire) SetDeadline(at time.Time) error {
	w.mu.Lock()
	w.deadline = at
	w.mu.Unlock()
	w.in.change(func() {})
	return nil
}
func (w *wire) SetReadDeadline(at time.Time) error { return w.SetDeadline(at) }
func (w *wire) SetWriteDeadline(time.Time) error   { return nil }

const testPort = 17946

// node is a node of a site with an Exchange. It is its Facts, and counts what it ignores and asks.
type node struct {
	*testing.T
	*Exchange

	name    string
	address netip.Addr
	lan     *lan
	listen  func(netip.AddrPort) (net.Listener, error)
	dial    func(context.Context, netip.Addr, netip.AddrPort) (net.Conn, error)
	port    uint16
	keyFile string
	away    atomic.Bool
	// protocol is the version of the protocol of its next process; 0 for today's.
	protocol int

	mu      sync.Mutex
	members []facts.SiteNode
	cluster string
	silent  map[string]struct{}
	// suspected are the nodes that are suspected.
	suspected map[string]struct{}
	// partners outlive the Exchange, as a snapshot does.
	partners map[string]struct{}
	unknown  int
	reasons  map[string]int
	asked    int
	stop     func()
}

func (n *node) Site() []facts.SiteNode {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.members
}

func (n *node) ClusterUID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster
}

func (n *node) Ignored(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons[reason]++
}

func (n *node) Asked(error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
}

func (n *node) ignoredFor(reason string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reasons[reason]
}

func (n *node) questions() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// hidden are the nodes that count as silent, separated by spaces.
func (n *node) hidden() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(n.silent)), " ")
}

func (n *node) setMembers(members []facts.SiteNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members = members
}

// SetDoubted, Notes and Note implement Facts.
func (n *node) SetDoubted(why facts.Doubt, names map[string]struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if why == facts.Silent {
		n.silent = names
	} else {
		n.suspected = names
	}
}

// suspects are the nodes that count as suspected, separated by spaces.
func (n *node) suspects() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(n.suspected)), " ")
}

func (n *node) Notes() facts.Notes {
	n.mu.Lock()
	defer n.mu.Unlock()
	return facts.Notes{Partners: n.partners}
}

func (n *node) UpdateNotes(change func(*facts.Notes)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	notes := facts.Notes{Partners: n.partners}
	change(&notes)
	n.partners = notes.Partners
}

// start starts the node's Exchange.
func (n *node) start() {
	n.Exchange = New(Config{
		NodeName: n.name, Port: n.port, KeyFile: n.keyFile, Facts: n,
		Needed: n.away.Load,
		AddressUnknown: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.unknown++
		},
		Ignored: n.Ignored, Asked: n.Asked, Listen: n.listen, Dial: n.dial,
	})
	n.Exchange.protocol = cmp.Or(n.protocol, protocol)
	ctx, cancel := context.WithCancel(n.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Exchange.Run(ctx)
	}()
	n.stop = sync.OnceFunc(func() {
		cancel()
		<-done
	})
}

// runs shares pods, each written as name=address, with a "/" and the Services in which it is idle, if there are any,
// and with a "!" after it if it is not serving.
func (n *node) runs(pods ...string) {
	n.Share(wordOf(pods...))
}

func wordOf(pods ...string) *facts.LivePods {
	word := &facts.LivePods{AsOf: time.Now(), Pods: map[facts.PodKey]facts.LivePod{}}
	for _, pod := range pods {
		name, rest, _ := strings.Cut(strings.TrimSuffix(pod, "!"), "=")
		address, idle, _ := strings.Cut(rest, "/")
		word.Pods[facts.PodKey{Namespace: "ns", Name: name, UID: "uid-" + name}] = facts.LivePod{
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: !strings.HasSuffix(pod, "!"),
			Idle: strings.FieldsFunc(idle, func(r rune) bool { return r == ',' }),
		}
	}
	return word
}

// hears are the pods that the node has heard of from another one, as in runs; "unknown" if it has no word of it.
func (n *node) hears(from string) string {
	word := n.Words()[from]
	if word == nil {
		return "unknown"
	}
	var pods []string
	for key, pod := range word.Pods {
		text := key.Name + "=" + pod.Addresses[0].String()
		if len(pod.Idle) > 0 {
			text += "/" + strings.Join(pod.Idle, ",")
		}
		if !pod.Serving {
			text += "!"
		}
		pods = append(pods, text)
	}
	slices.Sort(pods)
	return strings.Join(pods, " ")
}

func (n *node) alive() string { return strings.Join(n.Status().Alive, " ") }

// testKey is a key as it is in a file.
func testKey(number byte) string {
	return base64.StdEncoding.EncodeToString(slices.Repeat([]byte{number}, keySize))
}

func (n *node) keys(keys ...string) {
	n.Helper()
	if err := os.WriteFile(n.keyFile, []byte(strings.Join(keys, "\n")), 0o600); err != nil {
		n.Fatal(err)
	}
}

// newSite makes nodes n0, n1 and so on, which are not started.
func newSite(t *testing.T, l *lan, count int) []*node {
	t.Helper()
	nodes := make([]*node, count)
	members := make([]facts.SiteNode, count)
	for i := range nodes {
		address := netip.AddrFrom4([4]byte{192, 168, byte(i / 200), byte(i%200 + 1)})
		members[i] = facts.SiteNode{Name: fmt.Sprintf("n%d", i), InternalIPs: []netip.Addr{address}, Shown: true}
	}
	for i := range nodes {
		n := &node{
			T: t, name: members[i].Name, address: members[i].InternalIPs[0], lan: l, port: testPort,
			listen: l.Listen, dial: l.Dial,
			members: members, cluster: "one",
			keyFile: filepath.Join(t.TempDir(), "keys"), reasons: make(map[string]int),
		}
		n.keys(testKey(1))
		nodes[i] = n
	}
	return nodes
}

// startAll starts nodes, and stops them at the end.
func startAll(nodes []*node) (stopAll func()) {
	for _, n := range nodes {
		n.start()
	}
	return func() {
		var wg sync.WaitGroup
		for _, n := range nodes {
			wg.Go(n.stop)
		}
		wg.Wait()
	}
}

func (n *node) expect(what, got, want string) {
	n.Helper()
	if got != want {
		n.Errorf("node %s, %s: got %q, want %q", n.name, what, got, want)
	}
}

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}
