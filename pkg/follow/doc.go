// Package follow follows resources of an API server, or of a proxy before it: it lists and watches them, and passes
// what it receives to a Sink. All programs of the project that keep the state of a cluster use it.
//
// A Source follows one resource, narrowed by namespace and selectors. A Group has the sources of one upstream, which
// share one HTTP client, one backoff and one outage. The package does not store objects.
//
// # Why not client-go's reflector
//
// The protocol is the reflector's: LIST at the last known resourceVersion, WATCH from there, LIST again after 410. The
// reflector lacks three things: a backoff that several sources share, a signal for the end of an outage, and the
// detection of watches that are answered from a cache. The package does not use streaming lists (sendInitialEvents),
// because caching edge proxies accept them and never send the bookmark that ends the initial events.
//
// # Attempts
//
// A source that failed waits for the next round of attempts of its Group, in which all waiting sources try together.
// The pause between two rounds is random around 0.5 s at first, and doubles up to 15 s. When one source succeeds after
// a failure, the others try at once, except for optional ones that the upstream refused or answered with 404. An
// optional source has its own pauses, which grow to more than a minute, so that an upstream that lacks a resource does
// not get a request for it every few seconds.
//
// # Outages
//
// After an outage of two or more needed sources (those that are not optional), the data of the first one must not be
// applied before the others deliver: the new labels of a node together with old endpoints are a state that the cluster
// never had. So the Group calls Barrier.Hold before the first source delivers anything, and Barrier.Release once all
// have caught up, or after 30 s.
//
// # Answers that are not trusted
//
// While the API server is away, proxies at the edge may send wrong answers. So:
//
//   - an empty list without a resourceVersion is an error if objects were known;
//   - an empty list is an error if objects were known and Options.Witness, if set, returns an error;
//   - a list that is older than the requested resourceVersion is an error, and comes from a cache (see below);
//   - three watches in a row that end at once without an event come from a cache, and so does one with the warning 112
//     (apiclient.Disconnected), which lite-apiserver holds: State.FromCache is set, and neither these watches nor lists
//     without a newer resourceVersion count as contact;
//   - with that warning a Restorable Sink gets the changes of the cache. Afterwards the source lists, because only a
//     list has everything that the cache did not have;
//   - a 404 does not remove what was listed, unless the source is optional.
//
// # API servers that were restored
//
// An API server that was restored from a backup has lower versions, and is silent on a watch from a version that it has
// not reached. So when a source watches again after a watch broke or an attempt failed, it asks for the version with
// one small request. If the version is refused as too large, the source lists the resource again.
//
// The API server may have passed the version before the source is back. The versions do not show that, so a source
// always lists after 5 minutes without contact, and every 12 hours on average.
//
// # Time
//
// The package uses the clock and timers of package time. Its tests run in bubbles of testing/synctest.
package follow
