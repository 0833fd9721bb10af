package history

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/watch"
)

// slot is one incarnation of an object: from its creation to its deletion. The History's lock guards it.
type slot struct {
	// object is the current version; nil once the object was deleted.
	object *Object
}

// order has the current version of every object of a table by revision, and the versions that a selector may still ask
// for. A cursor that has fallen off the log goes on from here. The History's lock guards it.
type order struct {
	// current is sorted by revision. An entry whose slot has another revision by now is stale.
	current []orderEntry
	stale   int
	// retired is sorted by revision.
	retired []retiredVersion
	// floor is the newest revision whose later retired versions may be missing.
	floor uint64
	// bytes is the memory that the retired versions hold on to.
	bytes    int
	maxBytes int
	// torn are the spans of events that were returned out of turn, oldest first. A client that has the revision of such
	// an event, and no bookmark after it, may hold a state that the table never had.
	torn []span
}

// maxTorn is how many spans are told apart. Of more, the oldest two become one.
const maxTorn = 16

type orderEntry struct {
	revision uint64
	slot     *slot
}

func (e orderEntry) isStale() bool {
	return e.slot.object == nil || e.slot.object.Revision != e.revision
}

// retiredVersion is the version of an object up to the change at revision: its deletion, or another value of its
// labels or fields.
type retiredVersion struct {
	revision uint64
	slot     *slot
	object   *Object
	deleted  bool
}

func (v retiredVersion) size() int { return 64 + v.object.size() }

// span is the events above after, up to and including upTo.
type span struct{ after, upTo uint64 }

// isTorn reports whether a client that presents the revision may hold a state that the table never had.
func (o *order) isTorn(revision uint64) bool {
	return !isState(revision) && slices.ContainsFunc(o.torn, func(s span) bool { return s.after < revision && revision <= s.upTo })
}

// tear notes that a cursor returned newest versions from after a revision up to another. Whoever goes on from one of
// these events may not know of an object that came before it and changed after it.
func (o *order) tear(s span) {
	// The spans of one cursor that catches up begin at the same revision.
	o.torn = slices.DeleteFunc(o.torn, func(t span) bool { return t.after == s.after && t.upTo <= s.upTo })
	o.torn = append(o.torn, s)
	if len(o.torn) > maxTorn {
		o.torn[1] = span{min(o.torn[0].after, o.torn[1].after), max(o.torn[0].upTo, o.torn[1].upTo)}
		o.torn = o.torn[1:]
	}
}

// entered notes the current version of a slot, which may have had another one before.
func (o *order) entered(s *slot, replaced bool) {
	o.current = append(o.current, orderEntry{s.object.Revision, s})
	if replaced {
		o.noteStale()
	}
}

// noteStale counts an entry that became stale, and removes all such entries when they are as many as the others.
func (o *order) noteStale() {
	o.stale++
	if 2*o.stale < len(o.current)+64 {
		return
	}
	o.current = slices.DeleteFunc(o.current, orderEntry.isStale)
	o.stale = 0
}

// retire keeps a version that was replaced at a revision.
func (o *order) retire(v retiredVersion) {
	o.retired = append(o.retired, v)
	o.bytes += v.size()
	drop := 0
	for drop < len(o.retired) && o.bytes > o.maxBytes {
		o.bytes -= o.retired[drop].size()
		o.floor = o.retired[drop].revision
		o.retired[drop] = retiredVersion{}
		drop++
	}
	o.retired = o.retired[drop:]
}

// clear forgets the past up to a revision, from which cursors may start.
func (o *order) clear(floor uint64) {
	o.retired, o.bytes, o.floor, o.torn = nil, 0, floor, nil
}

// catchUp is a cursor's way back to the newest state, after it fell off the log. It belongs to the cursor.
type catchUp struct {
	// start is the revision at which the client's state was that of the table.
	start uint64
	// sent has the revision of every version that was returned since.
	sent map[*slot]uint64
}

// known is the revision at which the client knew an object.
func (c *catchUp) known(s *slot) uint64 {
	if revision, ok := c.sent[s]; ok {
		return revision
	}
	return c.start
}

// next is up to limit events after a revision: of each object only the newest state. With fewer than limit the client has
// caught up. ok is false if what the client knew of the objects is not held any more.
func (o *order) next(c *catchUp, after uint64, limit int) (events []Event, ok bool) {
	if c.start < o.floor {
		return nil, false
	}
	before := o.previous(c)
	i := sort.Search(len(o.current), func(i int) bool { return o.current[i].revision > after })
	j := sort.Search(len(o.retired), func(j int) bool { return o.retired[j].revision > after })
	for len(events) < limit && (i < len(o.current) || j < len(o.retired)) {
		if j < len(o.retired) && (i == len(o.current) || o.retired[j].revision < o.current[i].revision) {
			if v := o.retired[j]; v.deleted && v.object.created <= c.known(v.slot) {
				events = append(events, Event{Type: watch.Deleted, Object: v.object.at(v.revision), Previous: before[v.slot]})
				delete(c.sent, v.slot)
			}
			j++
			continue
		}
		entry := o.current[i]
		i++
		if entry.isStale() {
			continue
		}
		event := Event{Type: watch.Modified, Object: entry.slot.object, Previous: before[entry.slot]}
		switch {
		case entry.slot.object.created > c.known(entry.slot):
			event = Event{Type: watch.Added, Object: entry.slot.object}
		case event.Previous == nil:
			// Its labels and fields are as they were.
			event.Previous = entry.slot.object
		}
		c.sent[entry.slot] = entry.revision
		events = append(events, event)
	}
	return events, true
}

// previous has, of the objects whose labels or fields changed and of those that were deleted, the version that the
// client knows.
func (o *order) previous(c *catchUp) map[*slot]*Object {
	before := make(map[*slot]*Object)
	from := sort.Search(len(o.retired), func(j int) bool { return o.retired[j].revision > c.start })
	for _, v := range o.retired[from:] {
		if _, found := before[v.slot]; !found && v.revision > c.known(v.slot) {
			before[v.slot] = v.object
		}
	}
	return before
}
