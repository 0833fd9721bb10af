package hub

import (
	"maps"
	"slices"

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
	// before has the labels that nodes had before the step, as far as they changed.
	before  map[string]topology.Labels
	classes map[*class]*classStep
}

// classStep is what a step means for a class.
type classStep struct {
	// removals come before all else, because another class may have the same object now.
	removals, frames []byte
	events           int
	// encoded are events that are encoded already.
	encoded []*chunk
	// added are the differences of digests.
	added map[uint8]uint64
	// labels are those of nodes, after the step; nil if the class has them no more. Another class of a stream may.
	labels map[string]*object
}

// publish makes a change of the facts one step of the streams. Those of nodes that were relabelled are in the classes
// of the old labels until its end, when they get what differs in those of the new ones.
func (s reading) publish(c *facts.Change) {
	t := &step{
		reading: s, change: c, before: make(map[string]topology.Labels), classes: make(map[*class]*classStep),
	}
	for n, labels := range c.Relabelled {
		t.before[n.Name] = labels
	}
	for name, o := range c.NodesGiven {
		t.placeNode(name, o)
	}
	t.placeServices()
	for o := range t.changedSlices() {
		t.placeSlice(o)
	}
	t.send()
}

// placeNode publishes a node to its own class, or that it is gone, and its labels to the classes that need them.
func (t *step) placeNode(name string, o *wire.Object) {
	n := t.node(name)
	labels, own := n.labels, n.own
	n.labels, n.own = nil, nil
	if o != nil {
		n.labels, n.own = labelsObject(o), encodedObject(&kindNode, o)
	}
	t.put(&n.class, objectName{&kindNode, types.NamespacedName{Name: name}}, own, n.own)
	t.putLabels(&n.class, name, labels, n.labels)
	classes := map[*class]struct{}{&t.common: {}}
	for key, value := range t.before[name] {
		for _, set := range t.sets {
			maps.Copy(classes, set.byValue[keyValue{key, value}])
		}
	}
	for c := range classes {
		if c.names[name] > 0 {
			t.putLabels(c, name, labels, n.labels)
		}
	}
	t.forget(n)
}

