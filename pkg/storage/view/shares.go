package view

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// SharesOptions configure Shares.
type SharesOptions struct {
	// Facts have all Node objects in InputNode.
	Facts *facts.Facts
	// Idle is how long a node is remembered that nobody asks for; 0 means DefaultShareIdle.
	Idle time.Duration
	// Clock is time.Now if nil.
	Clock  func() time.Time
	Logger logr.Logger
}

// DefaultShareIdle is longer than a wrapper takes between two attempts.
const DefaultShareIdle = 15 * time.Minute

// Shares has the share of every node that somebody asks for. A share is what a View of that node needs to show what it
// shows of everything, but for slices without endpoints:
//
//   - all Services, which are the same for all nodes and have one History;
//   - the slices of governed Services with the endpoints that any of the Service's keys matches, without those that
//     have none; other slices whole; and the nodes, by their labels and addresses, on which the former have endpoints.
//     All nodes with the same values of all keys in use are one class and have one History of these. It also has those
//     nodes of the class that somebody asked for;
//   - the node's own Node object, whole, which has a History for each node.
//
// A step of the facts is published to the classes that it touches: those whose share has a slice, or is to have it.
//
// Each History gives out revisions with a mark of its own (history.Marks), so a client whose node comes into another
// class, or that another process answered before, lists again.
type Shares struct {
	options SharesOptions
	facts   *facts.Facts
	marks   *history.Marks
	json    *history.JSONCache

	// mu guards what follows. It is taken after the lock of the facts, never before.
	mu sync.Mutex
	// open is set once the facts are complete. Before that there is nothing to share.
	open     bool
	services *history.History
	members  map[string]*classMember
	classes  map[string]*share
	// byValue leads from a value of a key to the classes that have it.
	byValue map[keyValue]map[*share]struct{}
	// holders leads from a slice of a governed Service to the classes whose share has it, naming from a node to the
	// classes whose share names it.
	holders map[*facts.Object]map[*share]struct{}
	naming  map[string]map[*share]struct{}
	// everywhere are the slices that are in every share.
	everywhere map[*facts.Object]struct{}
	// keys are those of every Service that is known, as of the last step.
	keys map[types.NamespacedName]topology.Keys
	// nodes are versions of nodes as shares have them, as far as one needed them since they changed.
	nodes map[string]*history.Version
	// slices are those of governed Services as of the last step, from which all shares were made.
	slices map[*facts.Object]encodedSlice
	// cuts are the slices that were taken apart in the step under way: each is, once for all classes.
	cuts map[*facts.Object]*cut
}

// encodedSlice has the Meta and the Body of a slice.
type encodedSlice struct{ meta, body []byte }

type keyValue struct{ key, value string }

// classMember is a node that somebody asked for.
type classMember struct {
	node string
	// class is nil until its slices are asked for, and from when it left its class until they are asked for again.
	class *share
	// own has the node's own object; nil until it is asked for.
	own *history.History
	// users counts the requests under way, used is when the last one ended.
	users int
	used  time.Time
	// leave has what is to be called when the node leaves its class.
	leave map[*func()]struct{}
}

// NewShares makes Shares, which follow the facts.
func NewShares(options SharesOptions) *Shares {
	if options.Idle == 0 {
		options.Idle = DefaultShareIdle
	}
	if options.Clock == nil {
		options.Clock = time.Now
	}
	if options.Logger.GetSink() == nil {
		options.Logger = logr.Discard()
	}
	s := &Shares{
		options: options, facts: options.Facts, marks: history.NewMarks(), json: history.NewJSONCache(0),
		members: make(map[string]*classMember), classes: make(map[string]*share),
		byValue:    make(map[keyValue]map[*share]struct{}),
		holders:    make(map[*facts.Object]map[*share]struct{}),
		naming:     make(map[string]map[*share]struct{}),
		everywhere: make(map[*facts.Object]struct{}), keys: make(map[types.NamespacedName]topology.Keys),
		nodes:  make(map[string]*history.Version),
		slices: make(map[*facts.Object]encodedSlice),
		cuts:   make(map[*facts.Object]*cut),
	}
	s.services = s.newHistory()
	s.facts.Attach(s, s.openIfComplete)
	return s
}

func (s *Shares) newHistory() *history.History {
	return history.New(history.Options{Revisions: s.marks.Revisions(s.options.Clock()), JSON: s.json})
}

