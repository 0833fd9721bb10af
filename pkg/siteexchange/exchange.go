package siteexchange

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// DefaultPort is the port of the exchange, TCP and UDP. It is none of Kubernetes' own components, of the usual network
// plugins, or of memberlist's other users (7946), and below the ranges of node ports (from 30000) and of the local
// ports that the kernel gives out (from 32768).
const DefaultPort = 17946

const (
	// interval is the time between two looks at what has changed.
	interval = time.Second
	// keyInterval is the time between two looks at the file with the keys, and between two attempts to listen.
	keyInterval = 5 * time.Second
	// firstPause and lastPause are how long a member is left alone after it could not be joined, or has not answered.
	// The pause doubles with every attempt.
	firstPause, lastPause = time.Second, 30 * time.Second
	// firstWord is how long a node that took part before may be unheard after this one has begun to listen.
	firstWord = 30 * time.Second
	// udpPatience is how long a node may take part without sending a packet, and keyPatience how long it is known that
	// one has another key. In a site of 100 nodes each is probed by each other one in 100 s.
	udpPatience, keyPatience = 5 * time.Minute, 2 * time.Minute
	// doubtPause is the time between two doubts of the addresses.
	doubtPause = time.Minute
	// maxJoins, maxChecks and maxQuestions are the most members that are joined, joined because memberlist takes them
	// for dead, or asked, at the same time.
	maxJoins, maxChecks, maxQuestions = 4, 16, 8
	// checkInterval is the time between two attempts to join a member that answers, and that memberlist takes for dead.
	checkInterval = 5 * time.Second
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
	// Asked is called after another node was asked for its pods. err is nil if it has answered.
	Asked(err error)
}

// Config is what an Exchange is made from. All fields but Listen are needed.
type Config struct {
	// NodeName is this node's name.
	NodeName string
	// Port is the port, TCP and UDP, at which all nodes of the site are reached.
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
	// process or an earlier one. One that is not heard soon after the start is silent.
	Partners    func() map[string]struct{}
	SetPartners func(names map[string]struct{})
	// AddressDoubted is called, no more than once a minute, if a node of the site seems to have another address than
	// Site says: if it says so itself, or if something comes from an address that no node has while one is missing.
	AddressDoubted func()
	Observer       Observer
	// Listen is that of the network if nil.
	Listen Listen
}

// Status is what an Exchange knows.
type Status struct {
	// Members is the number of nodes of the site, without this one. Alive and Silent are those of them that take part,
	// and those that did and are not heard any more; both are sorted.
	Members       int
	Alive, Silent []string
	// Words is the number of nodes whose word on their pods is known.
	Words int
	// OtherKey are nodes that have sent something a short time ago which none of the keys opens, WithoutUDP those that
	// take part, and of which no packet comes; both are sorted.
	OtherKey, WithoutUDP []string
	// Unreached is why the first of the nodes that do not take part, by name, was not reached; nil if all were.
	Unreached error
	// unreached is the name of that node. missing is set if a node took part before, and does not now.
	unreached string
	missing   bool
	// KeyErr is why the file with the keys could not be read the last time; nil if it could. Keys from before count.
	KeyErr error
	// Err is why nothing is exchanged; nil if it is.
	Err error
}

// peer is what is known of another node.
type peer struct {
	// alive is memberlist's word. Any node that has the key can make memberlist say that another one is dead. So lost
	// is set then, unless the node has said that its wrapper stops, which sets left; and silent only when the node does
	// not answer this one either. reached is set if it does.
	alive, lost, left bool
	silent, reached   bool
	said              meta
	// joinErr is why the node was not reached the last time.
	joinErr error
	// since is when it began to take part, packet whether a packet of it has come in this session. otherKey is when
	// something came that none of the keys opens.
	since    time.Time
	packet   bool
	otherKey time.Time
	// word is what the node has said of its pods, in this version; nil if that is not known. stale is set if it may
	// have said something else since, and memberlist does not pass that on.
	word    *facts.LivePods
	version version
	stale   bool
	// asking and joining are set while the node is asked, or joined.
	asking, joining bool
	// askPause and joinPause are the pauses after the next failures, askAfter and joinAfter when the next attempts are
	// due.
	askPause, joinPause time.Duration
	askAfter, joinAfter time.Time
}

