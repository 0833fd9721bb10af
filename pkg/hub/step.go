package hub

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// step is one step of the facts, on its way to the streams.
type step struct {
	reading

	change *facts.Change
	// labels has the labels that nodes had before the step, as far as they changed: nil for none.
	labels map[string]*object
	// named has what classes counted in names before the step, as far as it may have changed.
	named   map[*class]map[string]int
	classes map[*class]*classStep
	// moved are the streams of nodes that were relabelled, with the digests that their clients have. They are in no
	// class until the end of the step.
	moved map[*stream]*hubv1alpha1.Digests
}

// classStep is what a step means for a class.
type classStep struct {
	frames []byte
	events int
	// encoded are events that are encoded already.
	encoded []*chunk
	// added are the differences of digests.
	added map[uint8]uint64
	// unnamed are the labels of nodes that the class has no more. Another class of a stream may have them.
	unnamed []objectName
}

// publish makes a change of the facts one step of the streams.
func (s reading) publish(c *facts.Change) {
	t := &step{
		reading: s, change: c, labels: make(map[string]*object), named: make(map[*class]map[string]int),
		classes: make(map[*class]*classStep), moved: make(map[*stream]*hubv1alpha1.Digests),
	}
	for n := range c.Relabelled {
		for st := range t.node(n.Name).streams {
			t.moved[st] = st.digests()
		}
	}
	for st := range t.moved {
		t.leave(st)
	}
	for name, o := range c.NodesGiven {
		t.placeNode(name, o)
	}
	t.placeServices()
	for o := range t.changedSlices() {
		t.placeSlice(o)
	}
	t.placeNames()
	t.send()
	t.dropSets()
}

// placeNode publishes a node to its own class, or that it is gone.
func (t *step) placeNode(name string, o *wire.Object) {
	n := t.node(name)
	labels, own := n.labels, n.own
	n.labels, n.own = nil, nil
	if o != nil {
		n.labels, n.own = labelsObject(o), encodedObject(&kindNode, o)
	}
	if labels.digestOf() != n.labels.digestOf() {
		t.labels[name] = labels
	}
	key := types.NamespacedName{Name: name}
	t.put(&n.class, objectName{&kindLabels, key}, labels, n.labels)
	t.put(&n.class, objectName{&kindNode, key}, own, n.own)
	t.forget(n)
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
		for _, o := range s.Objects(served.EndpointSlices) {
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
	name := objectName{&kindSlice, o.Name()}
	t.put(&t.common, name, nil, is.whole())
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
	if labels, changed := t.labels[string(name)]; !changed {
		return t.facts.LabelsOf(name)
	} else if labels != nil {
		return labels.upstream.Labels
	}
	return nil
}

// affected are the classes whose share of a slice may differ: those that have one of the endpoints, before or after.
// Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
func (t *step) affected(was, is endpoints) map[*class]struct{} {
	beginning, end := 0, 0
	if was.sameShares(is.placed) && len(t.labels) == 0 && wire.SameMeta(was.upstream.Meta, is.upstream.Meta) &&
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

// placeNames publishes the labels of nodes to the classes that need them, or need them no more.
func (t *step) placeNames() {
	for c, names := range t.named {
		for name, count := range names {
			var was, is *object
			n := t.nodes[name]
			if n != nil && c.names[name] > 0 {
				is = n.labels
			}
			if labels, changed := t.labels[name]; count > 0 && changed {
				was = labels
			} else if count > 0 && n != nil {
				was = n.labels
			}
			t.put(c, objectName{&kindLabels, types.NamespacedName{Name: name}}, was, is)
		}
	}
}

// name notes that a class needs the labels of nodes for another object, or for one less.
func (t *step) name(c *class, nodes []string, more int) {
	for _, node := range nodes {
		if t.named[c] == nil {
			t.named[c] = make(map[string]int)
		}
		if _, known := t.named[c][node]; !known {
			t.named[c][node] = c.names[node]
		}
		if c.names[node] += more; c.names[node] == 0 {
			delete(c.names, node)
		}
	}
}

// put makes known what a class had of an object and has now. Nothing is said if that is the same to a wrapper. What the
// common class had is known.
func (t *step) put(c *class, name objectName, before, after *object) {
	bucket := name.bucket()
	if c == &t.common {
		before = t.buckets[bucket].put(name, after)
	}
	if before != nil {
		t.name(c, before.names, -1)
	}
	if after != nil {
		t.name(c, after.names, 1)
	}
	delta := after.digestOf() - before.digestOf()
	if delta == 0 {
		return
	}
	c.content = nil
	if c.digests[bucket] += delta; c.digests[bucket] == 0 {
		delete(c.digests, bucket)
	}
	if len(c.streams) == 0 {
		return
	}
	said := t.classes[c]
	if said == nil {
		said = &classStep{added: make(map[uint8]uint64)}
		t.classes[c] = said
	}
	said.added[bucket] += delta
	switch {
	case after == nil && name.kind == &kindLabels:
		said.unnamed = append(said.unnamed, name)
	case after == nil:
		said.frames, said.events = appendRemoval(said.frames, name), said.events+1
	case after.encoded != nil:
		said.encoded = append(said.encoded, after.encoded)
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

// send passes what the classes have to say to their streams, and gives streams that moved what differs.
func (t *step) send() {
	end := newChunk(appendMark(nil, &hubv1alpha1.Mark{Ends: true, Version: t.version}), 0, time.Time{})
	touched := make(map[*stream][]*chunk)
	for c, said := range t.classes {
		said.frames = appendMark(said.frames, &hubv1alpha1.Mark{Added: said.added})
		chunks := said.encoded
		chunks = append(chunks, newChunk(said.frames, said.events, t.change.Received))
		for st := range c.streams {
			touched[st] = append(touched[st], chunks...)
			for _, name := range said.unnamed {
				if !st.names(name.name.Name) {
					touched[st] = append(touched[st], newChunk(appendRemoval(nil, name), 1, t.change.Received))
				}
			}
		}
	}
	for st, chunks := range touched {
		st.send(append(chunks, end))
	}
	for st, known := range t.moved {
		t.joinAll(st, false)
		t.resync(st, known, false)
	}
}

// names reports whether the labels of a node are in the share of a stream.
func (st *stream) names(node string) bool {
	n := st.shares.nodes[node]
	return n != nil && n.labels != nil && (node == st.node ||
		slices.ContainsFunc(st.classes, func(c *class) bool { return c.names[node] > 0 }))
}
