package hub

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// step is one step of the facts that is being sent to the streams.
type step struct {
	lockedShares

	change *facts.Change
	// before has the former labels of nodes whose labels changed.
	before  map[string]topology.Labels
	classes map[*class]*classStep
}

// classStep is the change of a class in a step.
type classStep struct {
	// objects has the changed objects of the class after the step; nil for removed ones.
	objects map[objectName]*object
	// added are the differences of digests.
	added map[uint8]uint64
}

// publish makes a change of the facts one step of the streams. Streams of relabelled nodes stay in the classes of the
// old labels until the end of the step. Then they get the differences to the classes of the new labels.
func (s lockedShares) publish(c *facts.Change) {
	t := &step{
		lockedShares: s, change: c, before: make(map[string]topology.Labels), classes: make(map[*class]*classStep),
	}
	for n, labels := range c.Relabelled {
		t.before[n.Name] = labels
	}
	for name, o := range c.NodesGiven {
		t.publishNode(name, o)
	}
	// A slice may be in other shares, or be shown differently, because of a change of itself, of its Service's keys, or
	// of the labels of the nodes that it names.
	changed := sets.KeySet(c.EndpointSets)
	for key := range c.Plain {
		if key.Resource == served.Services {
			changed.Insert(t.publishService(key.Name)...)
		}
	}
	for n := range c.Relabelled {
		changed.Insert(n.Objects...)
	}
	for o := range changed {
		t.publishSlice(o)
	}
	t.queueToStreams()
}

// publishNode publishes a node, or its removal, to its own class, and its labels to the classes that name it.
func (t *step) publishNode(name string, o *wire.Object) {
	before, after := t.nodes[name], node{}
	delete(t.nodes, name)
	if o != nil {
		after = node{labelsObject(o), ownObject(o)}
		t.nodes[name] = after
	}
	classes := map[*class]struct{}{t.common: {}}
	for key, value := range withName(name, t.before[name]) {
		for _, set := range t.sets {
			maps.Copy(classes, set.byValue[keyValue{key, value}])
		}
	}
	for c := range classes {
		if c.nodeRefs[name] > 0 {
			t.putObject(c, labelsName(name), before.labels, after.labels)
		}
	}
	for c := range t.own.byValue[keyValue{ownKey, name}] {
		t.putObject(c, objectName{&kindNode, types.NamespacedName{Name: name}}, before.own, after.own)
	}
}

// publishService publishes a Service, or its removal, and returns its slices.
func (t *step) publishService(name types.NamespacedName) (slices []*facts.EndpointSet) {
	var after *object
	if s := t.facts.Service(name); s != nil {
		slices = s.Objects(served.EndpointSlices)
		if s.Upstream != nil {
			after = newObject(&kindService, s.Upstream, s.Upstream.Body)
		}
	}
	service := objectName{&kindService, name}
	t.putObject(t.common, service, t.commonObject(service), after)
	return slices
}

// placementOf returns the present placement of a slice. It is in every share, whole, if no key governs it, if the key
// "*" matches every endpoint, or if it belongs to default/kubernetes, whose endpoint nodes replace by their own.
func (t *step) placementOf(o *facts.EndpointSet) placement {
	if o.Gone {
		return placement{}
	}
	now := placement{upstream: o.Upstream}
	if o.Service != nil {
		now.keys = o.Service.Keys
	}
	switch {
	case !now.keys.Governed() || slices.Contains(now.keys, topology.Any) || o.Service.Name == facts.KubernetesService:
	case now.keys[0] == "": // they are topology.Unsatisfiable
		return placement{}
	default:
		now.set = t.getOrAddSet(now.keys)
	}
	return now
}

// publishSlice publishes the change of a slice to the classes whose parts of it differ.
func (t *step) publishSlice(o *facts.EndpointSet) {
	after := t.placementOf(o)
	was, is := t.slices[o].splitFor(&wire.Parts{}, t.labelsBefore), after.splitFor(&wire.Parts{}, t.facts.LabelsOf)
	t.slices[o] = after
	if o.Gone {
		delete(t.slices, o)
	}
	name := objectName{&kindSlice, o.Name()}
	t.putObject(t.common, name, t.commonObject(name), is.part(t.common))
	for c := range t.affected(was, is) {
		t.putObject(c, name, was.part(c), is.part(c))
	}
	t.addSlices(is.set, 1)
	t.addSlices(was.set, -1)
}

func (t *step) labelsBefore(name []byte) topology.Labels {
	if labels, changed := t.before[string(name)]; changed {
		return labels
	}
	return t.facts.LabelsOf(name)
}

