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
	// named are the nodes whose labels may be in other shares than before.
	named   map[string]struct{}
	classes map[*class]*classStep
	// moved are the streams of nodes that were relabelled. They are in no class until the end of the step.
	moved []*stream
	// touched are the streams that have a part in the step.
	touched []*stream
}

// classStep is what a step means for a class.
type classStep struct {
	*class

	frames []byte
	events int
	// deltas are the differences of digests.
	deltas map[uint8]uint64
	// unnamed are the nodes whose labels the class has no more.
	unnamed []objectName
}

// publish makes a change of the facts one step of the streams.
func (s *shares) publish(c *facts.Change) {
	t := &step{
		shares: s, change: c, before: make(map[string]topology.Labels, len(c.Relabelled)),
		named: make(map[string]struct{}), classes: make(map[*class]*classStep),
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
		t.putCommon(objectName{&kindService, name}, after)
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
	was, is := t.endpointsOf(before, true), t.endpointsOf(after, false)
	if !before.sameShares(after) {
		for _, e := range is.parts.Endpoints {
			t.named[string(e.NodeName)] = struct{}{}
		}
	}
	var whole *object
	if after != nil && after.everywhere {
		whole = newObject(&kindSlice, after.upstream, after.upstream.Body)
	}
	if whole != nil || before != nil && before.everywhere {
		t.putCommon(objectName{&kindSlice, o.Name()}, whole)
	}
	for c := range affected(was, is) {
		t.put(c, was.part(c), is.part(c))
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

// endpoints are those of a slice as it was before the step, or as it is after it.
type endpoints struct {
	*placed

	parts *wire.Parts
	// labelsOf returns the labels of a node at that time.
	labelsOf func(node []byte) topology.Labels
	// relabelled is set if the step changed the labels of a node.
	relabelled bool
}

// endpointsOf takes a slice apart, which may be nil.
func (t *step) endpointsOf(p *placed, before bool) endpoints {
	e := endpoints{placed: p, parts: &wire.Parts{}, labelsOf: t.facts.LabelsOf, relabelled: len(t.before) > 0}
	if before {
		e.labelsOf = t.labelsBefore
	}
	if p != nil {
		e.parts = p.split()
	}
	return e
}

// labelsBefore are the labels that a node had before the step.
func (t *step) labelsBefore(name []byte) topology.Labels {
	if labels, changed := t.before[string(name)]; changed {
		return labels
	}
	return t.facts.LabelsOf(name)
}

// part is what a class has of the endpoints; nil for nothing.
func (e endpoints) part(c *class) *object {
	if e.placed == nil || e.set != c.set {
		return nil
	}
	return e.placed.part(c, e.parts, e.labelsOf)
}

// affected are the classes whose share of a slice may differ: those that have one of the endpoints, before or after.
// Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
func affected(was, is endpoints) map[*class]struct{} {
	beginning, end := 0, 0
	if was.sameShares(is.placed) && !is.relabelled && wire.SameMeta(was.upstream.Meta, is.upstream.Meta) &&
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
	for c := range were {
		if _, still := are[c]; !still {
			t.putLabels(c, n, before, nil)
		}
	}
	for c := range are {
		if _, already := were[c]; !already {
			t.putLabels(c, n, nil, n.labels)
		} else {
			t.putLabels(c, n, before, n.labels)
		}
	}
	t.forget(n)
}

// namingsOf says by which sets and keys the slices on a node name it.
func (t *step) namingsOf(name string) (named []naming) {
	for _, o := range t.facts.NodeObjectsOf(name) {
		p := t.slices[o]
		keys := p.keys
		if p.everywhere {
			keys = nil
			if slices.Contains(p.keys, topology.Any) {
				keys = topology.Keys{topology.Any} // the keys before it need the labels of all nodes
			}
		}
		for _, key := range keys {
			if by := (naming{p.set, key}); !slices.Contains(named, by) && (p.set != nil || p.everywhere) {
				named = append(named, by)
			}
		}
	}
	return named
}

// classesNaming are the classes that have the labels of a node; none if it is not known.
func (t *step) classesNaming(n *node) map[*class]struct{} {
	if n.labels == nil {
		return nil
	}
	classes := map[*class]struct{}{&n.class: {}}
	for _, by := range n.named {
		if by.set == nil {
			classes[&t.common] = struct{}{}
		} else if value, has := n.labels.upstream.Labels[by.key]; has {
			maps.Copy(classes, by.set.byValue[keyValue{by.key, value}])
		}
	}
	return classes
}

func (t *step) putLabels(c *class, n *node, before, after *object) {
	if c == &t.common {
		t.putCommon(objectName{&kindLabels, types.NamespacedName{Name: n.name}}, after)
	} else {
		t.put(c, before, after)
	}
}

// placeOwn publishes a node's own object, or that it is gone, to the node's streams.
func (t *step) placeOwn(name string, o *wire.Object) {
	n := t.node(name)
	before := n.ownDigest
	n.own, n.ownDigest = nil, 0
	frames := appendRemoval(nil, ownName(name))
	if o != nil {
		own := newObject(&kindNode, o, o.Body)
		frames, n.ownDigest = appendFrame(nil, own), own.digest
		n.own = newChunk(frames, 0, time.Time{})
	}
	if delta := n.ownDigest - before; delta != 0 {
		c := t.class(&n.class)
		c.differs(ownName(name).bucket(), delta)
		c.frames, c.events = append(c.frames, frames...), c.events+1
	}
	t.forget(n)
}

// putCommon makes an object, or its absence, known to every share.
func (t *step) putCommon(name objectName, after *object) {
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
func (t *step) put(c *class, before, after *object) {
	delta := after.digestOf() - before.digestOf()
	if delta == 0 {
		return
	}
	shown := after
	if after == nil {
		shown = before
	}
	said := t.class(c)
	said.differs(shown.bucket(), delta)
	switch {
	case after == nil && shown.kind == &kindLabels:
		said.unnamed = append(said.unnamed, shown.objectName)
	case len(c.streams) == 0:
	case after == nil:
		said.frames, said.events = appendRemoval(said.frames, shown.objectName), said.events+1
	default:
		said.frames, said.events = appendFrame(said.frames, after), said.events+1
	}
}

// class is what the step means for a class.
func (t *step) class(c *class) *classStep {
	said := t.classes[c]
	if said == nil {
		said = &classStep{class: c, deltas: make(map[uint8]uint64)}
		t.classes[c] = said
	}
	return said
}

// differs notes that the digest of a bucket differs.
func (c *classStep) differs(bucket uint8, delta uint64) {
	c.deltas[bucket] += delta
	if c.digests[bucket] += delta; c.digests[bucket] == 0 {
		delete(c.digests, bucket)
	}
	c.content = nil
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
				if n := t.nodes[name.name.Name]; n == nil || !st.names(n) {
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

// touch notes that a stream has a part in the step.
func (t *step) touch(st *stream) {
	if st.step.changed == nil {
		st.step.changed = make(map[uint8]struct{})
		t.touched = append(t.touched, st)
	}
}
