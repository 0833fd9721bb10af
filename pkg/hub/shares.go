package hub

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// shares has the share of every node, and the streams of those that follow theirs.
//
// A share is a function of the facts and of the node. It is the sum of the common class, which every node has, of one
// class for each set of keys that Services have, and of the node itself. So nodes with the same values of a set of keys
// have that part in common, whatever other keys there are. A class has digests and no objects: what it has follows from
// the facts, and what a change makes of it from the facts before and after the change.
//
// A step of the facts is one step of every stream that it touches. What the classes of a stream have to say is encoded
// once for all their streams. A stream whose node was relabelled gets the buckets whose digests differ, whole.
type shares struct {
	facts  *facts.Facts
	logger logr.Logger
	budget budget
	json   *history.JSONCache

	// mu guards what follows, and what is reachable from it. It is taken after the lock of the facts, never before.
	mu sync.Mutex
	// open is set once the facts are complete. Before that there is nothing to share.
	open bool
	// version has the resourceVersions of the last changes; progress is at least that, and goes on without changes.
	version, progress hubv1alpha1.Version
	// arriving and passing are what version and progress will be when the facts have it; 0 for no change.
	arriving, passing hubv1alpha1.Version
	// progressed is closed, and replaced, when progress changes.
	progressed chan struct{}

	common class
	// buckets have the objects of the common class.
	buckets  [hubv1alpha1.Buckets]bucket
	sets     map[string]*keySet
	services map[types.NamespacedName]*service
	slices   map[*facts.Object]*placed
	nodes    map[string]*node
	// nodesWith has the nodes with a value of a key in use.
	nodesWith map[keyValue]map[string]*facts.Node
	keys      map[string]struct{}
	// naming leads from a node to the classes whose slices name it.
	naming  map[string]map[*class]struct{}
	streams map[string]map[*stream]struct{}
	// owns has the nodes' own objects that came, and are not published yet; nil for one that went.
	owns map[string]*wire.Object
	// ended counts the streams that were ended because they were behind.
	ended int
	// splits has the slices that were taken apart in the step under way.
	splits map[*byte]*wire.Parts
}

// maxSets is the most sets of keys that have classes of their own. Services with others are in one set, in which every
// node is a class.
const maxSets = 16

// restSet is the name of the set of Services that have no set of their own.
const restSet = "*"

// keySet is a set of topology keys that Services have together.
type keySet struct {
	keys     map[string]int // how many Services have the key
	perNode  bool
	services int
	classes  map[string]*class
	// byValue has the classes with a value of a key, unless perNode is set.
	byValue map[keyValue]map[*class]struct{}
}

type keyValue struct{ key, value string }

// class is what the nodes with the same values of a set of keys have in common of slices, and of the labels of nodes.
type class struct {
	set  *keySet
	name string
	// here are the values.
	here    topology.Labels
	digests map[uint8]uint64
	// named counts the slices that name a node.
	named   map[string]int
	streams map[*stream]struct{}
	// content is what the class has, encoded, since it last changed; nil if nobody asked for it.
	content *chunk
}

// bucket has objects of the common class.
type bucket struct {
	objects map[objectName]*object
	// content is all of them, encoded; nil if nobody asked since they last changed.
	content *chunk
}

// service is a Service as of the last step.
type service struct {
	keys topology.Keys
	set  *keySet
}

// placed is a slice as of the last step.
type placed struct {
	upstream *wire.Object
	keys     topology.Keys
	// everywhere is set if the slice is in every share, set if its endpoints are in the shares of some.
	everywhere bool
	set        *keySet
}

// node is a known node as of the last step.
type node struct {
	labels *object
	// own is the node's own object, encoded, and ownDigest its digest.
	own       *chunk
	ownDigest uint64
}

