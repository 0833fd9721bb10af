package history

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/watch"
)

// slot is one object from its creation to its deletion. The History's lock guards it.
type slot struct {
	// object is the current version; nil once the object was deleted.
	object *Object
}

// order has the current versions of a table's objects by revision, and the retired versions that selectors need. A
// cursor that is behind the log continues from here. The History's lock guards it.
type order struct {
	// current is sorted by revision, except for what Update.Restore added, which is older than any cursor. An entry is
	// stale if its slot has another revision by now; stale counts these.
	current []orderEntry
	stale   int
	// retired is sorted by revision.
	retired []retiredVersion
	// floor is the oldest revision from which a cursor may start: all versions that were retired after it are in
	// retired.
	floor uint64
	// bytes is the memory that the retired versions hold.
	bytes    int
	maxBytes int
	// torn has the spans of events that were returned out of order, oldest first. A client that presents the revision
	// of such an event, because it got no bookmark after it, may hold a state that the table never had.
	torn []span
}

// maxTorn is the most spans in torn. If there are more, the oldest two are merged.
const maxTorn = 16

type orderEntry struct {
	revision uint64
	slot     *slot
}

func (e orderEntry) isStale() bool {
	return e.slot.object == nil || e.slot.object.Revision != e.revision
}

// retiredVersion is the version of an object before the change at revision, which deleted the object or changed its
// labels or fields.
type retiredVersion struct {
	revision uint64
	slot     *slot
	object   *Object
	deleted  bool
}

func (v retiredVersion) size() int { return 64 + v.object.size() }

// span has the events with revisions above after, up to and including upTo.
type span struct{ after, upTo uint64 }

// isTorn reports whether a client that presents the revision may hold a state that the table never had.
func (o *order) isTorn(revision uint64) bool {
	return !isState(revision) &&
		slices.ContainsFunc(o.torn, func(s span) bool { return s.after < revision && revision <= s.upTo })
}

// tear notes that a cursor returned only the newest versions of a span. A client that continues from one of these
// events may lack an object whose earlier version was skipped and whose newest one it did not get.
func (o *order) tear(s span) {
	// All spans of a cursor that catches up begin at the same revision, so a new one may include earlier ones.
	o.torn = slices.DeleteFunc(o.torn, func(t span) bool { return t.after == s.after && t.upTo <= s.upTo })
	o.torn = append(o.torn, s)
	if len(o.torn) > maxTorn {
		o.torn[1] = span{min(o.torn[0].after, o.torn[1].after), max(o.torn[0].upTo, o.torn[1].upTo)}
		o.torn = o.torn[1:]
	}
}

func (o *order) entered(s *slot) { o.current = append(o.current, orderEntry{s.object.Revision, s}) }

// noteStale counts an entry that became stale. It removes all stale entries once they are about half of all.
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

// clear drops the past. Cursors may start from floor.
func (o *order) clear(floor uint64) {
	o.retired, o.bytes, o.floor, o.torn = nil, 0, floor, nil
}

// catchUp is the progress of a cursor that is behind the log towards the newest state. It belongs to the cursor.
type catchUp struct {
	// start is the revision at which the client's state was last the same as the table's.
	start uint64
	// sent has the revisions of the versions that were returned since.
	sent map[*slot]uint64
}

// known returns the revision up to which the client knows an object.
func (c *catchUp) known(s *slot) uint64 {
	if revision, ok := c.sent[s]; ok {
		return revision
	}
	return c.start
}

// next returns up to limit events after a revision, with only the newest version of each object. If there are fewer
// than limit, the client has caught up. ok is false if retired versions that the client knew are not held any more.
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
				events = append(events, Event{
					Type:     watch.Deleted,
					Object:   v.object.at(v.revision),
					Previous: before[v.slot],
				})
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
			// Labels and fields have not changed, so for selectors the new version equals the old one.
			event.Previous = entry.slot.object
		}
		c.sent[entry.slot] = entry.revision
		events = append(events, event)
	}
	return events, true
}

// previous returns the versions that the client knows of objects that were deleted, or whose labels or fields changed.
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
