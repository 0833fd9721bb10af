package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// DefaultPort is the port of the exchange, TCP. Kubernetes' own components and the usual network plugins do not use it.
// It is below the ranges of node ports (from 30000) and of the kernel's ephemeral ports (from 32768).
const DefaultPort = 17946

const (
	// interval is the time between two checks for changes, and between two questions to a neighbour in a small site. In
	// larger sites questions are less frequent, because no node asks more than questionsPerSecond.
	interval           = time.Second
	questionsPerSecond = 50
	// smallSite is the largest number of nodes of a site in which all are asked, and maxMembers that of any site. The
	// exchange is meant for a network that all of them are on.
	smallSite, maxMembers = 50, 1000
	// loadInterval is the time between two reads of the file with the keys and of the site, and between two attempts to
	// listen.
	loadInterval = 5 * time.Second
	// checkInterval is the time between two questions to a neighbour while its report is not needed.
	checkInterval = 5 * time.Minute
	// misses is how many questions must pass without a packet from a node's machine until the node is silent.
	misses = 3
	// suspects is how long a node whose machine is reachable must not answer until it is suspected.
	suspects = 10 * time.Second
)

// Errors of Status.
var (
	// ErrNoKey means that nothing is exchanged, because no key was read.
	ErrNoKey = errors.New("nothing is exchanged without a key")
	// ErrTooMany means that the site has too many nodes.
	ErrTooMany = fmt.Errorf("more than %d nodes share Services with this one: too many for a site", maxMembers)
)

// Facts know the site, and take the results of an Exchange. *facts.Facts is one. In large sites only nodes that are
// shown are asked. Only Partners can be silent or suspected.
type Facts interface {
	Site() []facts.SiteNode
	ClusterUID() string
	Notes() facts.Notes
	UpdateNotes(change func(*facts.Notes))
	SetDoubted(why facts.Doubt, names map[string]struct{})
}

// Config is what an Exchange is made from. All fields but Listen and Dial are needed.
type Config struct {
	// NodeName is this node's name, Port the port of the exchange on all nodes, and KeyFile the file with the keys.
	NodeName string
	Port     uint16
	KeyFile  string
	Facts    Facts
	// Needed reports whether the neighbours' reports are needed: while this node's upstream is away or its state is not
	// known, and until the upstream agrees with the reports.
	Needed func() bool
	// AddressUnknown is called, at most once a minute, after a connection from an address that no node has.
	AddressUnknown func()
	// Ignored is called for everything that is ignored, with one of Reasons.
	Ignored func(reason string)
	// Asked is called after another node was asked. err is nil if it has answered.
	Asked func(err error)
	// Listen listens on TCP, and Dial connects from an address of this node. If Listen is nil, the kernel's TCP is
	// used.
	Listen func(local netip.AddrPort) (net.Listener, error)
	Dial   func(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error)
}

func listenTCP(local netip.AddrPort) (net.Listener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
}

func dialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// Status is what an Exchange knows.
type Status struct {
	// Members is the number of nodes of the site that are asked. Alive are those of them that answer. Of those that
	// took part and no longer answer, Suspected are those whose machines are reachable, and Silent are the others. All
	// are sorted.
	Members                  int
	Alive, Suspected, Silent []string
	partners                 map[string]struct{}
	// Words has the other nodes' reports on their pods, by node name, as far as they are known.
	Words map[string]*facts.LivePods
	// Unreached is the error of the first node, by name, that does not answer; nil if all do.
	Unreached error
	// KeyErr is why the file with the keys could not be read the last time; nil if it could. Keys read before stay in
	// use.
	KeyErr error
	// Err is why nothing is exchanged; nil if it is.
	Err error
}