func newShares(f *facts.Facts, maxQueued int, logger logr.Logger) *shares {
	s := &shares{
		facts: f, logger: logger, json: history.NewJSONCache(0), progressed: make(chan struct{}),
		sets: make(map[string]*keySet), services: make(map[types.NamespacedName]*service),
		slices: make(map[*facts.Object]*placed), nodes: make(map[string]*node),
		nodesWith: make(map[keyValue]map[string]*facts.Node), keys: make(map[string]struct{}),
		naming: make(map[string]map[*class]struct{}), streams: make(map[string]map[*stream]struct{}),
		owns: make(map[string]*wire.Object), splits: make(map[*byte]*wire.Parts),
	}
	s.common = *newClass(nil, "", nil)
	s.budget.max = maxQueued
	f.Attach(s, func() {})
	return s
}

func newClass(set *keySet, name string, here topology.Labels) *class {
	return &class{
		set: set, name: name, here: here, digests: make(map[uint8]uint64), named: make(map[string]int),
		streams: make(map[*stream]struct{}),
	}
}

// FactsChanged implements facts.Watcher.
func (s *shares) FactsChanged(c *facts.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.facts.Held() {
		return // also what arrives is not there yet
	}
	s.advance()
	if s.facts.State(history.EndpointSlices) != history.Ready {
		return
	}
	if !s.open {
		s.open = true
		c = s.everything()
	}
	if len(c.Services)+len(c.Objects)+len(c.Governed)+len(c.Relabelled)+len(s.owns) > 0 || c.Keys {
		s.begin(c).run()
	}
}

// arrive notes which version of a resource the next change of the facts brings. changes is set if it is more than a
// bookmark.
func (s *shares) arrive(part int, version uint64, changes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passing[part] = version
	if changes {
		s.arriving[part] = version
	}
}

// advance notes that what was to arrive is there.
func (s *shares) advance() {
	for part := range s.passing {
		if s.arriving[part] != 0 {
			s.version[part] = s.arriving[part]
		}
		if s.passing[part] != 0 {
			s.progress[part] = s.passing[part]
		}
	}
	if s.passing != (hubv1alpha1.Version{}) {
		close(s.progressed)
		s.progressed = make(chan struct{})
	}
	s.arriving, s.passing = hubv1alpha1.Version{}, hubv1alpha1.Version{}
}

// everything is a change of all that is known.
func (s *shares) everything() *facts.Change {
	c := &facts.Change{
		Received: time.Now(), Keys: true, Services: make(map[types.NamespacedName]struct{}),
		Objects: make(map[*facts.Object]struct{}), Governed: make(map[*facts.Service]struct{}),
		Relabelled: make(map[*facts.Node]topology.Labels),
	}
	s.facts.Services(func(service *facts.Service) {
		c.Services[service.Name], c.Governed[service] = struct{}{}, struct{}{}
	})
	s.facts.Objects(history.EndpointSlices, func(o *facts.Object) { c.Objects[o] = struct{}{} })
	s.facts.Nodes(func(n *facts.Node) { c.Relabelled[n] = nil })
	return c
}

// transaction is one step of the facts, on its way to the streams.
type transaction struct {
	*shares

	change *facts.Change
	// before has the labels that nodes had before the step, as far as they changed.
	before map[string]topology.Labels
	// mentioned has which classes named which nodes before the step, as far as that may have changed.
	mentioned map[mention]bool
	// labels are those of nodes before the step, as far as they changed; nil for none.
	labels map[string]*object
	steps  map[*class]*classStep
	// moved are the streams of nodes that were relabelled.
	moved map[*stream]struct{}
	// touched are the streams that have a part in the step.
	touched []*stream
}

type mention struct {
	class *class
	node  string
}

// classStep is what a step means for a class.
type classStep struct {
	frames []byte
	events int
	// deltas are the differences of digests.
	deltas map[uint8]uint64
	// unnamed are the nodes that the class names no more.
	unnamed []*object
}

func (s *shares) begin(c *facts.Change) *transaction {
	t := &transaction{
		shares: s, change: c, before: make(map[string]topology.Labels, len(c.Relabelled)),
		mentioned: make(map[mention]bool), labels: make(map[string]*object), steps: make(map[*class]*classStep),
		moved: make(map[*stream]struct{}),
	}
	for n, before := range c.Relabelled {
		t.before[n.Name] = before
	}
	return t
}

