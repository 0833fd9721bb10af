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
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// DefaultPort is the port of the exchange, TCP. It is none of Kubernetes' own components or of the usual network
// plugins, and below the ranges of node ports (from 30000) and of the local ports that the kernel gives out (from
// 32768).
const DefaultPort = 17946

const (
	// interval is the time between two looks at what has changed, and between two questions to a neighbour in a small
	// site. In larger ones the interval grows, so that no node asks more than questionsPerSecond.
	interval           = time.Second
	questionsPerSecond = 50
	// smallSite is the most nodes of a site in which all are asked, maxMembers the most of any site. What is exchanged
	// is meant for a network that all of them are on.
	smallSite, maxMembers = 50, 1000
	// keyInterval is the time between two looks at the file with the keys, and between two attempts to listen.
	keyInterval = 5 * time.Second
	// checkInterval is the time between two questions to a neighbour while its word is not needed.
	checkInterval = 5 * time.Minute
	// misses is how often a node must not answer until it is silent.
	misses = 3
	// leaveGrace is how long a node whose wrapper has said that it stops does not count as silent.
	leaveGrace = time.Minute
	// keyPatience is how long it is known that a node has another key.
	keyPatience = 2 * checkInterval
	// doubtPause is the time between two doubts of the addresses.
	doubtPause = time.Minute
)

// Errors of Status.
var (
	// ErrNoKey means that there is no key, so that nothing is exchanged.
	ErrNoKey = errors.New("there is no key, and nothing is exchanged without")
	// ErrNoAddress means that this node's InternalIP is not known.
	ErrNoAddress = errors.New("this node's InternalIP is not known")
	// ErrTooMany means that the site has too many nodes.
	ErrTooMany = fmt.Errorf("more than %d nodes share Services with this one: that is no site", maxMembers)
	// ErrNoCluster means that it is not known yet which cluster this is.
	ErrNoCluster = errors.New("the Service default/kubernetes, by which clusters are told apart, is not known")
)

// Member is a node of the site.
type Member struct {
	Name string
	// Addresses are the node's InternalIPs, in the order of its status.
	Addresses []netip.Addr
	// Shown says that endpoints on the node may be shown here. In large sites only these are asked.
	Shown bool
}

func (m Member) equal(other Member) bool {
	return m.Name == other.Name && m.Shown == other.Shown && slices.Equal(m.Addresses, other.Addresses)
}

// Site says which nodes belong to this node's site. Its methods are called every second.
type Site interface {
	// Members returns the nodes of the site, this one included, in no order.
	Members() []Member
	// Cluster returns what identifies the cluster; "" if that is not known yet.
	Cluster() string
}

// Observer observes an Exchange.
type Observer interface {
	// Ignored is called for everything that is ignored, with one of Reasons.
	Ignored(reason string)
	// Asked is called after another node was asked. err is nil if it has answered.
	Asked(err error)
}

// Config is what an Exchange is made from. All fields but Network are needed.
type Config struct {
	// NodeName is this node's name.
	NodeName string
	// Port is the port at which all nodes of the site are reached.
	Port uint16
	// KeyFile is the path of the file with the keys.
	KeyFile string
	Site    Site
	// Away reports whether this node's upstream is away, Needed whether the neighbours' word is needed: also before
	// that is known, and until the upstream has caught up with their word.
	Away, Needed func() bool
	// SetSilent takes the names of the nodes that are silent while the upstream is away.
	SetSilent func(names map[string]struct{})
	// Partners returns the names of the nodes that took part in the exchange, as SetPartners got them last in this
	// process or an earlier one. Only these can be silent.
	Partners    func() map[string]struct{}
	SetPartners func(names map[string]struct{})
	// AddressDoubted is called, no more than once a minute, if something comes from an address that no node has.
	AddressDoubted func()
	Observer       Observer
	// Network is that of the node if nil.
	Network Network
}

// Network carries the connections of an Exchange.
type Network interface {
	Listen(local netip.AddrPort) (net.Listener, error)
	// Dial connects from an address of this node.
	Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error)
}

// nodeNetwork is the Network of the node.
type nodeNetwork struct{}

func (nodeNetwork) Listen(local netip.AddrPort) (net.Listener, error) {
	return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(local))
}

func (nodeNetwork) Dial(ctx context.Context, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	dialer := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	return dialer.DialContext(ctx, "tcp", to.String())
}

// Status is what an Exchange knows.
type Status struct {
	// Members is the number of nodes of the site that are asked. Alive are those of them that answer, Silent those that
	// took part and do not answer any more; both are sorted.
	Members       int
	Alive, Silent []string
	// Words is the number of nodes whose word on their pods is known.
	Words int
	// OtherKey are nodes that have asked a short time ago with none of the keys; sorted.
	OtherKey []string
	// Unreached is why the first of the nodes that do not answer, by name, was not reached; nil if all were.
	Unreached error
	// KeyErr is why the file with the keys could not be read the last time; nil if it could. Keys from before count.
	KeyErr error
	// Err is why nothing is exchanged; nil if it is.
	Err error
}