// Services is what the Services are served from, to all nodes. Nothing of it can be read before the facts are complete.
func (s *Shares) Services() *history.History { return s.services }

// Class is what a node's slices, and the nodes that they name, are served from, for one request. release is to be
// called when the request ends. left is called, at most once, when the node comes into another class, and the request
// is to end then: what it is answered from is not the node's share any more. left must not block. Error:
// history.ErrNotReady.
func (s *Shares) Class(node string, left func()) (h *history.History, release func(), err error) {
	err = s.request(node, func(m *classMember) {
		if m.class == nil {
			s.join(m)
		}
		m.leave[&left] = struct{}{}
		h = m.class.history
		release = func() { s.release(m, &left) }
	})
	return h, release, err
}

// Own is what a node's own object is served from, for one request. release is to be called when the request ends.
// Error: history.ErrNotReady.
func (s *Shares) Own(node string) (h *history.History, release func(), err error) {
	err = s.request(node, func(m *classMember) {
		if m.own == nil {
			m.own = s.newHistory()
			s.publishOwn(m, time.Time{})
			m.own.Update(time.Time{}, func(u *history.Update) { u.SetState(history.Nodes, history.Ready) })
		}
		h = m.own
		release = func() { s.release(m, nil) }
	})
	return h, release, err
}

// request counts a request of a node in, and calls answer with both locks held. Error: history.ErrNotReady.
func (s *Shares) request(node string, answer func(*classMember)) (err error) {
	s.facts.Read(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.open {
			err = history.ErrNotReady
			return
		}
		answer(s.enter(node))
	})
	return err
}

// Run forgets nodes that nobody asks for, and classes without any node, until ctx is done.
func (s *Shares) Run(ctx context.Context) {
	ticker := time.NewTicker(s.options.Idle / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			s.forgetIdle()
		}
	}
}

// SharesStats are figures of Shares.
type SharesStats struct {
	// Open is set once there is something to share.
	Open bool
	// Nodes is how many somebody asks for, or asked for lately; Classes is how many classes they are in.
	Nodes, Classes int
}

// Stats are the figures of now.
func (s *Shares) Stats() SharesStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return SharesStats{Open: s.open, Nodes: len(s.members), Classes: len(s.classes)}
}

// enter counts a request in. It is called with the lock held, as are all below but release, forgetIdle and
// FactsChanged.
func (s *Shares) enter(node string) *classMember {
	m := s.members[node]
	if m == nil {
		m = &classMember{node: node, leave: make(map[*func()]struct{})}
		s.members[node] = m
	}
	m.users++
	return m
}

func (s *Shares) release(m *classMember, left *func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(m.leave, left)
	m.users--
	m.used = s.options.Clock()
}

// forgetIdle forgets the nodes that nobody has asked for since long.
func (s *Shares) forgetIdle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Clock()
	for name, m := range s.members {
		if m.users > 0 || now.Sub(m.used) < s.options.Idle {
			continue
		}
		delete(s.members, name)
		if m.own != nil {
			m.own.Close()
		}
		c := m.class
		if c == nil {
			continue
		}
		s.part(m)
		if len(c.members) > 0 && c.named[name] == 0 {
			c.history.Update(time.Time{}, func(u *history.Update) {
				u.Remove(history.Nodes, types.NamespacedName{Name: name})
			})
		}
	}
}

// join brings a node into its class, which is made if nobody is in it.
func (s *Shares) join(m *classMember) {
	here := valuesOf(s.facts, m.node)
	c := s.classes[className(here)]
	var changed map[*facts.Object]struct{}
	made := c == nil
	if made {
		c = &share{
			name: className(here), here: here, history: s.newHistory(),
			members:  make(map[string]*classMember),
			governed: make(map[*facts.Object][]string),
			named:    make(map[string]int),
		}
		s.classes[c.name] = c
		s.indexValues(c, here, true)
		changed = s.contents(here)
	}
	m.class, c.members[m.node] = c, m
	c.mention(s, m.node, 1, nil)
	c.publish(s, time.Time{}, changed, map[string]struct{}{m.node: {}})
	clear(s.cuts)
	if made {
		c.history.Update(time.Time{}, func(u *history.Update) {
			u.SetState(history.EndpointSlices, history.Ready)
			u.SetState(history.Nodes, history.Ready)
		})
	}
}