// run publishes the step. The order is that of what follows from what: nodes lead to classes, Services to sets, both
// to slices, and slices to the nodes that are named.
func (t *transaction) run() {
	t.relabel()
	t.placeServices()
	for o := range t.changedSlices() {
		t.placeSlice(o)
	}
	t.publishMentions()
	t.publishOwns()
	t.publish()
	t.dropSets()
	clear(t.splits)
}

// relabel takes in nodes whose labels changed. Their streams leave their classes until the end of the step.
func (t *transaction) relabel() {
	t.indexNodes()
	for n := range t.change.Relabelled {
		known := t.nodes[n.Name]
		if known == nil {
			known = &node{}
			t.nodes[n.Name] = known
		}
		t.labels[n.Name] = known.labels
		known.labels = nil
		if n.Known {
			known.labels = labelsObject(n.Name, n.Labels)
		} else if known.own == nil {
			delete(t.nodes, n.Name)
		}
		for class := range t.naming[n.Name] {
			t.mentioned[mention{class, n.Name}] = true
		}
		for stream := range t.streams[n.Name] {
			t.moved[stream] = struct{}{}
			t.leave(stream)
		}
	}
}

// indexNodes keeps nodesWith.
func (t *transaction) indexNodes() {
	for n, before := range t.change.Relabelled {
		for key := range t.keys {
			if value, had := before[key]; had {
				remove(t.nodesWith, keyValue{key, value}, n.Name)
			}
			if value, has := n.Labels[key]; has {
				enter(t.nodesWith, keyValue{key, value}, n.Name, n)
			}
		}
	}
	if !t.change.Keys {
		return
	}
	inUse := make(map[string]struct{})
	for _, key := range t.facts.Keys() {
		inUse[key] = struct{}{}
	}
	t.facts.Nodes(func(n *facts.Node) {
		for key := range inUse {
			if _, known := t.keys[key]; known {
				continue
			}
			if value, has := n.Labels[key]; has {
				enter(t.nodesWith, keyValue{key, value}, n.Name, n)
			}
		}
	})
	t.keys = inUse
}

// enter and remove change a set that an index leads to.
func enter[I, K comparable, V any](index map[I]map[K]V, at I, key K, value V) {
	if index[at] == nil {
		index[at] = make(map[K]V, 1)
	}
	index[at][key] = value
}

func remove[I, K comparable, V any](index map[I]map[K]V, at I, key K) {
	if delete(index[at], key); len(index[at]) == 0 {
		delete(index, at)
	}
}

// placeServices takes in Services, and the sets of their keys.
func (t *transaction) placeServices() {
	for name := range t.change.Services {
		var after *object
		if s := t.facts.Service(name); s != nil && s.Upstream != nil {
			after = newObject(&kindService, s.Upstream, s.Upstream.Body)
		}
		t.putCommon(objectName{&kindService, name}, after)
	}
	for s := range t.change.Governed {
		known := t.services[s.Name]
		if known != nil && s.Upstream != nil && slices.Equal(known.keys, s.Keys) {
			continue
		}
		if known != nil && known.set != nil {
			known.set.count(known.keys, -1)
		}
		if s.Upstream == nil {
			delete(t.services, s.Name)
			continue
		}
		known = &service{keys: s.Keys}
		if s.Keys.Governed() && !everywhere(s) {
			if known.set = t.setOf(s.Keys); known.set != nil {
				known.set.count(s.Keys, 1)
				t.joinNew(known.set)
			}
		}
		t.services[s.Name] = known
	}
}

// everywhere reports whether the slices of a Service are in every share, whole: because no key governs it, because the
// key "*" matches every endpoint, or because it is default/kubernetes, whose endpoint nodes replace by their own.
func everywhere(s *facts.Service) bool {
	return !s.Keys.Governed() || slices.Contains(s.Keys, topology.Any) || s.Name == facts.KubernetesService
}