// Exchange exchanges facts with the other nodes of the site.
type Exchange struct {
	config Config
	wake   chan struct{}
	// doubt keeps the calls of AddressDoubted apart.
	doubt rate.Sometimes

	// Only the goroutine of Run uses these.

	// loaded is when the file with the keys was read last, listened when it was last tried to listen.
	loaded, listened time.Time
	// given is what SetSilent got last.
	given map[string]struct{}
	// listeners are open at this node's addresses; nil while nothing is exchanged. ctx is that of all goroutines that
	// belong to them, and cancel ends it.
	listeners map[netip.Addr]net.Listener
	ctx       context.Context //nolint:containedctx // as said
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	mu sync.Mutex
	// The fields below are guarded by mu. Nothing else is called while it is held.

	// keyErr is why the file with the keys could not be read the last time, err why nothing is exchanged.
	keyErr, err error
	keys        [][]byte
	cluster     string
	members     []Member
	// locals are this node's addresses. byAddress has the name of the member with an address, peers has those that are
	// asked.
	locals    []netip.Addr
	byAddress map[netip.Addr]string
	peers     map[string]*peer
	needed    bool
	// own are the pods of this node as an answer has them, as of asOf; nil if they are not known. version is theirs.
	own     []byte
	asOf    time.Time
	version uint64
	// wanted is when a neighbour has last said that it needs this node's word.
	wanted time.Time
	// open has the connections of others, of counts them by address.
	open map[net.Conn]struct{}
	of   map[netip.Addr]int
}

// New makes an Exchange, which opens no port before Run.
func New(config Config) *Exchange {
	if config.Network == nil {
		config.Network = nodeNetwork{}
	}
	return &Exchange{
		config: config, wake: make(chan struct{}, 1), doubt: rate.Sometimes{Interval: doubtPause}, err: ErrNoKey,
		version: rand.Uint64(), //nolint:gosec // it tells processes apart, and is sealed
		peers:   make(map[string]*peer), open: make(map[net.Conn]struct{}), of: make(map[netip.Addr]int),
	}
}

// pace is the time between two questions to a neighbour while its word is needed. mu is held.
func (e *Exchange) pace() time.Duration {
	return max(interval, time.Duration(len(e.peers))*time.Second/questionsPerSecond)
}

// Status returns what the Exchange knows.
func (e *Exchange) Status() Status {
	partners := e.config.Partners()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Err: e.err, KeyErr: e.keyErr, Members: len(e.peers)}
	for _, name := range slices.Sorted(maps.Keys(e.peers)) {
		p := e.peers[name]
		_, partner := partners[name]
		switch {
		case p.alive:
			s.Alive = append(s.Alive, name)
		case partner && p.missed >= misses && time.Since(p.left) >= leaveGrace:
			s.Silent = append(s.Silent, name)
		}
		if p.word != nil {
			s.Words++
		}
		if !p.otherKey.IsZero() && time.Since(p.otherKey) < keyPatience {
			s.OtherKey = append(s.OtherKey, name)
		}
		if !p.alive && p.err != nil && s.Unreached == nil {
			s.Unreached = fmt.Errorf("node %s: %w", name, p.err)
		}
	}
	return s
}

// Words returns what the other nodes of the site say of their pods, by the names of the nodes.
func (e *Exchange) Words() map[string]*facts.LivePods {
	e.mu.Lock()
	defer e.mu.Unlock()
	words := make(map[string]*facts.LivePods)
	for name, p := range e.peers {
		if p.word != nil {
			words[name] = p.word
		}
	}
	return words
}

// Wanted reports whether a node of the site needs to know this node's pods.
func (e *Exchange) Wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.wanted.IsZero() && time.Since(e.wanted) < 10*time.Second+2*e.pace()
}

// Share takes the pods of this node, which the others may ask for; nil if they are not known any more. They must not be
// changed afterwards.
func (e *Exchange) Share(own *facts.LivePods) {
	var encoded []byte
	if own != nil {
		var err error
		if encoded, err = encodePods(own.Pods); err != nil {
			klog.Background().Error(err, "Cannot tell the neighbours of this node's pods")
			own, encoded = nil, nil
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if (own == nil) != e.asOf.IsZero() || !bytes.Equal(encoded, e.own) {
		e.version++
	}
	e.own, e.asOf = encoded, time.Time{}
	if own != nil {
		e.asOf = own.AsOf
	}
}

// Run exchanges facts until ctx is done.
func (e *Exchange) Run(ctx context.Context) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		e.step(ctx)
		select {
		case <-ctx.Done():
			e.close()
			return
		case <-ticker.C:
		case <-e.wake:
		}
	}
}

