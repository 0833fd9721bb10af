package history

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Event is one change of one object, or several changes of it taken as one.
type Event struct {
	// Type is Added, Modified or Deleted.
	Type watch.EventType
	// Object is the new version; of a deleted object the last one, with the revision of the deletion.
	Object *Object
	// Previous is a version with the labels and fields that the watcher knew before; nil for Added.
	Previous *Object
	// Received is when the upstream's change that caused this one arrived. It is zero for an event that stands for
	// several changes.
	Received time.Time
}

// Gone is the last version that a watcher knew to whom the event means that the object is gone: because it was deleted,
// or because the watcher's selector does not match the new version. It has the event's revision.
func (e Event) Gone() *Object {
	if e.Type == watch.Deleted {
		return e.Object
	}
	return e.Previous.at(e.Object.Revision)
}

// eventLog has every event of the recent past, oldest first. The History's lock guards it.
type eventLog struct {
	events []Event
	// floor is the newest revision whose later events may be missing: a cursor may go on from floor and from anything
	// after it.
	floor uint64
	// bytes is the memory that the events hold on to.
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
	// append gives the head of the slice back when it next moves the events to a larger array.
	l.events = l.events[drop:]
}

// eventSize counts the version that the event replaced: the new one is held by the table or by its own replacement.
func eventSize(e Event) int {
	const event = 128 // the Event, and what a deletion adds to the version that it holds on to
	if e.Previous != nil {
		return event + e.Previous.size()
	}
	return event
}

// clear forgets all events up to a revision, from which cursors may start.
func (l *eventLog) clear(floor uint64) {
	l.events, l.bytes, l.floor = nil, 0, floor
}

// after returns up to limit events with a revision above the given one. ok is false when events between are gone from
// the log.
func (l *eventLog) after(revision uint64, limit int) (events []Event, ok bool) {
	if revision < l.floor {
		return nil, false
	}
	i := sort.Search(len(l.events), func(i int) bool { return l.events[i].Object.Revision > revision })
	return l.events[i:min(len(l.events), i+limit)], true
}
