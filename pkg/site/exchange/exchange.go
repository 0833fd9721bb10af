package exchange

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

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
	// smallSite is the most nodes of a site in which all are asked.
	smallSite = 50
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

// peer is what is known of another node.
type peer struct {
	// alive is set if it has answered the last question, missed counts the questions since that nothing has come back
	// from its machine, and err is why there was no answer.
	alive  bool
	missed int
	err    error
	// left is when its wrapper has said that it stops; zero if it has answered since. otherKey is when it has asked
	// with another key.
	left, otherKey time.Time
	// word is what the node has said of its pods, in this version; nil if that is not known.
	word    *facts.LivePods
	version version
}

// Exchange exchanges facts with the other nodes of the site.
type Exchange struct {
	config Config
	keys   keyFile
	// run tells this process' words from those of other processes.
	run uint64
	// site is the directory of the members.
	site atomic.Pointer[directory]
	wake chan struct{}

	// Only the goroutine of Run uses these.

	session *session
	// loaded is when the file with the keys was read last, listened when it was last tried to listen.
	loaded, listened time.Time
	// given is what SetSilent got last.
	given map[string]struct{}

	mu sync.Mutex
	// The fields below are guarded by mu. Nothing else is called while it is held.

	// keyErr is why the file with the keys could not be read the last time, err why nothing is exchanged.
	keyErr, err error
	own         *facts.LivePods
	// encoded is own as an answer has it; nil until it is asked for.
	encoded  []byte
	sequence uint64
	peers    map[string]*peer
	// ours are the addresses of this node's own pods.
	ours map[netip.Addr]struct{}
	// wanted is when a neighbour has last said that it needs this node's word. doubted is when the addresses were last
	// doubted. missing is set while a neighbour does not answer.
	wanted, doubted time.Time
	missing         bool
}

// New makes an Exchange, which opens no port before Run.
func New(config Config) *Exchange {
	if config.Network == nil {
		config.Network = nodeNetwork{}
	}
	var run [8]byte
	rand.Read(run[:])
	e := &Exchange{
		config: config, keys: keyFile{path: config.KeyFile}, run: binary.BigEndian.Uint64(run[:]),
		wake: make(chan struct{}, 1), peers: make(map[string]*peer), err: ErrNoKey,
	}
	e.site.Store(newDirectory(config.NodeName, nil))
	return e
}

func (e *Exchange) directory() *directory { return e.site.Load() }

// pace is the time between two questions to a neighbour while its word is needed.
func (e *Exchange) pace() time.Duration {
	return max(interval, time.Duration(len(e.directory().asked(e.config.NodeName)))*time.Second/questionsPerSecond)
}

// Status returns what the Exchange knows.
func (e *Exchange) Status() Status {
	partners := e.config.Partners()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Err: e.err, KeyErr: e.keyErr}
	asked := e.directory().asked(e.config.NodeName)
	s.Members = len(asked)
	e.missing = false
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		p := e.peer(name)
		_, partner := partners[name]
		switch {
		case p.alive:
			s.Alive = append(s.Alive, name)
		case partner && p.missed >= misses && time.Since(p.left) >= leaveGrace:
			s.Silent = append(s.Silent, name)
		}
		e.missing = e.missing || !p.alive
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

// Words returns what the other nodes of the site say of their pods, by the names of the nodes. The caller must not
// change it.
func (e *Exchange) Words() map[string]*facts.LivePods {
	e.mu.Lock()
	defer e.mu.Unlock()
	words := make(map[string]*facts.LivePods)
	for name := range e.directory().byName {
		if p := e.peers[name]; p != nil && p.word != nil {
			words[name] = p.word
		}
	}
	return words
}

// Wanted reports whether a node of the site needs to know this node's pods.
func (e *Exchange) Wanted() bool {
	pace := e.pace()
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.wanted.IsZero() && time.Since(e.wanted) < 10*time.Second+2*pace
}

// Share takes the pods of this node, which the others may ask for; nil if they are not known any more. They must not be
// changed afterwards.
func (e *Exchange) Share(own *facts.LivePods) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := !sameWord(own, e.own)
	e.own, e.encoded = own, nil
	if !changed {
		return
	}
	e.sequence++
	e.ours = make(map[netip.Addr]struct{})
	if own != nil {
		for _, pod := range own.Pods {
			for _, address := range pod.Addresses {
				e.ours[address.Unmap()] = struct{}{}
			}
		}
	}
}