// step looks at what has changed, and does what follows.
func (e *Exchange) step(ctx context.Context) {
	e.loadKeys(ctx)
	changed := e.takeMembers(ctx)
	e.mu.Lock()
	err := e.place()
	e.mu.Unlock()
	if changed || err != nil {
		e.close()
	}
	if err == nil {
		err = e.listen(ctx)
	}
	e.mu.Lock()
	e.err = err
	e.mu.Unlock()
	if e.listeners != nil {
		e.attendAll(e.config.Needed())
	}
	status := e.Status()
	e.passSilent(ctx, status)
	if err == nil {
		e.passPartners(status)
	}
}

func (e *Exchange) loadKeys(ctx context.Context) {
	if !e.loaded.IsZero() && time.Since(e.loaded) < keyInterval {
		return
	}
	e.loaded = time.Now()
	keys, err := readKeys(e.config.KeyFile)
	e.mu.Lock()
	defer e.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case err != nil && e.keyErr == nil:
		logger.Error(err, "Cannot read the keys of the site exchange", "goingOnWithEarlierOnes", e.keys != nil)
	case err == nil && !slices.EqualFunc(keys, e.keys, bytes.Equal):
		logger.Info("Using the keys of the site exchange", "file", e.config.KeyFile, "keys", len(keys))
		e.keys = keys
	}
	e.keyErr = err
}

// takeMembers takes the members of the site as they are now, and reports whether this node is placed elsewhere.
func (e *Exchange) takeMembers(ctx context.Context) (changed bool) {
	members, cluster := e.config.Site.Members(), e.config.Site.Cluster()
	e.mu.Lock()
	defer e.mu.Unlock()
	if cluster == e.cluster && e.members != nil && slices.EqualFunc(members, e.members, Member.equal) {
		return false
	}
	klog.FromContext(ctx).Info("The site has changed", "nodes", len(members))
	before, moved := e.locals, cluster != e.cluster
	e.members, e.cluster, e.locals, e.byAddress = members, cluster, nil, make(map[netip.Addr]string)
	asked := make(map[string]*peer)
	for _, m := range members {
		addresses := make([]netip.Addr, len(m.Addresses))
		for i, address := range m.Addresses {
			addresses[i] = address.Unmap()
			if e.byAddress[addresses[i]] != e.config.NodeName { // this node knows its own addresses best
				e.byAddress[addresses[i]] = m.Name
			}
		}
		switch {
		case m.Name == e.config.NodeName:
			e.locals = addresses
		case len(members) <= smallSite || m.Shown:
			p := e.peers[m.Name]
			if p == nil {
				p = &peer{e: e, name: m.Name, wake: make(chan struct{}, 1)}
			}
			p.addresses, asked[m.Name] = addresses, p
		}
	}
	for name, p := range e.peers {
		if asked[name] == nil && p.cancel != nil {
			p.cancel()
		}
	}
	e.peers = asked
	return moved || !slices.Equal(before, e.locals)
}

// place returns why nothing can be exchanged where this node is. mu is held.
func (e *Exchange) place() error {
	switch {
	case e.keys == nil && e.keyErr != nil:
		return fmt.Errorf("%w: %w", ErrNoKey, e.keyErr)
	case e.keys == nil:
		return ErrNoKey
	case len(e.locals) == 0:
		return ErrNoAddress
	case len(e.members) > maxMembers:
		return ErrTooMany
	case e.cluster == "":
		return ErrNoCluster
	}
	return nil
}

// passSilent passes on which neighbours are silent. What is shown of them is up to the view, which leaves no Service
// without an endpoint: this node may be the one that is cut off.
func (e *Exchange) passSilent(ctx context.Context, status Status) {
	silent := make(map[string]struct{})
	if e.config.Away() && status.Err == nil {
		for _, name := range status.Silent {
			silent[name] = struct{}{}
		}
	}
	if maps.Equal(silent, e.given) {
		return
	}
	e.given = silent
	e.config.SetSilent(silent)
	names := make([]string, 0, len(silent)) // not nil in the log
	klog.FromContext(ctx).Info("Hiding the endpoints on neighbours that are silent", "silent",
		append(names, slices.Sorted(maps.Keys(silent))...))
}

// passPartners passes on which nodes take part: those that answer, and those that did, as long as they belong to the
// site.
func (e *Exchange) passPartners(status Status) {
	before := e.config.Partners()
	now := make(map[string]struct{})
	for _, name := range status.Alive {
		now[name] = struct{}{}
	}
	e.mu.Lock()
	for name := range before {
		if e.peers[name] != nil {
			now[name] = struct{}{}
		}
	}
	e.mu.Unlock()
	if !maps.Equal(before, now) {
		e.config.SetPartners(now)
	}
}

// IsTimeout reports whether a neighbour did not answer in time.
func IsTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