// contents are the slices that may be in the share of a class: those that are everywhere, and those with endpoints on
// nodes with one of the values.
func (s *Shares) contents(here topology.Labels) map[*facts.Object]struct{} {
	found := maps.Clone(s.everywhere)
	s.facts.Nodes(func(n *facts.Node) {
		for key, value := range here {
			if !matches(n.Labels, key, value) {
				continue
			}
			for _, o := range n.Objects() {
				if o.Resource() == history.EndpointSlices {
					found[o] = struct{}{}
				}
			}
			return
		}
	})
	return found
}

// part takes a node out of its class, ends the requests that are answered from it, and closes the class if the node was
// the last one. What the class has of the node is up to the caller.
func (s *Shares) part(m *classMember) {
	c := m.class
	m.class = nil
	for left := range m.leave {
		(*left)()
	}
	clear(m.leave)
	delete(c.members, m.node)
	c.mention(s, m.node, -1, nil)
	if len(c.members) > 0 {
		return
	}
	c.history.Close()
	delete(s.classes, c.name)
	s.indexValues(c, c.here, false)
	for o := range c.governed {
		index(s.holders, o, c, false)
	}
	for name := range c.named {
		index(s.naming, name, c, false)
	}
}

// indexValues notes whether a class has these values.
func (s *Shares) indexValues(c *share, values topology.Labels, has bool) {
	for key, value := range values {
		index(s.byValue, keyValue{key, value}, c, has)
	}
}

// index notes whether a class is among those that a key leads to.
func index[K comparable](of map[K]map[*share]struct{}, key K, c *share, has bool) {
	if has {
		if of[key] == nil {
			of[key] = make(map[*share]struct{}, 1)
		}
		of[key][c] = struct{}{}
		return
	}
	if delete(of[key], c); len(of[key]) == 0 {
		delete(of, key)
	}
}

// node is a node as shares have it; nil if it is not known.
func (s *Shares) node(name string) *history.Version {
	n := s.facts.Node(name)
	if n == nil {
		return nil
	}
	if s.nodes[name] == nil {
		version, err := nodeInShares(n, s.facts.NodeObjects()[types.NamespacedName{Name: name}])
		if err != nil {
			s.options.Logger.Error(err, "Cannot read a node, sharing it without its addresses", "node", name)
			if version, err = nodeInShares(n, nil); err != nil {
				return nil
			}
		}
		s.nodes[name] = version
	}
	return s.nodes[name]
}

// publishOwn shows a node its own object.
func (s *Shares) publishOwn(m *classMember, received time.Time) {
	name := types.NamespacedName{Name: m.node}
	one := shown{resource: history.Nodes, key: name}
	if o := s.facts.NodeObjects()[name]; o != nil {
		one.version = s.version(history.Nodes, o)
	}
	m.own.Update(received, func(u *history.Update) { show(u, []shown{one}) })
}

func (s *Shares) version(r *history.Resource, o *wire.Object) *history.Version {
	version, err := history.NewVersion(r, o, o.Body)
	if err != nil {
		s.options.Logger.Error(err, "Cannot read an object, serving it without its fields",
			"resource", r.Resource, "namespace", o.Namespace, "name", o.Name)
	}
	return &version
}

// openIfComplete begins to share once the facts are complete. It is called within a step of the facts.
func (s *Shares) openIfComplete() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open || s.facts.State(history.EndpointSlices) != history.Ready ||
		s.facts.State(history.Nodes) != history.Ready {
		return
	}
	s.open = true
	s.facts.Objects(history.EndpointSlices, func(o *facts.Object) {
		if inEveryShare(o) {
			s.everywhere[o] = struct{}{}
		} else {
			s.slices[o] = encodedSlice{o.Upstream.Meta, o.Upstream.Body}
		}
	})
	var all []shown
	s.facts.Services(func(service *facts.Service) {
		s.keys[service.Name] = service.Keys
		all = append(all, shown{history.Services, service.Name, s.version(history.Services, service.Upstream)})
	})
	slices.SortFunc(all, func(a, b shown) int {
		return cmp.Or(cmp.Compare(a.key.Namespace, b.key.Namespace), cmp.Compare(a.key.Name, b.key.Name))
	})
	s.services.Update(time.Time{}, func(u *history.Update) {
		show(u, all)
		u.SetState(history.Services, history.Ready)
	})
}