// affected returns the classes of sets whose parts of a slice may differ: those that have one of the changed endpoints,
// before or after. Most changes are of one endpoint, which is in one class, so that the others need not be checked.
func (t *step) affected(was, is placement) map[*class]struct{} {
	beginning, end := 0, 0
	if was.set != nil && was.set == is.set && slices.Equal(was.keys, is.keys) &&
		wire.SameMeta(was.upstream.Meta, is.upstream.Meta) && was.parts.SameOthers(is.parts) {
		beginning, end = was.parts.CommonEnds(is.parts)
	}
	classes := make(map[*class]struct{})
	for _, e := range []placement{was, is} {
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

// updateNodeRefs counts the nodes whose labels a class needs for an object (more 1), or no longer needs for it (more
// -1). It publishes labels that the class did not need before, or no longer needs.
func (t *step) updateNodeRefs(c *class, o *object, more int) {
	if o == nil {
		return
	}
	for _, name := range o.nodeNames {
		labels := t.nodes[name].labels
		switch c.nodeRefs[name] += more; {
		case c.nodeRefs[name] == 0:
			delete(c.nodeRefs, name)
			t.putObject(c, labelsName(name), labels, nil)
		case c.nodeRefs[name] == 1 && more > 0:
			t.putObject(c, labelsName(name), nil, labels)
		}
	}
}

// commonObject returns an object of the common class; nil if that does not have it.
func (t *step) commonObject(name objectName) *object { return t.buckets[name.bucket()].objects[name] }

// putObject records the change of an object in a class, unless it is the same to a wrapper.
func (t *step) putObject(c *class, name objectName, before, after *object) {
	bucket := name.bucket()
	switch {
	case c != t.common:
	case after == nil:
		delete(t.buckets[bucket].objects, name)
	default:
		t.buckets[bucket].objects[name] = after
	}
	t.updateNodeRefs(c, after, 1)
	t.updateNodeRefs(c, before, -1)
	delta := after.digestOf() - before.digestOf()
	if delta == 0 {
		return
	}
	if c == t.common {
		t.buckets[bucket].chunks = nil
	}
	c.chunks = nil
	if c.digests[bucket] += delta; c.digests[bucket] == 0 {
		delete(c.digests, bucket)
	}
	if len(c.streams) == 0 {
		return
	}
	if t.classes[c] == nil {
		t.classes[c] = &classStep{make(map[objectName]*object), make(map[uint8]uint64)}
	}
	t.classes[c].objects[name] = after
	t.classes[c].added[bucket] += delta
}

// queueToStreams queues the changes of the classes at their streams.
func (t *step) queueToStreams() {
	end := newChunk(appendBookmark(nil, &hubv1alpha1.Bookmark{Ends: true, Version: t.version}))
	touched := make(map[*stream][]*chunk)
	queue := func(c *class, chunks ...*chunk) {
		for st := range c.streams {
			touched[st] = append(touched[st], chunks...)
		}
	}
	// Removals come first, because another class may have the same object now.
	for c, changed := range t.classes {
		var removals []byte
		for name, o := range changed.objects {
			switch {
			case o != nil:
			case name.kind == &kindLabels:
				gone := newChunk(appendRemoval(nil, name))
				for st := range c.streams {
					if !st.hasLabels(name) {
						touched[st] = append(touched[st], gone)
					}
				}
			default:
				removals = appendRemoval(removals, name)
			}
		}
		if removals != nil {
			queue(c, newChunk(removals))
		}
	}
	for c, changed := range t.classes {
		events := len(changed.objects)
		maps.DeleteFunc(changed.objects, func(_ objectName, o *object) bool { return o == nil })
		chunks := encode(&hubv1alpha1.Bookmark{Added: changed.added}, maps.Values(changed.objects))
		news := chunks[len(chunks)-1]
		news.events, news.received = events, t.change.Received
		queue(c, chunks...)
	}
	for n := range t.change.Relabelled {
		for c := range t.own.byValue[keyValue{ownKey, n.Name}] {
			for st := range c.streams {
				touched[st] = append(touched[st], t.moveStream(st)...)
			}
		}
	}
	for st, chunks := range touched {
		st.queueStep(append(chunks, end))
	}
}

// moveStream moves a stream from the classes of a node's old labels to those of its new ones, and returns the
// differences.
func (t *step) moveStream(st *stream) []*chunk {
	were, before := st.classes, st.digests()
	t.joinClasses(st)
	mark := &hubv1alpha1.Bookmark{Added: make(map[uint8]uint64)}
	for bucket, digest := range st.digests() {
		if digest != before[bucket] {
			mark.Added[uint8(bucket)] = digest - before[bucket]
		}
	}
	gone := make(map[objectName]struct{})
	left := lacking(were, st.classes)
	for _, c := range left {
		for o := range t.slicesOf(c) {
			gone[objectName{&kindSlice, o.Name()}] = struct{}{}
		}
		for name := range c.nodeRefs {
			gone[labelsName(name)] = struct{}{}
		}
	}
	gained := lacking(st.classes, were)
	chunks := make([]*chunk, 0, len(gained))
	for _, c := range gained {
		for o := range t.slicesOf(c) {
			delete(gone, objectName{&kindSlice, o.Name()})
		}
		chunks = append(chunks, t.chunks(c, nil)...)
	}
	t.leave(st, left)
	var frames []byte
	for name := range gone {
		if !st.hasLabels(name) {
			frames = appendRemoval(frames, name)
		}
	}
	return append([]*chunk{newChunk(appendBookmark(frames, mark))}, chunks...)
}

// lacking returns those of some classes that others lack.
func lacking(some, others []*class) []*class {
	return slices.DeleteFunc(slices.Clone(some), func(c *class) bool { return slices.Contains(others, c) })
}

// hasLabels reports whether an object is the labels of a node, and these are in the share of a stream.
func (st *stream) hasLabels(o objectName) bool {
	return o.kind == &kindLabels && st.shares.nodes[o.name.Name].labels != nil &&
		slices.ContainsFunc(st.classes, func(c *class) bool { return c.nodeRefs[o.name.Name] > 0 })
}
