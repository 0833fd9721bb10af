package siteexchange

import (
	"context"
	"encoding/base64"
	"errors"
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
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/memberlist"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// lan is a network in memory.
type lan struct {
	mu    sync.Mutex
	hosts map[netip.AddrPort]*host
	// cut reports whether nothing comes from one address to another.
	cut func(from, to netip.Addr) bool
	// lossy is set while all packets are lost, and connections are not.
	lossy atomic.Bool
	// packets and bytes count what was sent, connections those that were made.
	packets, bytes, connections atomic.Int64
}

func newLAN() *lan {
	return &lan{hosts: make(map[netip.AddrPort]*host), cut: func(netip.Addr, netip.Addr) bool { return false }}
}

func (l *lan) setCut(cut func(from, to netip.Addr) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
}

// to returns the host at an address, as far as it is reached from another one.
func (l *lan) to(from netip.Addr, to netip.AddrPort) (h *host, reached bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[to], !l.cut(from, to.Addr())
}

// host is a Transport.
type host struct {
	lan     *lan
	local   netip.AddrPort
	admit   func(netip.Addr) bool
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
}

func (l *lan) listen(local netip.AddrPort, admit func(netip.Addr) bool) (Transport, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hosts[local] != nil {
		return nil, fmt.Errorf("%s is in use", local)
	}
	h := &host{
		lan: l, local: local, admit: admit,
		packets: make(chan *memberlist.Packet, 1000), streams: make(chan net.Conn), done: make(chan struct{}),
	}
	l.hosts[local] = h
	return h, nil
}

func (h *host) Shutdown() error {
	h.lan.mu.Lock()
	defer h.lan.mu.Unlock()
	if h.lan.hosts[h.local] == h {
		delete(h.lan.hosts, h.local)
		close(h.done)
	}
	return nil
}

func (h *host) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return h.local.Addr().AsSlice(), int(h.local.Port()), nil
}
func (h *host) PacketCh() <-chan *memberlist.Packet { return h.packets }
func (h *host) StreamCh() <-chan net.Conn           { return h.streams }

func (h *host) WriteTo(p []byte, address string) (time.Time, error) {
	h.lan.packets.Add(1)
	h.lan.bytes.Add(int64(len(p)) + 28) // the headers of IP and UDP
	to, reached := h.lan.to(h.local.Addr(), netip.MustParseAddrPort(address))
	if to != nil && reached && !h.lan.lossy.Load() && to.admit(h.local.Addr()) {
		packet := &memberlist.Packet{
			Buf: slices.Clone(p), From: net.UDPAddrFromAddrPort(h.local), Timestamp: time.Now(),
		}
		select {
		case to.packets <- packet:
		default:
		}
	}
	return time.Now(), nil
}

func (h *host) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	parsed, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	to, reached := h.lan.to(h.local.Addr(), parsed)
	if !reached {
		time.Sleep(timeout)
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	if to == nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	if !to.admit(h.local.Addr()) {
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: io.EOF}
	}
	ours, theirs := net.Pipe()
	h.lan.connections.Add(1)
	select {
	case to.streams <- wire{theirs, h.lan, to.local, netip.AddrPortFrom(h.local.Addr(), 40000)}:
		return wire{ours, h.lan, netip.AddrPortFrom(h.local.Addr(), 40000), to.local}, nil
	case <-to.done:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	case <-time.After(timeout):
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
}

// wire is one end of a connection.
type wire struct {
	net.Conn
	lan           *lan
	local, remote netip.AddrPort
}

func (w wire) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(w.local) }
func (w wire) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(w.remote) }

func (w wire) Write(p []byte) (int, error) {
	if _, reached := w.lan.to(w.local.Addr(), w.remote); !reached {
		return len(p), nil
	}
	w.lan.bytes.Add(int64(len(p)) + 40)
	return w.Conn.Write(p)
}

const testPort = 17946

// node is a node of a site with an Exchange. It is its Site, and its Observer.
type node struct {
	*testing.T
	*Exchange

	name    string
	address netip.Addr
	lan     *lan
	listen  Listen
	port    uint16
	keyFile string
	away    atomic.Bool

	mu      sync.Mutex
	members []Member
	cluster string
	silent  map[string]struct{}
	// partners outlive the Exchange, as a snapshot does.
	partners map[string]struct{}
	doubted  int
	reasons  map[string]int
	asked    int
	failed   []error
	stop     func()
}

func (n *node) Members() []Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.members
}

func (n *node) Cluster() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cluster
}

func (n *node) Ignored(reason string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.reasons[reason]++
}

func (n *node) Asked(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	if err != nil {
		n.failed = append(n.failed, err)
	}
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

func (n *node) setMembers(members []Member) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.members = members
}

// start starts the node's Exchange.
func (n *node) start() {
	n.Exchange = New(Config{
		NodeName: n.name, Port: n.port, KeyFile: n.keyFile, Site: n,
		Away: n.away.Load, Needed: n.away.Load,
		SetSilent: func(names map[string]struct{}) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.silent = names
		},
		Partners: func() map[string]struct{} {
			n.mu.Lock()
			defer n.mu.Unlock()
			return n.partners
		},
		SetPartners: func(names map[string]struct{}) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.partners = names
		},
		AddressDoubted: func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.doubted++
		},
		Observer: n, Listen: n.listen,
	})
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

// runs shares pods, each written as name=address, with a "!" after it if it is not serving.
func (n *node) runs(pods ...string) {
	n.Share(wordOf(pods...))
}

func wordOf(pods ...string) *facts.LivePods {
	word := &facts.LivePods{AsOf: time.Now(), Pods: map[facts.PodKey]facts.LivePod{}}
	for _, pod := range pods {
		name, address, _ := strings.Cut(strings.TrimSuffix(pod, "!"), "=")
		word.Pods[facts.PodKey{Namespace: "ns", Name: name, UID: "uid-" + name}] = facts.LivePod{
			Addresses: []netip.Addr{netip.MustParseAddr(address)}, Serving: !strings.HasSuffix(pod, "!"),
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
	members := make([]Member, count)
	for i := range nodes {
		address := netip.AddrFrom4([4]byte{192, 168, byte(i / 200), byte(i%200 + 1)})
		members[i] = Member{Name: fmt.Sprintf("n%d", i), Addresses: []netip.Addr{address}}
	}
	for i := range nodes {
		n := &node{
			T: t, name: members[i].Name, address: members[i].Addresses[0], lan: l, listen: l.listen, port: testPort,
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
		time.Sleep(lastPause) // memberlist does not wait for its goroutines, and time passes no more after the test
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