func (t *step) putLabels(c *class, node string, before, after *object) {
	t.put(c, labelsName(node), before, after)
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
			if known := t.slices[o]; known.upstream == nil || !slices.Equal(known.keys, s.Keys) {
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

// place says where a slice is now. It is in every share, whole, if no key governs it, if the key "*" matches every
// endpoint, or if it is of default/kubernetes, whose endpoint nodes replace by their own.
func (t *step) place(o *facts.Object) placed {
	if o.Gone {
		return placed{}
	}
	now := placed{upstream: o.Upstream}
	if o.Service != nil {
		now.keys = o.Service.Keys
	}
	switch {
	case !now.keys.Governed() || slices.Contains(now.keys, topology.Any) || o.Service.Name == facts.KubernetesService:
	case now.keys[0] == "": // they are topology.Unsatisfiable
		return placed{}
	default:
		now.set = t.setOf(now.keys)
	}
	return now
}

// placeSlice publishes what a slice was and is to the classes whose share differs.
func (t *step) placeSlice(o *facts.Object) {
	after := t.place(o)
	was, is := t.slices[o].at(t.labelsBefore), after.at(t.facts.LabelsOf)
	t.slices[o] = after
	if o.Gone {
		delete(t.slices, o)
	}
	name := objectName{&kindSlice, o.Name()}
	t.put(&t.common, name, nil, is.part(&t.common))
	for c := range t.affected(was, is) {
		t.put(c, name, was.part(c), is.part(c))
	}
	t.count(is.set, 1)
	t.count(was.set, -1)
}

// labelsBefore are the labels that a node had before the step.
func (t *step) labelsBefore(name []byte) topology.Labels {
	if labels, changed := t.before[string(name)]; changed {
		return labels
	}
	return t.facts.LabelsOf(name)
}

// affected are the classes of sets whose share of a slice may differ: those that have one of the endpoints, before or
// after. Most changes are of one endpoint, which one class has. The others need not be asked whether it is theirs.
func (t *step) affected(was, is placed) map[*class]struct{} {
	beginning, end := 0, 0
	if was.set == is.set && slices.Equal(was.keys, is.keys) && was.upstream != nil && is.upstream != nil &&
		wire.SameMeta(was.upstream.Meta, is.upstream.Meta) && was.parts.SameOthers(is.parts) {
		beginning, end = was.parts.Differing(is.parts)
	}
	classes := make(map[*class]struct{})
	for _, e := range []placed{was, is} {
		if e.set == nil || len(e.set.classes) == 0 {
			continue
		}
		for i, endpoint := range e.parts.Endpoints {
			_, relabelled := t.before[string(endpoint.NodeName)]
			if !relabelled && (i < beginning || i >= len(e.parts.Endpoints)-end) {
				continue
			}
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

// name notes that a class needs the labels of the nodes of another object, or of one less. It publishes those that the
// class did not need before, or needs no more.
func (t *step) name(c *class, o *object, more int) {
	if o == nil {
		return
	}
	for _, name := range o.names {
		var labels *object
		if n := t.nodes[name]; n != nil {
			labels = n.labels
		}
		switch c.names[name] += more; {
		case c.names[name] == 0:
			delete(c.names, name)
			t.putLabels(c, name, labels, nil)
		case c.names[name] == 1 && more > 0:
			t.putLabels(c, name, nil, labels)
		}
	}
}

// put makes known what a class had of an object and has now. Nothing is said if that is the same to a wrapper. What the
// common class had is known.
func (t *step) put(c *class, name objectName, before, after *object) {
	bucket := name.bucket()
	if c == &t.common {
		objects := t.buckets[bucket].objects
		before, objects[name] = objects[name], after
		if after == nil {
			delete(objects, name)
		}
	}
	t.name(c, after, 1)
	t.name(c, before, -1)
	delta := after.digestOf() - before.digestOf()
	if delta == 0 {
		return
	}
	if c == &t.common {
		t.buckets[bucket].content = nil
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
		said = &classStep{added: make(map[uint8]uint64), labels: make(map[string]*object)}
		t.classes[c] = said
	}
	said.added[bucket] += delta
	switch {
	case name.kind == &kindLabels:
		said.labels[name.name.Name] = after
	case after == nil:
		said.removals, said.events = appendRemoval(said.removals, name), said.events+1
	case after.encoded != nil:
		said.encoded = append(said.encoded, after.encoded)
	default:
		said.frames, said.events = appendFrame(said.frames, after), said.events+1
	}
}

// send passes what the classes have to say to their streams.
func (t *step) send() {
	end := newChunk(appendMark(nil, &hubv1alpha1.Mark{Ends: true, Version: t.version}))
	touched := make(map[*stream][]*chunk)
	for c, said := range t.classes {
		if said.removals != nil {
			removals := newChunk(said.removals)
			for st := range c.streams {
				touched[st] = append(touched[st], removals)
			}
		}
	}
	for c, said := range t.classes {
		var unnamed []string
		for name, o := range said.labels {
			if o == nil {
				unnamed = append(unnamed, name)
			} else {
				said.frames, said.events = appendFrame(said.frames, o), said.events+1
			}
		}
		news := newChunk(appendMark(said.frames, &hubv1alpha1.Mark{Added: said.added}))
		news.events, news.received = said.events, t.change.Received
		said.encoded = append(said.encoded, news)
		for st := range c.streams {
			touched[st] = append(touched[st], said.encoded...)
			for _, name := range unnamed {
				if !st.names(name) {
					touched[st] = append(touched[st], newChunk(appendRemoval(nil, labelsName(name))))
				}
			}
		}
	}
	for n := range t.change.Relabelled {
		for st := range maps.Clone(t.node(n.Name).streams) {
			touched[st] = append(touched[st], t.move(st)...)
		}
	}
	for st, chunks := range touched {
		st.send(append(chunks, end))
	}
}

// move brings a stream from the classes of a node's old labels into those of its new ones, and returns what differs.
func (t *step) move(st *stream) (chunks []*chunk) {
	were, before := st.classes, st.digests()
	st.classes = nil
	t.joinAll(st)
	mark := &hubv1alpha1.Mark{Added: make(map[uint8]uint64)}
	for bucket, digest := range st.digests() {
		if digest != before[bucket] {
			mark.Added[uint8(bucket)] = digest - before[bucket]
		}
	}
	left, entered := lacking(were, st.classes), lacking(st.classes, were)
	stay := make(map[*facts.Object]struct{})
	for _, c := range entered {
		maps.Copy(stay, t.slicesOf(c))
	}
	var frames []byte
	for _, c := range left {
		for o := range t.slicesOf(c) {
			if _, stays := stay[o]; !stays {
				frames = appendRemoval(frames, objectName{&kindSlice, o.Name()})
			}
		}
		for name := range c.names {
			if !st.names(name) {
				frames = appendRemoval(frames, labelsName(name))
			}
		}
	}
	t.leaveClasses(st, left)
	chunks = append(chunks, newChunk(appendMark(frames, mark)))
	for _, c := range entered {
		chunks = append(chunks, t.content(c, nil)...)
	}
	return chunks
}

// lacking are those of some classes that others lack.
func lacking(some, others []*class) []*class {
	return slices.DeleteFunc(slices.Clone(some), func(c *class) bool { return slices.Contains(others, c) })
}

// names reports whether the labels of a node are in the share of a stream.
func (st *stream) names(node string) bool {
	n := st.shares.nodes[node]
	return n != nil && n.labels != nil && (node == st.node ||
		slices.ContainsFunc(st.classes, func(c *class) bool { return c.names[node] > 0 }))
}
