package history

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Event is one change of one object, or several changes of it combined.
type Event struct {
	// Type is Added, Modified or Deleted.
	Type watch.EventType
	// Object is the new version. For a deleted object it is the last version, with the revision of the deletion.
	Object *Object
	// Previous is a version with the labels and fields that the watcher knew before; nil for Added.
	Previous *Object
	// Received is when the upstream's change that caused this one arrived. It is zero if the event combines several
	// changes.
	Received time.Time
}

// Gone returns the object of the DELETED event for a watcher that does not see the object any more: the object was
// deleted, or the watcher's selector does not match the new version. It is the version that the watcher knew last, with
// the revision of the event.
func (e Event) Gone() *Object {
	if e.Type == watch.Deleted {
		return e.Object
	}
	return e.Previous.at(e.Object.Revision)
}

// eventLog has every event of the recent past, oldest first. The History's lock guards it.
type eventLog struct {
	events []Event
	// floor is the oldest revision from which a cursor may start: all events after it are in the log.
	floor uint64
	// bytes is the memory that the events hold.
	bytes     int
	maxEvents int
	maxBytes  int
}

func (l *eventLog) append(e Event) {
	l.events = append(l.events, e)
	l.bytes += eventSize(e)
	drop := 0
	for drop < len(l.events)-1 && (len(l.events)-drop > l.maxEvents || l.bytes > l.maxBytes) {
		l.bytes -= eventSize(l.events[drop])
		l.floor = l.events[drop].Object.Revision
		l.events[drop] = Event{}
		drop++
	}
	// The memory of the dropped events is freed when append next moves the events to a larger array.
	l.events = l.events[drop:]
}

// eventSize returns the memory that an event holds: the version that it replaced. The new version is held by the table,
// or counted with the event that replaced it.
func eventSize(e Event) int {
	const event = 128 // the Event itself, and the Object that a deletion adds
	if e.Previous != nil {
		return event + e.Previous.size()
	}
	return event
}

// clear drops all events. Cursors may start from floor.
func (l *eventLog) clear(floor uint64) {
	l.events, l.bytes, l.floor = nil, 0, floor
}

// after returns up to limit events with a revision above the given one. ok is false if some of them are not in the log
// any more.
func (l *eventLog) after(revision uint64, limit int) (events []Event, ok bool) {
	if revision < l.floor {
		return nil, false
	}
	i := sort.Search(len(l.events), func(i int) bool { return l.events[i].Object.Revision > revision })
	return l.events[i:min(len(l.events), i+limit)], true
}
