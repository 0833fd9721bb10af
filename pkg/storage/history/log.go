package history

import (
	"maps"
	"slices"
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Event is one change of one object.
type Event struct {
	// Type is Added, Modified or Deleted.
	Type watch.EventType
	// Object is the new version. For a deleted object it is the last version, with the revision of the deletion.
	Object *Object
	// Previous is a version with the labels and fields that the watcher knew before; nil for Added.
	Previous *Object
	// Received is when the upstream's change that caused this one arrived.
	Received time.Time
}

// DeletedObject returns the object of the DELETED event for a watcher that no longer sees the object: the object was
// deleted, or the watcher's selector does not match the new version. It is the version that the watcher knew last, with
// the revision of the event.
func (e Event) DeletedObject() *Object {
	if e.Type == watch.Deleted {
		return e.Object
	}
	return e.Previous.withRevision(e.Object.Revision)
}

// eventLog has every event of the recent past, oldest first. The History's lock guards it.
type eventLog struct {
	entries []entry
	// floor is the oldest revision from which a cursor may start: all events after it are in the log.
	floor uint64
	// bytes is the sum of the entries' sizes.
	bytes     int
	maxEvents int
	maxBytes  int
}

// entry is an event, with the memory that it holds. A version that the table shows is not counted, so a change of every
// object of a large table fits.
type entry struct {
	Event

	bytes int
}

const (
	// entryBytes is the memory of an entry, without what its event holds.
	entryBytes = 64
	// objectBytes is the memory of an Object, without its Version's parts.
	objectBytes = 192
)

// append appends an event. Its Previous, if any, was shown until now.
func (l *eventLog) append(e Event) {
	size := entryBytes
	if e.Previous != nil {
		if i := l.after(e.Previous.Revision - 1); i < len(l.entries) && l.entries[i].Object == e.Previous {
			l.entries[i].bytes += e.Previous.size() // its own event holds it now
			l.bytes += e.Previous.size()
		}
		switch {
		case e.Type == watch.Deleted:
			size += objectBytes + e.Previous.size()
		case maps.Equal(e.Previous.Labels, e.Object.Labels) && slices.Equal(e.Previous.Fields, e.Object.Fields):
			e.Previous = e.Object // selectors see no difference
		default:
			size += e.Previous.size()
		}
	}
	l.entries = append(l.entries, entry{e, size})
	l.bytes += size
	drop := 0
	for drop < len(l.entries)-1 && (len(l.entries)-drop > l.maxEvents || l.bytes > l.maxBytes) {
		l.bytes -= l.entries[drop].bytes
		l.floor = l.entries[drop].Object.Revision
		l.entries[drop] = entry{}
		drop++
	}
	// The memory of the dropped entries is freed when append next moves the entries to a larger array.
	l.entries = l.entries[drop:]
}

// clear drops all events. Cursors may start from floor.
func (l *eventLog) clear(floor uint64) {
	l.entries, l.bytes, l.floor = nil, 0, floor
}

// after returns the index of the first entry with a revision above the given one.
func (l *eventLog) after(revision uint64) int {
	return sort.Search(len(l.entries), func(i int) bool { return l.entries[i].Object.Revision > revision })
}

// next returns up to limit events with a revision above the given one. ok is false if some of them are no longer in the
// log.
func (l *eventLog) next(revision uint64, limit int) (events []Event, ok bool) {
	if revision < l.floor {
		return nil, false
	}
	i := l.after(revision)
	for _, e := range l.entries[i:min(len(l.entries), i+limit)] {
		events = append(events, e.Event)
	}
	return events, true
}
