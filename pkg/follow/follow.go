package follow

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Sink takes the objects that a Source receives. Its methods are called by one goroutine at a time. The Sinks of the
// wrapper and the hub are the Inputs of package storage/facts.
//
// A Sink may also be an ObjectCounter, a Forbidder, Restorable, Versioned, or a Reducer.
type Sink interface {
	// Apply adds or replaces an object.
	Apply(object *wire.Object)
	// Remove removes an object.
	Remove(namespace, name string)
	// Replace replaces all objects.
	Replace(objects []*wire.Object)
	// SetAbsent notes that the upstream does not serve the resource. It is not called for a needed source that was
	// listed before.
	SetAbsent()
}

// ObjectCounter is a Sink that has objects from elsewhere, such as from a snapshot.
type ObjectCounter interface {
	// ObjectCount returns the number of objects that an empty list would remove.
	ObjectCount() int
}

// Forbidder is a Sink that works without a resource that the program may not read.
type Forbidder interface {
	// SetForbidden notes that the upstream has been refusing the source for a while. It is called for optional sources,
	// once per lasting refusal.
	SetForbidden()
}

// Restorable is a Sink that takes what a cache before the API server has restored, or corrects while the API server is
// away: answers with the warning apiclient.Disconnected.
type Restorable interface {
	// SetRestored notes whether the objects are restored. It is called before the first change that is, and after a
	// list that is not.
	SetRestored(restored bool)
}

// Versioned is a Sink that also takes the resourceVersions of the upstream.
type Versioned interface {
	// ChangeAt is called with the resourceVersion of every list and event. It calls change, which calls one of the
	// methods of Sink. For a bookmark, change is nil: nothing else has changed up to that version.
	ChangeAt(version string, change func())
}

// Reducer is a Sink that keeps only a part of what the upstream sends.
type Reducer interface {
	// Reduce returns what is kept of an object, which it must not change. The methods of Sink get the result.
	Reduce(object *wire.Object) *wire.Object
}

// Barrier holds back the changes of all sources of a Group, so that they are applied as one. Calls of Hold and Release
// alternate, and every Hold is followed by a Release. They must not call the Group.
type Barrier interface {
	Hold()
	Release()
}

// Options configure a Source.
type Options struct {
	// Name is the source's name in states, metrics and logs.
	Name string
	// Agent, if set, replaces Name in the User-Agent, for sources that share a name. No two sources of a program may
	// have the same Agent: caching proxies cache one answer per User-Agent and resource, whatever the rest of the
	// request says.
	Agent    string
	Resource schema.GroupVersionResource
	// Namespace, LabelSelector and FieldSelector narrow the requests.
	Namespace, LabelSelector, FieldSelector string
	// MetadataOnly asks for PartialObjectMetadata. An upstream may send whole objects nevertheless.
	MetadataOnly bool
	// Optional is set for a source that an upstream may lack or refuse without harm. Other sources are needed: an
	// outage lasts until all of them have caught up.
	Optional bool
	// Stream, if set, replaces lists and watches: it follows one stream to its end, and calls stepped with the version
	// of every applied step. The next one begins Every after it has returned nil. The Sink is not used. Silence is how
	// long a response may be silent.
	Stream  func(ctx context.Context, stepped func(version string)) error
	Silence time.Duration
	// Every is the pause after a Stream that has returned nil; Group.Retry ends it.
	Every time.Duration
	// Witness, if set, is called before an empty list replaces known objects. If it returns an error, the list is not
	// used. See Group.NodeWitness.
	Witness func(context.Context) error
	Sink    Sink
}

// State is the state of one source.
type State struct {
	Name     string
	Optional bool
	// Started is set from Source.Start to Source.Stop.
	Started bool
	// Synced is set after the first complete list.
	Synced bool
	// Absent is set while the upstream answers that it does not serve the resource.
	Absent bool
	// Forbidden is set when the upstream has refused the source (401 or 403) for 30 s, or an optional source three
	// times in a row.
	Forbidden bool
	// ForbiddenSince is since when all attempts were answered with 403; zero if the last one was not.
	ForbiddenSince time.Time
	// FromCache is set while the upstream answers from a cache. Err is also set then.
	FromCache bool
	// Answered is set once any response has begun.
	Answered bool
	// Err is why the last list or watch failed; nil if it did not. FailingSince is when the first failure occurred
	// since the source last followed the upstream, or listed; it has no meaning without Err.
	Err          error
	FailingSince time.Time
	// LastContact is when the source last received anything from the API server: a list, an event, a bookmark, or a
	// watch that stayed open. It is zero if everything so far came from a cache.
	LastContact time.Time
	// ResourceVersion is the upstream's resourceVersion up to which the source has followed.
	ResourceVersion string
	// Lists counts the complete lists since the source was made, over all its starts.
	Lists uint64
}