// FactsChanged implements facts.Watcher.
func (s *Shares) FactsChanged(c *facts.Change) {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	if !open {
		s.openIfComplete()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publishServices(c)
	nodes := s.changedNodes(c)
	work := make(shareWork)
	// What is in which share follows from the classes as they are after the step.
	s.reclassify(c, work)
	for o, before := range s.changedSlices(c) {
		for class := range s.classesOf(o, before) {
			add(&work.of(class).slices, o)
		}
	}
	for name := range nodes {
		for class := range s.naming[name] {
			add(&work.of(class).nodes, name)
		}
	}
	for class, changed := range work {
		class.publish(s, c.Received, changed.slices, changed.nodes)
	}
	for name := range c.Nodes {
		if m := s.members[name.Name]; m != nil && m.own != nil {
			s.publishOwn(m, c.Received)
		}
	}
	clear(s.cuts)
}

// shareWork is what a step has to publish, by class.
type shareWork map[*share]*shareChange

type shareChange struct {
	slices map[*facts.Object]struct{}
	nodes  map[string]struct{}
}

func (w shareWork) of(class *share) *shareChange {
	if w[class] == nil {
		w[class] = &shareChange{}
	}
	return w[class]
}

// add enters a member of a set that may be nil.
func add[K comparable](set *map[K]struct{}, member K) {
	if *set == nil {
		*set = make(map[K]struct{})
	}
	(*set)[member] = struct{}{}
}

func (s *Shares) publishServices(c *facts.Change) {
	if len(c.Services) == 0 {
		return
	}
	all := make([]shown, 0, len(c.Services))
	for _, name := range sortedNames(c.Services) {
		one := shown{resource: history.Services, key: name}
		if service := s.facts.Service(name); service != nil && service.Upstream != nil {
			one.version = s.version(history.Services, service.Upstream)
		}
		all = append(all, one)
	}
	s.services.Update(c.Received, func(u *history.Update) { show(u, all) })
}

// changedNodes are the nodes that shares may have otherwise after a step.
func (s *Shares) changedNodes(c *facts.Change) map[string]struct{} {
	changed := make(map[string]struct{}, len(c.Nodes)+len(c.Relabelled))
	for name := range c.Nodes {
		changed[name.Name] = struct{}{}
	}
	for n := range c.Relabelled {
		changed[n.Name] = struct{}{}
	}
	for name := range changed {
		delete(s.nodes, name)
	}
	return changed
}

// changedSlices are the slices that some share may have otherwise after a step, because of the slices themselves, the
// keys of their Services, or the labels of the nodes that they name. Each leads to what it was before, if nothing but
// the slice itself changed; else to the zero value.
func (s *Shares) changedSlices(c *facts.Change) map[*facts.Object]encodedSlice {
	changed := make(map[*facts.Object]encodedSlice, len(c.Objects))
	for o := range c.Objects {
		if o.Resource() != history.EndpointSlices {
			continue
		}
		changed[o] = encodedSlice{}
		if len(c.Relabelled) == 0 && !c.Keys {
			changed[o] = s.slices[o]
		}
	}
	for service := range c.Governed {
		before, known := s.keys[service.Name]
		if service.Upstream == nil {
			delete(s.keys, service.Name)
		} else {
			s.keys[service.Name] = service.Keys
		}
		if known && service.Upstream != nil && slices.Equal(before, service.Keys) {
			continue // other endpoints are ready, which is the nodes' business
		}
		for _, o := range service.Objects(history.EndpointSlices) {
			changed[o] = encodedSlice{}
		}
	}
	for n, before := range c.Relabelled {
		for _, key := range changedKeys(before, n.Labels) {
			for _, o := range n.Objects() {
				if o.Resource() == history.EndpointSlices && o.Service != nil && slices.Contains(o.Service.Keys, key) {
					changed[o] = encodedSlice{}
				}
			}
		}
	}
	return changed
}

// classesOf are the classes whose share changes with a slice. before is what the slice was, as changedSlices says.
func (s *Shares) classesOf(o *facts.Object, before encodedSlice) map[*share]struct{} {
	_, was := s.everywhere[o]
	is := inEveryShare(o)
	if is {
		s.everywhere[o] = struct{}{}
	} else {
		delete(s.everywhere, o)
	}
	if is || o.Gone {
		delete(s.slices, o)
	} else {
		s.slices[o] = encodedSlice{o.Upstream.Meta, o.Upstream.Body}
	}
	classes := make(map[*share]struct{})
	switch {
	case was || is:
		for _, class := range s.classes {
			classes[class] = struct{}{}
		}
		return classes
	case o.Gone:
		maps.Copy(classes, s.holders[o])
		return classes
	}
	after := s.cutOf(o)
	if before.body != nil && wire.SameMeta(before.meta, o.Upstream.Meta) {
		// Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
		if earlier := split(s.facts, before.body); earlier.SameOthers(after.Parts) {
			beginning, end := earlier.Differing(after.Parts)
			s.addClasses(classes, o.Service.Keys, earlier, beginning, end)
			s.addClasses(classes, o.Service.Keys, after, beginning, end)
			return classes
		}
	}
	maps.Copy(classes, s.holders[o])
	s.addClasses(classes, o.Service.Keys, after, 0, 0)
	return classes
}

// addClasses adds the classes that have endpoints of a slice with these keys, without so many endpoints at the
// beginning and the end.
func (s *Shares) addClasses(classes map[*share]struct{}, keys topology.Keys, of *cut, beginning, end int) {
	for place := beginning; place < len(of.nodes)-end; place++ {
		labels := of.labels(place)
		for _, key := range keys {
			if value, ok := labels[key]; ok {
				maps.Copy(classes, s.byValue[keyValue{key, value}])
			}
		}
	}
}

// cutOf is a slice taken apart.
func (s *Shares) cutOf(o *facts.Object) *cut {
	if s.cuts[o] == nil {
		s.cuts[o] = split(s.facts, o.Upstream.Body)
	}
	return s.cuts[o]
}

// reclassify moves nodes whose values of the keys in use are others after a step. As long as the nodes of a class stay
// together, the class takes the new values, and its clients see what changes. A node that goes elsewhere leaves.
func (s *Shares) reclassify(c *facts.Change, work shareWork) {
	affected := make(map[*share]struct{})
	if c.Keys {
		affected = setOf(slices.Collect(maps.Values(s.classes)))
	}
	for n := range c.Relabelled {
		if m := s.members[n.Name]; m != nil && m.class != nil {
			affected[m.class] = struct{}{}
		}
	}
	inOrder := slices.SortedFunc(maps.Keys(affected), func(a, b *share) int { return cmp.Compare(a.name, b.name) })
	for _, class := range inOrder {
		names, values := make(map[string]string, len(class.members)), make(map[string]topology.Labels)
		for node := range class.members {
			here := valuesOf(s.facts, node)
			names[node] = className(here)
			values[names[node]] = here
		}
		next := class.next(names)
		taken := next != class.name && s.classes[next] != nil
		for node, m := range maps.Clone(class.members) {
			if taken || names[node] != next {
				s.part(m)
				add(&work.of(class).nodes, node)
			}
		}
		if len(class.members) == 0 {
			delete(work, class)
			continue
		}
		s.rename(class, values[next], work)
	}
}

// next is the name that a class is to have when its members belong to the classes of these names: its own if any of
// them stays, else that of most of them.
func (s *share) next(names map[string]string) string {
	votes := make(map[string]int)
	for _, name := range names {
		votes[name]++
	}
	if votes[s.name] > 0 {
		return s.name
	}
	return slices.MaxFunc(slices.Sorted(maps.Keys(votes)), func(a, b string) int {
		return cmp.Compare(votes[a], votes[b])
	})
}

// rename gives a class other values, and notes the slices that they govern.
func (s *Shares) rename(class *share, here topology.Labels, work shareWork) {
	changed := changedKeys(class.here, here)
	if len(changed) == 0 {
		return
	}
	delete(s.classes, class.name)
	s.indexValues(class, class.here, false)
	class.name, class.here = className(here), here
	s.classes[class.name] = class
	s.indexValues(class, here, true)
	for _, key := range changed {
		for service := range s.facts.GovernedBy(key) {
			for _, o := range service.Objects(history.EndpointSlices) {
				add(&work.of(class).slices, o)
			}
		}
	}
}
