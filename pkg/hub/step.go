package hub

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
)

// step is one step of the facts, on its way to the streams.
type step struct {
	*shares

	change *facts.Change
	// before has the labels that nodes had before the step, as far as they changed.
	before map[string]topology.Labels
	// named are the nodes whose labels may be in other shares than before. naming has the classes that have them now.
	named   map[string]struct{}
	naming  map[string]map[*class]struct{}
	classes map[*class]*classStep
	// moved are the streams of nodes that were relabelled. They are in no class until the end of the step.
	moved []*stream
	// touched are the streams that have a part in the step.
	touched []*stream
}

// classStep is what a step means for a class.
type classStep struct {
	frames []byte
	events int
	// deltas are the differences of digests.
	deltas map[uint8]uint64
	// unnamed are the labels of nodes that the class has no more. Another class of a stream may have them.
	unnamed []objectName
}

// publish makes a change of the facts one step of the streams.
func (s *shares) publish(c *facts.Change) {
	t := &step{
		shares: s, change: c, before: make(map[string]topology.Labels, len(c.Relabelled)),
		named: make(map[string]struct{}), naming: make(map[string]map[*class]struct{}),
		classes: make(map[*class]*classStep),
	}
	maps.Copy(t.named, c.Named)
	for n, before := range c.Relabelled {
		t.before[n.Name] = before
		t.named[n.Name] = struct{}{}
		for st := range t.node(n.Name).streams {
			t.moved = append(t.moved, st)
		}
	}
	for _, st := range t.moved {
		t.leave(st)
	}
	t.placeServices()
	for o := range t.changedSlices() {
		t.placeSlice(o)
	}
	for name := range t.named {
		t.placeLabels(name)
	}
	for name, o := range t.owns {
		t.placeOwn(name, o)
	}
	clear(t.owns)
	t.send()
	t.dropSets()
}

func (t *step) placeServices() {
	for name := range t.change.Services {
		var after *object
		if s := t.facts.Service(name); s != nil && s.Upstream != nil {
			after = newObject(&kindService, s.Upstream, s.Upstream.Body)
		}
		t.put(&t.common, objectName{&kindService, name}, nil, after)
	}
}

// changedSlices are the slices that some share may have otherwise after the step: because of the slices themselves, the
// keys of their Services, or the labels of the nodes that they name.
func (t *step) changedSlices() map[*facts.Object]struct{} {
	changed := make(map[*facts.Object]struct{}, len(t.change.Objects))
	maps.Copy(changed, t.change.Objects)
	for s := range t.change.Governed {
		for _, o := range s.Objects(history.EndpointSlices) {
			if known := t.slices[o]; known == nil || !slices.Equal(known.keys, s.Keys) {
				changed[o] = struct{}{}
			}
		}
	}
	for n := range t.change.Relabelled {
		for _, o := range t.facts.NodeObjectsOf(n.Name) {
			changed[o] = struct{}{}
		}
	}
	return changed
}

// place says where a slice is now; nil if it is nowhere. before is where it was.
func (t *step) place(o *facts.Object, before *placed) *placed {
	if o.Gone {
		return nil
	}
	now := &placed{upstream: o.Upstream}
	if o.Service != nil {
		now.keys = o.Service.Keys
	}
	switch {
	case o.Service == nil || everywhere(o.Service):
		now.everywhere = true
	case before != nil && slices.Equal(before.keys, now.keys):
		now.set = before.set
	case now.keys[0] != "": // else the keys are topology.Unsatisfiable
		now.set = t.setOf(now.keys)
	}
	return now
}

// everywhere reports whether the slices of a Service are in every share, whole: because no key governs it, because the
// key "*" matches every endpoint, or because it is default/kubernetes, whose endpoint nodes replace by their own.
func everywhere(s *facts.Service) bool {
	return !s.Keys.Governed() || slices.Contains(s.Keys, topology.Any) || s.Name == facts.KubernetesService
}