// takesPart reports whether the node is there.
func (p *peer) takesPart() bool { return p.alive || p.reached }

// Exchange exchanges facts with the other nodes of the site.
type Exchange struct {
	config Config
	keys   *keyFile
	limits *limits
	// run tells this process' words from those of other processes.
	run uint64
	// site is the directory of the members.
	site atomic.Pointer[directory]
	// missing is set while a node that took part before does not.
	missing atomic.Bool
	doubts  *rate.Limiter
	wake    chan struct{}

	// Only the goroutine of Run uses these.

	session *session
	// loaded is when the file with the keys was read last, listened when a session was opened last.
	loaded, listened time.Time
	// given is what SetSilent got last.
	given map[string]struct{}
	// working are the goroutines that join and ask.
	working sync.WaitGroup

	mu sync.Mutex
	// The fields below are guarded by mu. Nothing else is called while it is held.

	leaving bool
	// keyErr is why the file with the keys could not be read the last time. Only the goroutine of Run writes it.
	keyErr error
	// opened is when the session began; the zero time while there is none.
	opened   time.Time
	own      *facts.LivePods
	sequence uint64
	peers    map[string]*peer
	err      error
	// ours are the addresses of this node's own pods.
	ours map[netip.Addr]struct{}
}

// New makes an Exchange, which opens no port before Run.
func New(config Config) *Exchange {
	if config.Listen == nil {
		config.Listen = listenNetwork
	}
	var run [8]byte
	rand.Read(run[:])
	e := &Exchange{
		config: config, keys: newKeyFile(config.KeyFile), limits: newLimits(), run: binary.BigEndian.Uint64(run[:]),
		doubts: rate.NewLimiter(rate.Every(doubtPause), 1),
		wake:   make(chan struct{}, 1), peers: make(map[string]*peer), err: ErrNoKey,
	}
	e.site.Store(newDirectory(nil))
	return e
}

func (e *Exchange) directory() *directory { return e.site.Load() }

// Status returns what the Exchange knows.
func (e *Exchange) Status() Status {
	partners := e.config.Partners()
	e.mu.Lock()
	defer e.mu.Unlock()
	s := Status{Err: e.err, KeyErr: e.keyErr}
	late := !e.opened.IsZero() && time.Since(e.opened) >= firstWord
	for name := range e.directory().byName {
		if name == e.config.NodeName {
			continue
		}
		s.Members++
		p := e.peers[name]
		_, partner := partners[name]
		switch {
		case p != nil && p.takesPart():
			s.Alive = append(s.Alive, name)
		case p != nil && p.silent, late && partner && (p == nil || !p.left && !p.lost):
			s.Silent = append(s.Silent, name)
			s.missing = true
		case p != nil && p.left:
			s.missing = true
		}
		if p != nil {
			s.add(name, p)
		}
	}
	slices.Sort(s.Alive)
	slices.Sort(s.Silent)
	slices.Sort(s.OtherKey)
	slices.Sort(s.WithoutUDP)
	return s
}

// add adds what is known of a node.
func (s *Status) add(name string, p *peer) {
	if p.word != nil {
		s.Words++
	}
	if !p.otherKey.IsZero() && time.Since(p.otherKey) < keyPatience {
		s.OtherKey = append(s.OtherKey, name)
	}
	switch {
	case !p.takesPart() && p.joinErr != nil && (s.Unreached == nil || name < s.unreached):
		s.Unreached, s.unreached = p.joinErr, name
	case !p.takesPart():
	case !p.packet && time.Since(p.since) >= udpPatience:
		s.WithoutUDP = append(s.WithoutUDP, name)
	}
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

// Wanted reports whether a node of the site lacks its upstream, so that it needs to know this node's pods.
func (e *Exchange) Wanted() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.directory().byName {
		if p := e.peers[name]; p != nil && p.takesPart() && p.said.flags&flagAway != 0 {
			return true
		}
	}
	return false
}

