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
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// DefaultPort is the port of the exchange, TCP. It is none of Kubernetes' own components or of the usual network
// plugins, and below the ranges of node ports (from 30000) and of the local ports that the kernel gives out (from
// 32768).
const DefaultPort = 17946

const (
	// interval is the time between two looks at what has changed, and between two questions to a neighbour in a small
	// site. In larger ones it grows, because no node asks more than questionsPerSecond.
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
	// doubtPause is the time between two doubts of the addresses.
	doubtPause = time.Minute
)

// Errors of Status.
var (
	// ErrNoKey means that there is no key, so that nothing is exchanged.
	ErrNoKey = errors.New("there is no key, and nothing is exchanged without")
	// ErrTooMany means that the site has too many nodes.
	ErrTooMany = fmt.Errorf("more than %d nodes share Services with this one: that is no site", maxMembers)

	errNoAddress = errors.New("this node's InternalIP is not known")
	errNoCluster = errors.New("the Service default/kubernetes, by which clusters are told apart, is not known")
)

// Site says which nodes belong to this node's site. Its methods are called every second.
type Site interface {
	// Members returns the nodes of the site, this one included, in no order. Of large sites only the nodes on which
	// endpoints may be shown here are asked.
	Members() []facts.SiteNode
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
	// Needed reports whether the neighbours' word is needed: while this node's upstream is away, before that is known,
	// and until the upstream has caught up with their word.
	Needed func() bool
	// SetSilent takes the names of the nodes that are silent while their word is needed.
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
	// Words has what the other nodes say of their pods, by name, as far as that is known.
	Words map[string]*facts.LivePods
	// OtherKey are nodes whose keys are none of this node's, or the other way round; sorted.
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
	// doubt keeps the calls of AddressDoubted apart.
	doubt rate.Sometimes
	wg    sync.WaitGroup

	// Only the goroutine of Run uses these.

	// loaded is when the file with the keys was read last, listened when it was last tried to listen.
	loaded, listened time.Time
	// given is what SetSilent got last.
	given map[string]struct{}

	mu sync.Mutex
	// The fields below are guarded by mu. Nothing else is called while it is held.

	// keyErr is why the file with the keys could not be read the last time, err why nothing is exchanged.
	keyErr, err error
	keys        [][]byte
	cluster     string
	members     int
	// locals are this node's addresses. byAddress has the name of the member with an address, peers has those that are
	// asked.
	locals    []netip.Addr
	byAddress map[netip.Addr]string
	peers     map[string]*peer
	needed    bool
	// own are the pods of this node as an answer has them, as of asOf; nil if they are not known. version is theirs.
	own     []byte
	asOf    time.Time
	version uint32
	// wanted is when a neighbour has last said that it needs this node's word.
	wanted time.Time
	// listeners are open at this node's addresses; there are none while nothing is exchanged. open has the connections
	// of others, and the addresses that these come from.
	listeners map[netip.Addr]net.Listener
	open      map[net.Conn]netip.Addr
}

// New makes an Exchange, which opens no port before Run.
func New(config Config) *Exchange {
	if config.Network == nil {
		config.Network = nodeNetwork{}
	}
	return &Exchange{
		config: config, doubt: rate.Sometimes{Interval: doubtPause}, err: ErrNoKey,
		version:   rand.Uint32(), //nolint:gosec // it tells processes apart, and only neighbours see it
		listeners: make(map[netip.Addr]net.Listener), peers: make(map[string]*peer),
		open: make(map[net.Conn]netip.Addr),
	}
}

// Status returns what the Exchange knows.
func (e *Exchange) Status() Status {
	partners := e.config.Partners()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Err: e.err, KeyErr: e.keyErr, Members: len(e.peers), Words: make(map[string]*facts.LivePods)}
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
			s.Words[name] = p.word
		}
		var ignored *ignoredError
		if errors.As(p.err, &ignored) && ignored.reason == reasonKey {
			s.OtherKey = append(s.OtherKey, name)
		}
		if !p.alive && p.err != nil && s.Unreached == nil {
			s.Unreached = fmt.Errorf("node %s: %w", name, p.err)
		}
	}
	return s
}

// Words returns what the other nodes of the site say of their pods, by the names of the nodes.
func (e *Exchange) Words() map[string]*facts.LivePods { return e.Status().Words }

// Wanted reports whether a node of the site needs to know this node's pods.
func (e *Exchange) Wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	// In a large site that node asks again when it has asked all others.
	pace := time.Duration(len(e.peers)) * time.Second / questionsPerSecond
	return time.Since(e.wanted) < 10*time.Second+2*pace
}