// placeSlice publishes what a slice was and is to the classes whose share differs.
func (t *step) placeSlice(o *facts.Object) {
	before := t.slices[o]
	after := t.place(o, before)
	if after == nil {
		delete(t.slices, o)
	} else {
		t.slices[o] = after
	}
	was, is := endpointsOf(before, t.labelsBefore), endpointsOf(after, t.facts.LabelsOf)
	if !before.sameShares(after) {
		for _, e := range is.parts.Endpoints {
			t.named[string(e.NodeName)] = struct{}{}
		}
	}
	name := objectName{&kindSlice, o.Name()}
	var whole *object
	if after != nil && after.everywhere {
		whole = newObject(&kindSlice, after.upstream, after.upstream.Body)
	}
	if whole != nil || before != nil && before.everywhere {
		t.put(&t.common, name, nil, whole)
	}
	for c := range t.affected(was, is) {
		t.put(c, name, was.part(c), is.part(c))
	}
	before.count(-1)
	after.count(1)
}

// sameShares reports whether the same endpoints would be in the same shares. Both may be nil.
func (p *placed) sameShares(other *placed) bool {
	return p != nil && other != nil && p.set == other.set && p.everywhere == other.everywhere &&
		slices.Equal(p.keys, other.keys)
}

// count counts the slice, which may be nil, in its set.
func (p *placed) count(n int) {
	if p != nil && p.set != nil {
		p.set.slices += n
	}
}

// labelsBefore are the labels that a node had before the step.
func (t *step) labelsBefore(name []byte) topology.Labels {
	if labels, changed := t.before[string(name)]; changed {
		return labels
	}
	return t.facts.LabelsOf(name)
}

// affected are the classes whose share of a slice may differ: those that have one of the endpoints, before or after.
// Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
func (t *step) affected(was, is endpoints) map[*class]struct{} {
	beginning, end := 0, 0
	if was.sameShares(is.placed) && len(t.before) == 0 && wire.SameMeta(was.upstream.Meta, is.upstream.Meta) &&
		was.parts.SameOthers(is.parts) {
		beginning, end = was.parts.Differing(is.parts)
	}
	classes := make(map[*class]struct{})
	for _, e := range []endpoints{was, is} {
		if e.placed == nil || e.set == nil || len(e.set.classes) == 0 {
			continue
		}
		for _, endpoint := range e.parts.Endpoints[beginning : len(e.parts.Endpoints)-end] {
			labels := e.labelsOf(endpoint.NodeName)
			for _, key := range e.keys {
				if value, has := labels[key]; has {
					maps.Copy(classes, e.set.byValue[keyValue{key, value}])
				}
			}
		}
	}
	return classes
}

// placeLabels publishes the labels of a node to its own class, and to those whose slices name the node.
func (t *step) placeLabels(name string) {
	if name == "" {
		return // endpoints without a node
	}
	n := t.node(name)
	before, were := n.labels, t.classesNaming(n)
	if _, changed := t.before[name]; changed {
		n.labels = nil
		if now := t.facts.Node(name); now != nil {
			n.labels = labelsObject(name, now.Labels)
		}
	}
	n.named = t.namingsOf(name)
	are := t.classesNaming(n)
	t.naming[name] = are
	for c := range either(were, are) {
		var was, is *object
		if _, had := were[c]; had {
			was = before
		}
		if _, has := are[c]; has {
			is = n.labels
		}
		t.put(c, objectName{&kindLabels, types.NamespacedName{Name: name}}, was, is)
	}
	t.forget(n)
}