// Exchange exchanges facts with the other nodes of the site.
type Exchange struct {
	config Config
	// protocol is the version of the protocol, which tests change.
	protocol int
	// unknown limits the rate of calls of AddressUnknown.
	unknown rate.Sometimes
	wg      sync.WaitGroup

	// loaded is when the keys and the site were read last. Only the goroutine of Run uses it.
	loaded time.Time

	mu sync.Mutex
	// The fields below are guarded by mu. Nothing else is called while it is held.

	// keyErr is why the file with the keys could not be read the last time, err why nothing is exchanged.
	keyErr, err error
	keys        [][]byte
	cluster     string
	// locals are this node's addresses. byAddress has the names of all nodes of the site by their addresses, peers has
	// the nodes that are asked.
	locals    []netip.Addr
	byAddress map[netip.Addr]string
	peers     map[string]*peer
	// own are the pods of this node, encoded for answers, as of asOf; nil if they are not known. version is their
	// version.
	own     []byte
	asOf    time.Time
	version uint32
	// wanted is when a neighbour last asked for this node's report because it needs it.
	wanted time.Time
	// listeners are open at this node's addresses; empty while nothing is exchanged. strangers has the connections
	// whose other side has not yet proved that it has the key. links has all others by node name, the oldest first.
	listeners map[netip.Addr]net.Listener
	strangers map[net.Conn]struct{}
	links     map[string][]*link
}

// New makes an Exchange, which opens no port before Run.
func New(config Config) *Exchange {
	if config.Listen == nil {
		config.Listen, config.Dial = listenTCP, dialTCP
	}
	return &Exchange{
		config: config, protocol: protocol, unknown: rate.Sometimes{Interval: time.Minute}, err: ErrNoKey,
		version:   rand.Uint32(), //nolint:gosec // it distinguishes processes, and only neighbours see it
		listeners: make(map[netip.Addr]net.Listener), peers: make(map[string]*peer),
		strangers: make(map[net.Conn]struct{}), links: make(map[string][]*link),
	}
}

// Status returns what the Exchange knows.
func (e *Exchange) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{
		Err: e.err, KeyErr: e.keyErr, Members: len(e.peers),
		Words: make(map[string]*facts.LivePods), partners: make(map[string]struct{}),
	}
	for _, name := range slices.Sorted(maps.Keys(e.peers)) {
		p := e.peers[name]
		switch {
		case p.err == nil:
			s.Alive = append(s.Alive, name)
		case p.partner && p.missed >= misses:
			s.Silent = append(s.Silent, name)
		case p.partner && !p.failing.IsZero() && time.Since(p.failing) >= suspects:
			s.Suspected = append(s.Suspected, name)
		}
		if p.partner {
			s.partners[name] = struct{}{}
		}
		if p.word != nil {
			s.Words[name] = p.word
		}
		if p.err != nil && s.Unreached == nil {
			s.Unreached = fmt.Errorf("node %s: %w", name, p.err)
		}
	}
	return s
}

// Words returns the reports of the site's other nodes on their pods, by node name.
func (e *Exchange) Words() map[string]*facts.LivePods { return e.Status().Words }

// Wanted reports whether a node of the site needs to know this node's pods.
func (e *Exchange) Wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Since(e.wanted) < turns
}