// Share takes the pods of this node, which the others may ask for; nil if they are not known any more. They must not be
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
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		e.step(ctx)
		select {
		case <-ctx.Done():
			e.close()
			return
		case <-ticker.C:
		}
	}
}

// step looks at what has changed, and does what follows.
func (e *Exchange) step(ctx context.Context) {
	e.loadKeys(ctx)
	changed := e.takeMembers(ctx)
	err := e.place()
	if changed || err != nil {
		e.close()
	}
	if err == nil {
		err = e.listen(ctx)
	}
	e.mu.Lock()
	e.err = err
	e.mu.Unlock()
	if err == nil {
		e.askAll(ctx)
	}
	e.pass(ctx)
}

// loadKeys reads the file with the keys now and then.
func (e *Exchange) loadKeys(ctx context.Context) {
	if time.Since(e.loaded) < keyInterval {
		return
	}
	e.loaded = time.Now()
	var keys [][]byte
	content, err := os.ReadFile(e.config.KeyFile)
	if err == nil {
		if keys, err = parseKeys(content); err != nil {
			err = fmt.Errorf("%s: %w", e.config.KeyFile, err)
		}
	}
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

// close ends the exchange, and says to the neighbours that this wrapper stops.
func (e *Exchange) close() {
	e.listened = time.Time{}
	if len(e.listeners) == 0 {
		return
	}
	e.mu.Lock()
	for _, listener := range e.listeners {
		_ = listener.Close()
	}
	clear(e.listeners)
	for conn := range e.open {
		_ = conn.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
	wanted := e.Wanted()
	for _, p := range e.peers {
		e.wg.Go(func() { p.leave(wanted) })
	}
	e.wg.Wait()
}

// has reports whether a key is one of the site's. mu is held.
func (e *Exchange) has(key []byte) bool {
	return slices.ContainsFunc(e.keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// takeMembers takes the members of the site as they are now, and reports whether this node is placed elsewhere.
func (e *Exchange) takeMembers(ctx context.Context) (changed bool) {
	members, cluster := e.config.Site.Members(), e.config.Site.Cluster()
	e.mu.Lock()
	defer e.mu.Unlock()
	before, moved := e.locals, cluster != e.cluster
	e.members, e.cluster, e.locals, e.byAddress = len(members), cluster, nil, make(map[netip.Addr]string)
	asked := make(map[string]*peer)
	for _, m := range members {
		addresses := make([]netip.Addr, len(m.InternalIPs))
		for i, address := range m.InternalIPs {
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
				p = &peer{e: e, name: m.Name}
			}
			p.addresses, asked[m.Name] = addresses, p
		}
	}
	for name, p := range e.peers {
		if asked[name] == nil && !p.asking { // else it is dropped when it has answered
			p.drop()
		}
	}
	if len(asked) != len(e.peers) {
		klog.FromContext(ctx).Info("The site has changed", "nodes", len(members), "asked", len(asked))
	}
	e.peers = asked
	return moved || !slices.Equal(before, e.locals)
}

// place returns why nothing can be exchanged where this node is.
func (e *Exchange) place() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.keys == nil && e.keyErr != nil:
		return fmt.Errorf("%w: %w", ErrNoKey, e.keyErr)
	case e.keys == nil:
		return ErrNoKey
	case len(e.locals) == 0:
		return errNoAddress
	case e.members > maxMembers:
		return ErrTooMany
	case e.cluster == "":
		return errNoCluster
	}
	return nil
}

// pass passes on which neighbours are silent, and which take part: those that answer, and those that did, as long as
// they belong to the site. What is shown of silent ones is up to the view, which leaves no Service without an endpoint:
// this node may be the one that is cut off.
func (e *Exchange) pass(ctx context.Context) {
	status, partners := e.Status(), e.config.Partners()
	silent, part := make(map[string]struct{}), make(map[string]struct{})
	if status.Err == nil {
		for _, name := range status.Alive {
			part[name] = struct{}{}
		}
		e.mu.Lock()
		for name := range partners {
			if e.peers[name] != nil {
				part[name] = struct{}{}
			}
		}
		e.mu.Unlock()
		if !maps.Equal(partners, part) {
			e.config.SetPartners(part)
		}
		if e.config.Needed() {
			for _, name := range status.Silent {
				silent[name] = struct{}{}
			}
		}
	}
	if !maps.Equal(silent, e.given) {
		e.given = silent
		e.config.SetSilent(silent)
		klog.FromContext(ctx).Info("Hiding the endpoints on neighbours that are silent", "silent", status.Silent)
	}
}

// IsTimeout reports whether a neighbour did not answer in time.
func IsTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