// either are the classes that are in either of two sets.
func either(a, b map[*class]struct{}) map[*class]struct{} {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// namingsOf says by which sets and keys the slices on a node name it.
func (t *step) namingsOf(name string) (named []naming) {
	enter := func(by naming) {
		if !slices.Contains(named, by) {
			named = append(named, by)
		}
	}
	for _, o := range t.facts.NodeObjectsOf(name) {
		switch p := t.slices[o]; {
		case p.set != nil:
			for _, key := range p.keys {
				enter(naming{p.set, key})
			}
		case slices.Contains(p.keys, topology.Any):
			enter(naming{}) // the keys before it need the labels of all nodes
		}
	}
	return named
}

// classesNaming are the classes that have the labels of a node; none if it is not known.
func (t *step) classesNaming(n *node) map[*class]struct{} {
	classes := make(map[*class]struct{})
	if n.labels == nil {
		return classes
	}
	classes[&n.class] = struct{}{}
	for _, by := range n.named {
		if by.set == nil {
			classes[&t.common] = struct{}{}
		} else if value, has := n.labels.upstream.Labels[by.key]; has {
			maps.Copy(classes, by.set.byValue[keyValue{by.key, value}])
		}
	}
	return classes
}

// placeOwn publishes a node's own object, or that it is gone, to the node's streams.
func (t *step) placeOwn(name string, o *wire.Object) {
	n := t.node(name)
	before := n.own
	var after *object
	n.own, n.ownContent = nil, nil
	if o != nil {
		after = newObject(&kindNode, o, o.Body)
		n.ownContent = newChunk(appendFrame(nil, after), 0, time.Time{})
		n.own = &object{objectName: after.objectName, digest: after.digest}
	}
	t.put(&n.class, ownName(name), before, after)
	t.forget(n)
}

// put makes known what a class had of an object and has now. Nothing is said if that is the same to a wrapper. What the
// common class had is known.
func (t *step) put(c *class, name objectName, before, after *object) {
	bucket := name.bucket()
	if c == &t.common {
		before = t.buckets[bucket].put(name, after)
	}
	delta := after.digestOf() - before.digestOf()
	if delta == 0 {
		return
	}
	c.content = nil
	said := t.class(c)
	said.deltas[bucket] += delta
	if c.digests[bucket] += delta; c.digests[bucket] == 0 {
		delete(c.digests, bucket)
	}
	switch {
	case after == nil && name.kind == &kindLabels:
		said.unnamed = append(said.unnamed, name)
	case len(c.streams) == 0:
	case after == nil:
		said.frames, said.events = appendRemoval(said.frames, name), said.events+1
	default:
		said.frames, said.events = appendFrame(said.frames, after), said.events+1
	}
}

// put keeps an object, or its absence, and returns what was there before.
func (b *bucket) put(name objectName, after *object) (before *object) {
	before = b.objects[name]
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
	return before
}

// class is what the step means for a class.
func (t *step) class(c *class) *classStep {
	said := t.classes[c]
	if said == nil {
		said = &classStep{deltas: make(map[uint8]uint64)}
		t.classes[c] = said
	}
	return said
}

// send passes what the classes have to say to their streams, and gives streams that moved what differs.
func (t *step) send() {
	for c, said := range t.classes {
		if len(c.streams) == 0 {
			continue
		}
		var changes *chunk
		if len(said.frames) > 0 {
			changes = newChunk(said.frames, said.events, t.change.Received)
		}
		for st := range c.streams {
			t.touch(st)
			for bucket, delta := range said.deltas {
				st.digests[bucket] += delta
				st.step.changed[bucket] = struct{}{}
			}
			if changes != nil {
				st.step.chunks = append(st.step.chunks, changes)
			}
			for _, name := range said.unnamed {
				if !t.names(st, name.name.Name) {
					removal := newChunk(appendRemoval(nil, name), 1, t.change.Received)
					st.step.chunks = append(st.step.chunks, removal)
				}
			}
		}
	}
	for _, st := range t.moved {
		t.joinAll(st)
		t.touch(st)
		t.resync(st)
	}
	for _, st := range t.touched {
		t.finish(st, false)
	}
	t.endLaggards()
}

// names reports whether a stream has the labels of a node that the step has placed.
func (t *step) names(st *stream, node string) bool {
	return slices.ContainsFunc(st.classes, func(c *class) bool {
		_, has := t.naming[node][c]
		return has
	})
}

// touch notes that a stream has a part in the step.
func (t *step) touch(st *stream) {
	if st.step.changed == nil {
		st.step.changed = make(map[uint8]struct{})
		t.touched = append(t.touched, st)
	}
}
