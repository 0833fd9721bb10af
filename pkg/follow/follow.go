package follow

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/wire"
)

// Sink takes what a Source hears. Its methods are called by one goroutine at a time.
//
// A Sink may also have the methods of Knower and Forbidder.
type Sink interface {
	// Apply takes an object that is new or changed.
	Apply(object *wire.Object)
	// Remove takes the name of an object that is gone.
	Remove(namespace, name string)
	// Replace takes the complete state.
	Replace(objects []*wire.Object)
	// SetAbsent says that the upstream does not serve the resource. It is not called for a needed source that was
	// listed before.
	SetAbsent()
}

// Knower is a Sink that has objects from elsewhere, such as from a snapshot.
type Knower interface {
	// Known is the number of objects that a list of nothing would take away.
	Known() int
}

// Forbidder is a Sink that is to go on without a resource that the program may not read.
type Forbidder interface {
	// SetForbidden says that the upstream has been refusing the source for a while. It is called for optional sources,
	// once per refusal that lasts.
	SetForbidden()
}

// Barrier holds back what all sources of a Group say, so that it becomes one change. Hold and Release alternate, and
// a Release follows every Hold. They must not call the Group.
type Barrier interface {
	Hold()
	Release()
}

// Options say what a Source follows.
type Options struct {
	// Name is what the source is called in states, metrics and logs.
	Name string
	// Agent, if set, takes the place of Name in the User-Agent, where several sources have one name. No two sources
	// of a program may have the same: caching proxies keep one answer per User-Agent and resource, whatever was
	// asked for.
	Agent    string
	Resource schema.GroupVersionResource
	// Namespace, LabelSelector and FieldSelector narrow what is asked for.
	Namespace, LabelSelector, FieldSelector string
	// MetadataOnly asks for PartialObjectMetadata. An upstream may send whole objects nevertheless.
	MetadataOnly bool
	// Optional is set for a source that an upstream may lack, or refuse, without harm. The others are needed: an
	// outage lasts until all of them have caught up.
	Optional bool
	// Witness, if set, is asked before a list of nothing is believed where something was known. An error says why it
	// is not. See Group.KnowsNode.
	Witness func(context.Context) error
	Sink    Sink
}

// State is what is known of one source.
type State struct {
	Name     string
	Optional bool
	// Started is set while the source is to be followed.
	Started bool
	// Synced is set with the first complete list.
	Synced bool
	// Absent is set while the upstream answers that it does not serve the resource.
	Absent bool
	// Forbidden is set when the upstream has refused the source (401 or 403) for a while: three times in a row if it
	// is optional, and 30 s if it is needed.
	Forbidden bool
	// FromCache is set while the upstream evidently answers from a cache. Err is set then, too.
	FromCache bool
	// Answered is set once any response has begun, whatever it is.
	Answered bool
	// Err is why the last list or watch failed; nil while the source is followed.
	Err error
	// LastContact is when the upstream was last heard of on this source: a list, an event, a bookmark, or a watch that
	// stayed open. The zero time if all it ever said came from a cache.
	LastContact time.Time
	// ResourceVersion is the upstream's, as far as the source has followed.
	ResourceVersion string
	// Lists counts the complete lists, also those of earlier starts.
	Lists uint64
}