// setOf returns the set of keys, which it makes if there is none. It is nil for the keys of a Service that is not
// known.
func (t *transaction) setOf(keys topology.Keys) *keySet {
	sorted := slices.Sorted(slices.Values(keys))
	sorted = slices.Compact(sorted)
	if sorted[0] == "" { // that of topology.Unsatisfiable
		return nil
	}
	name := strings.Join(sorted, ",")
	if t.sets[name] == nil && len(t.sets) >= maxSets {
		name = restSet
	}
	if t.sets[name] == nil {
		t.sets[name] = &keySet{
			perNode: name == restSet, keys: make(map[string]int), classes: make(map[string]*class),
			byValue: make(map[keyValue]map[*class]struct{}),
		}
	}
	return t.sets[name]
}

func (k *keySet) count(keys topology.Keys, delta int) {
	k.services += delta
	for _, key := range keys {
		if k.keys[key] += delta; k.keys[key] == 0 {
			delete(k.keys, key)
		}
	}
}

// joinNew brings all streams into a set that had no Service before, so its classes are empty. In the rest set nodes
// come into a class when it has a key that they have.
func (t *transaction) joinNew(set *keySet) {
	if set.services > 1 && !set.perNode {
		return
	}
	for name, streams := range t.streams {
		n := t.facts.Node(name)
		if n == nil {
			continue
		}
		for stream := range streams {
			if _, moved := t.moved[stream]; !moved {
				t.join(stream, set, n, false)
			}
		}
	}
}

// changedSlices are the slices that some share may have otherwise after the step: because of the slices themselves, the
// keys of their Services, or the labels of the nodes that they name.
func (t *transaction) changedSlices() map[*facts.Object]struct{} {
	changed := make(map[*facts.Object]struct{}, len(t.change.Objects))
	enterAll := func(objects []*facts.Object) {
		for _, o := range objects {
			if o.Resource() == history.EndpointSlices {
				changed[o] = struct{}{}
			}
		}
	}
	for o := range t.change.Objects {
		if o.Resource() == history.EndpointSlices {
			changed[o] = struct{}{}
		}
	}
	for s := range t.change.Governed {
		for _, o := range s.Objects(history.EndpointSlices) {
			if known := t.slices[o]; known == nil || !slices.Equal(known.keys, s.Keys) {
				changed[o] = struct{}{}
			}
		}
	}
	for n, before := range t.change.Relabelled {
		if !maps.Equal(before, n.Labels) {
			enterAll(t.facts.NodeObjectsOf(n.Name))
		}
	}
	return changed
}

// place says where a slice is now; nil if it is nowhere.
func (t *transaction) place(o *facts.Object) *placed {
	if o.Gone {
		return nil
	}
	now := &placed{upstream: o.Upstream}
	if o.Service == nil {
		now.everywhere = true
		return now
	}
	now.keys, now.everywhere = o.Service.Keys, everywhere(o.Service)
	if known := t.services[o.Service.Name]; known != nil && !now.everywhere {
		now.set = known.set
	}
	return now
}

// placeSlice publishes what a slice was and is to the classes whose share differs.
func (t *transaction) placeSlice(o *facts.Object) {
	before, after := t.slices[o], t.place(o)
	if after == nil {
		delete(t.slices, o)
	} else {
		t.slices[o] = after
	}
	name := types.NamespacedName{Namespace: o.Upstream.Namespace, Name: o.Upstream.Name}
	var whole *object
	if after != nil && after.everywhere {
		whole = newObject(&kindSlice, after.upstream, after.upstream.Body)
	}
	if whole != nil || before != nil && before.everywhere {
		t.putCommon(objectName{&kindSlice, name}, whole)
		t.mentionAll(before, -1)
		t.mentionAll(after, 1)
	}
	for class := range t.affected(before, after) {
		was, named := t.part(class, before, true)
		t.mention(class, named, -1)
		is, named := t.part(class, after, false)
		t.mention(class, named, 1)
		t.put(class, was, is)
	}
}