// Share takes the pods of this node, which the others may ask for; nil if they are not known any more. They must not be
// changed afterwards.
func (e *Exchange) Share(own *facts.LivePods) {
	e.mu.Lock()
	defer e.mu.Unlock()
	changed := !sameWord(own, e.own)
	e.own = own
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
	e.poke()
}

// ownWord returns the pods of this node, and the version of that word; nil if they are not known.
func (e *Exchange) ownWord() (*facts.LivePods, version) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.own, version{e.run, e.sequence}
}

// meta returns what memberlist says of this node.
func (e *Exchange) meta() meta {
	needed := e.config.Needed()
	e.mu.Lock()
	defer e.mu.Unlock()
	m := meta{version: version{e.run, e.sequence}}
	if needed {
		m.flags |= flagAway
	}
	if e.leaving {
		m.flags |= flagLeaving
	}
	if e.own != nil {
		m.flags |= flagPods
	}
	return m
}

// poke makes Run look at what has changed.
func (e *Exchange) poke() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// admit reports whether a packet or a connection from an address is taken.
func (e *Exchange) admit(from netip.Addr) bool {
	member := e.member(from)
	if !member {
		e.config.Observer.Ignored(reasonStranger)
		if e.missing.Load() {
			e.doubtAddresses()
		}
	}
	return member
}

func (e *Exchange) doubtAddresses() {
	if e.doubts.Allow() {
		e.config.AddressDoubted()
	}
}

// member reports whether a node of the site has an address, and no other one has it too.
func (e *Exchange) member(address netip.Addr) bool {
	_, member := e.directory().byAddress[address]
	return member
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

// inspected notes what came from the address of a node: nil if it was opened and passed on, or why it was not. Packets
// may come from others in the name of that address.
func (e *Exchange) inspected(from netip.Addr, network string, refused *ignoredError) {
	if refused != nil {
		e.config.Observer.Ignored(refused.reason)
	}
	name, member := e.directory().byAddress[from]
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.peers[name]
	switch {
	case !member || p == nil:
	case refused != nil && refused.reason == reasonKey:
		p.otherKey = time.Now()
	case refused == nil && network == networkUDP:
		p.packet = true
	}
}

// heard takes what memberlist says of another node.
func (e *Exchange) heard(name string, said meta, alive bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, member := e.directory().byName[name]
	if !member && e.peers[name] == nil {
		return // it did belong to the site, and memberlist still says how it is
	}
	p := e.peer(name)
	if alive && !p.takesPart() {
		p.since = time.Now()
	}
	p.alive, p.said = alive, said
	p.left = !alive && said.flags&flagLeaving != 0
	p.lost = !alive && !p.left && member
	p.silent, p.reached = false, false
	p.joinPause, p.joinAfter = 0, time.Time{}
	e.poke()
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

// begin notes that a session begins.
func (e *Exchange) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leaving, e.opened = false, time.Now()
}

// end notes that the session has ended: what memberlist has said does not count any more.
func (e *Exchange) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.peers {
		p.alive, p.lost, p.left, p.silent, p.reached, p.packet = false, false, false, false, false, false
		p.joinPause, p.joinAfter = 0, time.Time{}
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
			e.close(ctx)
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
	if err == nil {
		e.session.update()
		e.joinMissing(ctx)
	}
	e.askPeers(ctx)
	status := e.Status()
	e.missing.Store(status.missing)
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
		logger.Info("Using the keys of the site exchange", "file", e.config.KeyFile, "keys", len(e.keys.keys().words))
	}
}

// takeMembers takes the members of the site as they are now.
func (e *Exchange) takeMembers(ctx context.Context) {
	now := newDirectory(e.config.Site.Members())
	if now.equal(e.directory()) {
		return
	}
	e.site.Store(now)
	e.limits.keep(now.byAddress)
	klog.FromContext(ctx).Info("The site has changed", "nodes", len(now.byName))
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, p := range e.peers {
		if _, member := now.byName[name]; member {
			continue
		}
		p.word, p.version, p.lost, p.silent, p.reached = nil, version{}, false, false, false
		// One that is asked or joined just now is forgotten when the site changes next. So is one that memberlist takes
		// for alive: if it comes back before it is dead, memberlist does not say so again.
		if !p.alive && !p.asking && !p.joining {
			delete(e.peers, name)
		}
	}
}

