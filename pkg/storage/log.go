package storage

import (
	"sort"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// Event is one change of one served object.
type Event struct {
	// Type is Added, Modified or Deleted.
	Type watch.EventType
	// Object is the new version; of a deleted object the last one, with the revision of the deletion.
	Object *Object
	// Previous is the version before; nil for Added.
	Previous *Object
	// Received is when the upstream's change that caused this one arrived.
	Received time.Time
}

// Gone is the last version that a watcher knew to whom the event means that the object is gone: because it
// was deleted, or because the watcher's selector does not match the new version. It has the event's revision.
func (e Event) Gone() *Object {
	if e.Type == watch.Deleted {
		return e.Object
	}
	return e.Previous.at(e.Object.Revision)
}

// eventLog is the bounded history of one table, oldest event first. Guarded by the Store's lock.
type eventLog struct {
	events []Event
	// floor is the newest revision whose later events may be missing: a watcher may resume from floor and
	// from anything after it.
	floor uint64
	// bytes is the memory that the events hold on to.
	bytes     int
	maxEvents int
	maxBytes  int

	// changed is closed, and replaced, after events were appended.
	changed chan struct{}
	dirty   bool
}

func newEventLog(maxEvents, maxBytes int) *eventLog {
	return &eventLog{maxEvents: maxEvents, maxBytes: maxBytes, changed: make(chan struct{})}
}

func (l *eventLog) append(e Event) {
	l.events = append(l.events, e)
	l.bytes += eventSize(e)
	l.dirty = true
	drop := 0
	for drop < len(l.events)-1 && (len(l.events)-drop > l.maxEvents || l.bytes > l.maxBytes) {
		l.bytes -= eventSize(l.events[drop])
		l.floor = l.events[drop].Object.Revision
		l.events[drop] = Event{}
		drop++
	}
	// The head of the slice is given back when append next moves it to a larger array.
	l.events = l.events[drop:]
}

// eventSize counts the version that the event replaced: the new one is held by the table or by its own
// replacement.
func eventSize(e Event) int {
	if e.Previous != nil {
		return e.Previous.size()
	}
	return e.Object.size()
}

// after returns up to limit events with a revision above the given one. ok is false when events between are
// gone from the log.
func (l *eventLog) after(revision uint64, limit int) (events []Event, ok bool) {
	if revision < l.floor {
		return nil, false
	}
	i := sort.Search(len(l.events), func(i int) bool { return l.events[i].Object.Revision > revision })
	return l.events[i:min(len(l.events), i+limit)], true
}

// broadcast wakes every watcher if there is something new.
func (l *eventLog) broadcast() {
	if l.dirty {
		close(l.changed)
		l.changed = make(chan struct{})
		l.dirty = false
	}
}