// affected are the classes whose share of a slice may differ.
func (t *transaction) affected(before, after *placed) map[*class]struct{} {
	classes := make(map[*class]struct{})
	var was, is *wire.Parts
	if before != nil && before.set != nil && len(before.set.classes) > 0 {
		was = t.split(before.upstream.Body)
	}
	if after != nil && after.set != nil && len(after.set.classes) > 0 {
		is = t.split(after.upstream.Body)
	}
	beginning, end := 0, 0
	if was != nil && is != nil && before.set == after.set && len(t.before) == 0 &&
		slices.Equal(before.keys, after.keys) && wire.SameMeta(before.upstream.Meta, after.upstream.Meta) &&
		was.SameOthers(is) {
		// Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
		beginning, end = was.Differing(is)
	}
	if was != nil {
		t.addClasses(classes, before, was.Endpoints[beginning:len(was.Endpoints)-end], true)
	}
	if is != nil {
		t.addClasses(classes, after, is.Endpoints[beginning:len(is.Endpoints)-end], false)
	}
	return classes
}

// addClasses adds the classes that have one of the endpoints.
func (t *transaction) addClasses(classes map[*class]struct{}, p *placed, endpoints []wire.Endpoint, before bool) {
	for _, e := range endpoints {
		labels := t.labelsOf(e.NodeName, before)
		for _, key := range p.keys {
			value, has := labels[key]
			if !has {
				continue
			}
			pair := keyValue{key, value}
			maps.Copy(classes, p.set.byValue[pair])
			if !p.set.perNode {
				continue
			}
			for name := range t.nodesWith[pair] {
				if class := p.set.classes[name]; class != nil {
					classes[class] = struct{}{}
				}
			}
		}
	}
}

// labelsOf are the labels of a node, now or before the step.
func (t *transaction) labelsOf(name []byte, before bool) topology.Labels {
	if before {
		if labels, changed := t.before[string(name)]; changed {
			return labels
		}
	}
	return t.facts.LabelsOf(name)
}

func (s *shares) split(body []byte) *wire.Parts {
	if len(body) == 0 {
		return &wire.Parts{}
	}
	if parts := s.splits[&body[0]]; parts != nil {
		return parts
	}
	parts, err := wire.SplitSlice(body)
	if err != nil {
		panic("hub: a slice that was readable is no longer: " + err.Error())
	}
	s.splits[&body[0]] = parts
	return parts
}

// part is what a class has of a slice, now or before the step, and the nodes that it names; nil for nothing.
func (t *transaction) part(c *class, p *placed, before bool) (o *object, named []string) {
	if p == nil || p.set != c.set {
		return nil, nil
	}
	return partOf(c, p, t.split(p.upstream.Body), func(name []byte) topology.Labels { return t.labelsOf(name, before) })
}

// partOf is what a class has of a slice: the endpoints that any of the Service's keys matches.
func partOf(
	c *class, p *placed, parts *wire.Parts, labelsOf func([]byte) topology.Labels,
) (o *object, named []string) {
	var places []int
	for i, e := range parts.Endpoints {
		if p.keys.Rank(c.here, labelsOf(e.NodeName)) == topology.NoRank {
			continue
		}
		places = append(places, i)
		if !slices.Contains(named, string(e.NodeName)) {
			named = append(named, string(e.NodeName))
		}
	}
	if len(places) == 0 {
		return nil, nil
	}
	return newObject(&kindSlice, p.upstream, parts.Body(places)), named
}

// mention counts the nodes that a slice of a class names.
func (t *transaction) mention(c *class, nodes []string, delta int) {
	for _, name := range nodes {
		if _, noted := t.mentioned[mention{c, name}]; !noted {
			t.mentioned[mention{c, name}] = c.named[name] > 0
		}
		if c.named[name] += delta; c.named[name] == 0 {
			delete(c.named, name)
			remove(t.naming, name, c)
		} else {
			enter(t.naming, name, c, struct{}{})
		}
	}
}