// keepSession keeps a session for this node's address, and returns why there is none.
func (e *Exchange) keepSession(ctx context.Context) error {
	local, label, err := e.place()
	if e.session != nil && (err != nil || e.session.local != local || e.session.label != label) {
		e.close(ctx)
		e.listened = time.Time{}
	}
	if err != nil || e.session != nil {
		return err
	}
	if !e.listened.IsZero() && time.Since(e.listened) < keyInterval {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.err
	}
	e.listened = time.Now()
	if e.session, err = e.open(ctx, local, label); err != nil {
		klog.FromContext(ctx).Error(err, "The site exchange cannot listen", "address", local.String())
		return err
	}
	klog.FromContext(ctx).Info("The site exchange listens", "address", local.String())
	return nil
}

// place returns where a session listens, and its label.
func (e *Exchange) place() (local netip.AddrPort, label string, err error) {
	site := e.directory()
	own := site.byName[e.config.NodeName]
	cluster := e.config.Site.Cluster()
	switch {
	case e.keys.keys() == nil:
		if e.keyErr != nil {
			return netip.AddrPort{}, "", fmt.Errorf("%w: %w", ErrNoKey, e.keyErr)
		}
		return netip.AddrPort{}, "", ErrNoKey
	case len(own.Addresses) == 0:
		return netip.AddrPort{}, "", ErrNoAddress
	case len(site.byName) > maxMembers:
		return netip.AddrPort{}, "", ErrTooMany
	case cluster == "":
		return netip.AddrPort{}, "", ErrNoCluster
	}
	return netip.AddrPortFrom(own.Addresses[0].Unmap(), e.config.Port), labelOf(cluster), nil
}

// labelOf returns the label of a cluster. It is in every packet, so it is short.
func labelOf(cluster string) string {
	sum := sha256.Sum256([]byte(cluster))
	return "grid-" + hex.EncodeToString(sum[:8])
}

// close closes the session, if there is one.
func (e *Exchange) close(ctx context.Context) {
	if e.session == nil {
		return
	}
	e.mu.Lock()
	e.leaving, e.opened = true, time.Time{}
	e.mu.Unlock()
	if err := e.session.close(); err != nil {
		klog.FromContext(ctx).Error(err, "Ending the site exchange")
	}
	e.working.Wait()
	e.session = nil
	e.end()
}

// attempt is one of Join and ask with a member.
type attempt struct {
	member Member
	peer   *peer
}

// due returns members that are to be joined or asked now, in random order, so that no more than most are busy at the
// same time. busy and wants are called with mu held.
func (e *Exchange) due(most int, busy func(*peer) bool, wants func(*peer) bool) []attempt {
	site := e.directory()
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []attempt
	for name, m := range site.byName {
		if name == e.config.NodeName {
			continue
		}
		p := e.peer(name)
		switch {
		case busy(p):
			most--
		case wants(p):
			all = append(all, attempt{m, p})
		}
	}
	//nolint:gosec // it spreads attempts
	mathrand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:max(min(most, len(all)), 0)]
}

// pause returns when an attempt that has failed is due again, and the pause after the next failure.
func pause(last time.Duration) (after time.Time, next time.Duration) {
	next = min(max(2*last, firstPause), lastPause)
	return time.Now().Add(next/2 + mathrand.N(next/2)), next //nolint:gosec // it spreads attempts
}

// joinMissing joins members that memberlist does not know, or has given up: it never tries those again itself. Those
// that it has just given up come first.
func (e *Exchange) joinMissing(ctx context.Context) {
	now := time.Now()
	isDue := func(p *peer) bool { return !p.alive && !now.Before(p.joinAfter) }
	e.join(ctx, maxChecks, func(p *peer) bool { return p.lost && !p.silent && isDue(p) })
	e.join(ctx, maxJoins, isDue)
}