// possibleAddress returns a function that reports whether a neighbour's pod may have an address. Nobody else's address
// is taken: neither a node's nor that of one of this node's own pods.
func (e *Exchange) possibleAddress() func(netip.Addr) bool {
	site := e.directory()
	e.mu.Lock()
	ours := e.ours // it is replaced, never changed
	e.mu.Unlock()
	return func(address netip.Addr) bool {
		_, node := site.byAddress[address]
		_, our := ours[address]
		return podAddress(address) && !node && !our
	}
}

// peer returns what is known of another node. mu is held.
func (e *Exchange) peer(name string) *peer {
	p := e.peers[name]
	if p == nil {
		p = &peer{}
		e.peers[name] = p
	}
	return p
}

// poke makes Run look at what has changed.
func (e *Exchange) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
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
	e.takeMembers(ctx)
	err := e.keepSession(ctx)
	e.mu.Lock()
	e.err = err
	e.mu.Unlock()
	needed := e.config.Needed()
	if !needed {
		e.forgetWords()
	}
	if e.session != nil {
		e.session.attendAll(needed)
	}
	status := e.Status()
	e.passSilent(ctx, status)
	if err == nil {
		e.passPartners()
	}
}

func (e *Exchange) loadKeys(ctx context.Context) {
	if !e.loaded.IsZero() && time.Since(e.loaded) < keyInterval {
		return
	}
	e.loaded = time.Now()
	changed, err := e.keys.load()
	e.mu.Lock()
	before := e.keyErr
	e.keyErr = err
	e.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case err != nil && before == nil:
		logger.Error(err, "Cannot read the keys of the site exchange", "goingOnWithEarlierOnes", e.keys.keys() != nil)
	case changed:
		logger.Info("Using the keys of the site exchange", "file", e.config.KeyFile, "keys", len(e.keys.keys()))
	}
}

// takeMembers takes the members of the site as they are now.
func (e *Exchange) takeMembers(ctx context.Context) {
	now := newDirectory(e.config.NodeName, e.config.Site.Members())
	if now.equal(e.directory()) {
		return
	}
	e.site.Store(now)
	klog.FromContext(ctx).Info("The site has changed", "nodes", len(now.byName))
	asked := now.asked(e.config.NodeName)
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.peers, func(name string, _ *peer) bool { return asked[name].Name == "" })
}

// keepSession keeps a session for this node's addresses, and returns why there is none.
func (e *Exchange) keepSession(ctx context.Context) error {
	locals, cluster, err := e.place()
	if e.session != nil && (err != nil || !slices.Equal(e.session.locals, locals) || e.session.cluster != cluster) {
		e.close()
		e.listened = time.Time{}
	}
	if err != nil {
		return err
	}
	if !e.listened.IsZero() && time.Since(e.listened) < keyInterval {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.err
	}
	e.listened = time.Now()
	if e.session == nil {
		e.session = newSession(ctx, e, locals, cluster)
	}
	err = e.session.listen()
	if err != nil && len(e.session.listeners) == 0 {
		klog.FromContext(ctx).Error(err, "The site exchange cannot listen", "addresses", locals)
		e.close()
		return err
	}
	return nil
}

// place returns where a session listens, and of which cluster it is.
func (e *Exchange) place() (locals []netip.Addr, cluster string, err error) {
	site := e.directory()
	for _, address := range site.byName[e.config.NodeName].Addresses {
		locals = append(locals, address.Unmap())
	}
	cluster = e.config.Site.Cluster()
	switch {
	case e.keys.keys() == nil && e.keyErr != nil:
		err = fmt.Errorf("%w: %w", ErrNoKey, e.keyErr)
	case e.keys.keys() == nil:
		err = ErrNoKey
	case len(locals) == 0:
		err = ErrNoAddress
	case len(site.byName) > maxMembers:
		err = ErrTooMany
	case cluster == "":
		err = ErrNoCluster
	}
	return locals, cluster, err
}

// close ends the session, if there is one. The neighbours that are connected hear that this wrapper is being stopped.
func (e *Exchange) close() {
	if e.session != nil {
		e.session.close()
		e.session = nil
	}
}

// forgetWords drops all words: when they are needed again they may be old.
func (e *Exchange) forgetWords() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.peers {
		p.word, p.version = nil, version{}
	}
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

// passPartners passes on which nodes take part: those that answer, and those that did, as long as they belong
// to the site.
func (e *Exchange) passPartners() {
	before := e.config.Partners()
	now := make(map[string]struct{})
	asked := e.directory().asked(e.config.NodeName)
	e.mu.Lock()
	for name := range asked {
		p := e.peer(name)
		if _, was := before[name]; p.alive || was {
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