// mentionAll counts the nodes that a slice with the key "*" names, for every share: the keys before it need their
// labels.
func (t *transaction) mentionAll(p *placed, delta int) {
	if p == nil || !p.everywhere || !slices.Contains(p.keys, topology.Any) {
		return
	}
	var named []string
	for _, e := range t.split(p.upstream.Body).Endpoints {
		if name := string(e.NodeName); name != "" && !slices.Contains(named, name) {
			named = append(named, name)
		}
	}
	t.mention(&t.common, named, delta)
}

// publishMentions publishes the labels of nodes to the classes that name them.
func (t *transaction) publishMentions() {
	for m, was := range t.mentioned {
		var before, after *object
		now := t.nodes[m.node]
		if was {
			var changed bool
			if before, changed = t.labels[m.node]; !changed && now != nil {
				before = now.labels
			}
		}
		if m.class.named[m.node] > 0 && now != nil {
			after = now.labels
		}
		if m.class == &t.common {
			t.putCommon(objectName{&kindLabels, types.NamespacedName{Name: m.node}}, after)
		} else {
			t.put(m.class, before, after)
		}
	}
}

// putCommon makes an object, or its absence, known to every share.
func (t *transaction) putCommon(name objectName, after *object) {
	b := &t.buckets[name.bucket()]
	before := b.objects[name]
	switch {
	case after == nil:
		delete(b.objects, name)
	case b.objects == nil:
		b.objects = map[objectName]*object{name: after}
	default:
		b.objects[name] = after
	}
	if before.digestOf() != after.digestOf() {
		b.content = nil
	}
	t.put(&t.common, before, after)
}

// put makes known what a class had of an object and has now. Nothing is said if that is the same to a wrapper.
func (t *transaction) put(c *class, before, after *object) {
	if before.digestOf() == after.digestOf() {
		return
	}
	step := t.steps[c]
	if step == nil {
		step = &classStep{deltas: make(map[uint8]uint64)}
		t.steps[c] = step
	}
	shown := after
	if after == nil {
		shown = before
	}
	bucket := shown.bucket()
	delta := after.digestOf() - before.digestOf()
	step.deltas[bucket] += delta
	if c.digests[bucket] += delta; c.digests[bucket] == 0 {
		delete(c.digests, bucket)
	}
	c.content = nil
	if after == nil && shown.kind == &kindLabels {
		step.unnamed = append(step.unnamed, shown)
		return
	}
	if len(c.streams) == 0 {
		return
	}
	step.events++
	if after == nil {
		step.frames = appendRemoval(step.frames, before.objectName)
	} else {
		step.frames = appendFrame(step.frames, after)
	}
}

// publish passes what the classes have to say to their streams, and gives streams that moved what differs.
func (t *transaction) publish() {
	for c, step := range t.steps {
		var changes *chunk
		if len(step.frames) > 0 {
			changes = newChunk(step.frames, step.events, t.change.Received)
		}
		for stream := range c.streams {
			t.touch(stream)
			for bucket, delta := range step.deltas {
				stream.digests[bucket] += delta
				stream.changed[bucket] = struct{}{}
			}
			if changes != nil {
				stream.chunks = append(stream.chunks, changes)
			}
			for _, o := range step.unnamed {
				if !stream.names(o.name.Name) {
					removal := newChunk(appendRemoval(nil, o.objectName), 1, t.change.Received)
					stream.chunks = append(stream.chunks, removal)
				}
			}
		}
	}
	for stream := range t.moved {
		t.joinAll(stream)
		t.touch(stream)
		t.resync(stream)
	}
	for _, stream := range t.touched {
		t.finish(stream, false)
	}
	t.endLaggards()
}

// touch notes that a stream has a part in the step.
func (t *transaction) touch(stream *stream) {
	if stream.changed == nil {
		stream.changed = make(map[uint8]struct{})
		t.touched = append(t.touched, stream)
	}
}