// join joins members, so that no more than most are joined at the same time. wants is called with mu held.
func (e *Exchange) join(ctx context.Context, most int, wants func(*peer) bool) {
	s := e.session
	for _, a := range e.due(most, func(p *peer) bool { return p.joining }, wants) {
		e.mu.Lock()
		a.peer.joining = true
		wasLost := a.peer.lost
		e.mu.Unlock()
		e.working.Go(func() {
			err := s.join(a.member)
			if err != nil {
				klog.FromContext(ctx).V(4).Info("A node of the site does not take part", "node", a.member.Name,
					"err", err)
			}
			e.mu.Lock()
			defer e.mu.Unlock()
			a.peer.joining, a.peer.joinErr = false, err
			a.peer.joinAfter, a.peer.joinPause = pause(a.peer.joinPause)
			if !wasLost || !a.peer.lost {
				return
			}
			a.peer.reached, a.peer.silent = err == nil, err != nil
			if err == nil {
				a.peer.joinAfter, a.peer.joinPause = time.Now().Add(checkInterval), 0
				a.peer.stale = true
			}
			e.poke()
		})
	}
}

// askPeers asks the neighbours for their pods if that is needed, and if they have something new to say.
func (e *Exchange) askPeers(ctx context.Context) {
	if !e.config.Needed() || e.session == nil {
		e.forgetWords()
		return
	}
	now, s := time.Now(), e.session
	news := e.due(maxQuestions, func(p *peer) bool { return p.asking }, func(p *peer) bool {
		return p.takesPart() && p.said.flags&flagPods != 0 && !now.Before(p.askAfter) &&
			(p.word == nil || p.stale || !p.version.covers(p.said.version))
	})
	for _, a := range news {
		e.mu.Lock()
		a.peer.asking = true
		e.mu.Unlock()
		e.working.Go(func() {
			word, v, err := s.ask(a.member)
			e.take(ctx, a, word, v, err)
		})
	}
}

// take takes the answer of a neighbour.
func (e *Exchange) take(ctx context.Context, a attempt, word *facts.LivePods, v version, err error) {
	e.mu.Lock()
	a.peer.asking = false
	if err == nil && a.peer.word != nil && v.run == a.peer.version.run && v.sequence < a.peer.version.sequence {
		err = ignore(reasonOld, "the answer of node %s is older than the one before", a.member.Name)
	}
	if err == nil {
		a.peer.word, a.peer.version, a.peer.stale = word, v, false
		a.peer.askPause, a.peer.askAfter = 0, time.Now().Add(firstPause)
	} else {
		a.peer.askAfter, a.peer.askPause = pause(a.peer.askPause)
	}
	e.mu.Unlock()
	e.poke()
	var ignored *ignoredError
	if errors.As(err, &ignored) {
		e.config.Observer.Ignored(ignored.reason)
	}
	e.config.Observer.Asked(err)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("A node of the site does not say which pods it runs", "node", a.member.Name,
			"err", err)
	}
}

// forgetWords drops all words: when they are needed again they may be old.
func (e *Exchange) forgetWords() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.peers {
		p.word, p.version = nil, version{}
		p.askPause, p.askAfter = 0, time.Time{}
	}
}

// passSilent passes on which neighbours are silent. If all are, this node may be the one that is cut off.
func (e *Exchange) passSilent(ctx context.Context, status Status) {
	silent := make(map[string]struct{})
	if e.config.Away() && len(status.Alive) > 0 && status.Err == nil {
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

// passPartners passes on which nodes take part: those that are heard, and those that were and have not said that they
// stop, as long as they belong to the site.
func (e *Exchange) passPartners() {
	before := e.config.Partners()
	now := make(map[string]struct{})
	site := e.directory()
	e.mu.Lock()
	for name := range site.byName {
		p := e.peers[name]
		_, was := before[name]
		if name != e.config.NodeName && (p != nil && p.takesPart() || was && (p == nil || !p.left)) {
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