// Share takes the pods of this node, which the others may ask for; nil if they are no longer known. They must not be
// changed afterwards.
func (e *Exchange) Share(own *facts.LivePods) {
	var encoded []byte
	var asOf time.Time
	if own != nil {
		encoded, asOf = encodePods(own.Pods), own.AsOf
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !bytes.Equal(encoded, e.own) {
		e.version++
	}
	e.own, e.asOf = encoded, asOf
}

// Run exchanges facts until ctx is done.
func (e *Exchange) Run(ctx context.Context) {
	wait.NonSlidingUntilWithContext(ctx, e.step, interval)
	e.close()
}

// step processes changes of the keys and of the site, and asks the neighbours.
func (e *Exchange) step(ctx context.Context) {
	if e.err != nil || time.Since(e.loaded) >= loadInterval { // only this goroutine writes err
		e.loaded = time.Now()
		rotated := e.loadKeys(ctx)
		moved, err := e.loadSite(ctx)
		if rotated || moved || err != nil {
			e.close()
		}
		if err == nil {
			err = e.listen(ctx)
		}
		if err != nil && (e.err == nil || err.Error() != e.err.Error()) {
			klog.FromContext(ctx).Error(err, "The site exchange is off")
		}
		e.mu.Lock()
		e.err = err
		e.mu.Unlock()
	}
	if e.err == nil {
		e.askAll(ctx)
	}
	e.pass()
}

// loadKeys reads the file with the keys, and reports whether they have changed.
func (e *Exchange) loadKeys(ctx context.Context) (rotated bool) {
	var keys [][]byte
	content, err := os.ReadFile(e.config.KeyFile)
	if err == nil {
		if keys, err = parseKeys(content); err != nil {
			err = fmt.Errorf("%s: %w", e.config.KeyFile, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	rotated = err == nil && !slices.EqualFunc(keys, e.keys, bytes.Equal)
	switch {
	case err != nil && e.keyErr == nil:
		klog.FromContext(ctx).Error(err, "Cannot read the keys of the site exchange", "hasEarlierOnes", e.keys != nil)
	case rotated:
		klog.FromContext(ctx).Info("Using the keys of the site exchange", "file", e.config.KeyFile, "keys", len(keys))
		e.keys = keys
	}
	e.keyErr = err
	return rotated
}

func (e *Exchange) close() {
	e.mu.Lock()
	for _, listener := range e.listeners {
		_ = listener.Close()
	}
	clear(e.listeners)
	for conn := range e.strangers {
		_ = conn.Close()
	}
	for name := range e.links {
		e.dropAll(name)
	}
	e.mu.Unlock()
	e.wg.Wait()
}

// loadSite reads the site. It reports whether this node's addresses or its cluster have changed, and returns why
// nothing can be exchanged.
func (e *Exchange) loadSite(ctx context.Context) (moved bool, err error) {
	site, cluster, partners := e.config.Facts.Site(), e.config.Facts.ClusterUID(), e.config.Facts.Notes().Partners
	e.mu.Lock()
	defer e.mu.Unlock()
	before, peers := e.locals, make(map[string]*peer)
	moved, e.cluster = cluster != e.cluster, cluster
	e.locals, e.byAddress = nil, make(map[netip.Addr]string)
	for _, node := range site {
		for _, address := range node.InternalIPs {
			if e.byAddress[address] != e.config.NodeName { // an address of this node stays its own
				e.byAddress[address] = node.Name
			}
		}
		switch {
		case node.Name == e.config.NodeName:
			e.locals = node.InternalIPs
		case len(site) <= smallSite || node.Shown:
			p := e.peers[node.Name]
			if p == nil {
				_, partner := partners[node.Name]
				p = &peer{name: node.Name, partner: partner, err: errors.New("it has not been asked yet")}
			}
			p.addresses, peers[node.Name] = node.InternalIPs, p
		}
	}
	for name := range e.peers {
		if peers[name] == nil {
			e.dropAll(name)
		}
	}
	if len(peers) != len(e.peers) {
		klog.FromContext(ctx).Info("The site has changed", "nodes", len(site), "asked", len(peers))
	}
	e.peers = peers
	switch {
	case e.keys == nil && e.keyErr != nil:
		err = fmt.Errorf("%w: %w", ErrNoKey, e.keyErr)
	case len(e.locals) == 0:
		err = errors.New("this node's InternalIP is not known")
	case len(site) > maxMembers:
		err = ErrTooMany
	case e.cluster == "":
		err = errors.New("the Service default/kubernetes, whose UID identifies the cluster, is not known")
	}
	return moved || !slices.Equal(before, e.locals), err
}

// pass passes to the facts which neighbours of the site are silent, suspected, or have ever taken part.
func (e *Exchange) pass() {
	status := e.Status()
	if status.Err == nil {
		e.config.Facts.UpdateNotes(func(n *facts.Notes) { n.Partners = status.partners })
	}
	if status.Err != nil || !e.config.Needed() {
		status.Silent, status.Suspected = nil, nil
	}
	e.config.Facts.SetDoubted(facts.Silent, setOf(status.Silent))
	e.config.Facts.SetDoubted(facts.Unanswering, setOf(status.Suspected))
}

func setOf(names []string) map[string]struct{} {
	set := make(map[string]struct{}, len(names))
	for _, name := range names {
		set[name] = struct{}{}
	}
	return set
}