// publishOwns publishes nodes' own objects, each to the streams of that node.
func (t *transaction) publishOwns() {
	for name, o := range t.owns {
		n := t.nodes[name]
		if n == nil {
			n = &node{}
			t.nodes[name] = n
		}
		before := n.ownDigest
		n.own, n.ownDigest = nil, 0
		if o != nil {
			own := newObject(&kindNode, o, o.Body)
			n.own, n.ownDigest = newChunk(appendFrame(nil, own), 1, t.change.Received), own.digest
			n.own.encoded()
		} else if n.labels == nil {
			delete(t.nodes, name)
		}
		nodeName := objectName{&kindNode, types.NamespacedName{Name: name}}
		bucket := nodeName.bucket()
		for stream := range t.streams[name] {
			if _, moved := t.moved[stream]; moved || n.ownDigest == before {
				continue
			}
			t.touch(stream)
			stream.digests[bucket] += n.ownDigest - before
			stream.changed[bucket] = struct{}{}
			if n.own != nil {
				stream.chunks = append(stream.chunks, n.own)
			} else {
				stream.chunks = append(stream.chunks, newChunk(appendRemoval(nil, nodeName), 1, t.change.Received))
			}
		}
	}
	clear(t.owns)
}

// dropSets drops the sets that no Service has any more, whose classes are empty, and the keys that none has. Until the
// end of the step these lead to what was there before.
func (t *transaction) dropSets() {
	if t.change.Keys {
		maps.DeleteFunc(t.nodesWith, func(pair keyValue, _ map[string]*facts.Node) bool {
			_, stays := t.keys[pair.key]
			return !stays
		})
	}
	for name, set := range t.sets {
		if set.services > 0 {
			continue
		}
		delete(t.sets, name)
		for _, c := range set.classes {
			for stream := range c.streams {
				stream.classes = slices.DeleteFunc(stream.classes, func(other *class) bool { return other == c })
			}
		}
	}
}

// contents calls visit for every object that a class, which is not the common one, has now: slices with the nodes that
// they name, and then the labels of the nodes that the class counts as named. It is called with both locks held.
func (s *shares) contents(c *class, visit func(o *object, named []string)) {
	seen := make(map[*facts.Object]struct{})
	for key, value := range c.here {
		if c.set.keys[key] == 0 {
			continue
		}
		for _, n := range s.nodesWith[keyValue{key, value}] {
			for _, o := range n.Objects() {
				p := s.slices[o]
				if _, again := seen[o]; again || p == nil || p.set != c.set {
					continue
				}
				seen[o] = struct{}{}
				parts, err := wire.SplitSlice(p.upstream.Body)
				if err != nil {
					panic("hub: a slice that was readable is no longer: " + err.Error())
				}
				if part, named := partOf(c, p, parts, s.facts.LabelsOf); part != nil {
					visit(part, named)
				}
			}
		}
	}
	for name := range c.named {
		if n := s.nodes[name]; n != nil && n.labels != nil {
			visit(n.labels, nil)
		}
	}
}

// fill computes what a new class has, and encodes it if a stream is about to be sent all of it.
func (s *shares) fill(c *class, encode bool) {
	var frames []byte
	s.contents(c, func(o *object, named []string) {
		c.digests[o.bucket()] += o.digest
		for _, name := range named {
			c.named[name]++
			enter(s.naming, name, c, struct{}{})
		}
		if encode {
			frames = appendFrame(frames, o)
		}
	})
	if len(frames) > 0 {
		c.content = newChunk(frames, 0, time.Time{})
	}
}

// setOwn notes a node's own object, which the next change of the facts publishes; nil if it is gone.
func (s *shares) setOwn(name string, o *wire.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owns[name] = o
}

// ownNames are the names of the nodes whose own objects are known.
func (s *shares) ownNames() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.nodes))
}

// reached returns the version that the shares have reached; progressed is closed when it changes.
func (s *shares) reached() (version hubv1alpha1.Version, progressed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress, s.progressed
}

// sharesStats are figures of shares.
type sharesStats struct {
	open                                 bool
	nodes, classes, sets, queued, behind int
}

func (s *shares) stats() sharesStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := sharesStats{
		open: s.open, nodes: len(s.streams), sets: len(s.sets), queued: s.budget.over() + s.budget.max, behind: s.ended,
	}
	for _, set := range s.sets {
		stats.classes += len(set.classes)
	}
	return stats
}
