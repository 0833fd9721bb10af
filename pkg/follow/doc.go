// Package follow follows resources of an API server, or of what is before it: it lists, watches, and hands what it
// hears to a Sink. All programs here that keep the state of a cluster do it with this package.
//
// A Source is one resource, narrowed by namespace and selectors. A Group has the sources of one upstream, which share
// one HTTP client, one backoff and one outage. The package keeps no objects.
//
// # Why not client-go's reflector
//
// The protocol is the reflector's: LIST at the last known resourceVersion, WATCH from there, LIST again after 410.
// Three things are not to be had from it: a backoff that several reflectors share, the end of an outage as one event,
// and a watch that is noticed to be answered from a cache. Streaming lists (sendInitialEvents) are not asked for:
// caching edge proxies accept them and never send the bookmark that ends the initial events.
//
// # Attempts
//
// When a source fails, it waits for the next round of attempts of its Group, and all sources that wait then try
// together. The pause between two rounds is random around 0.5 s at first and doubles up to 15 s. When one source
// succeeds after a failure, the others try at once. An optional source has pauses of its own, of more than a minute in
// the end, so that what an upstream does not have does not cost it a request every few seconds.
//
// # Outages
//
// When two or more needed sources failed, what the first of them says after that is to be seen together with what the
// others say: a node's new unit with the endpoints of the old one is a state that never was. So the Group calls
// Barrier.Hold before the first one says anything, and Barrier.Release once all have caught up, 30 s later at most.
//
// # What is not believed
//
// Proxies at the edge make things up while the API server is away:
//
//   - a list of nothing that has no resourceVersion, where something was known, is an error;
//   - so is a list that is older than the resourceVersion that was asked for;
//   - watches that end at once with nothing, three times in a row, come from a cache: the State says FromCache, and
//     neither they nor lists that bring no newer resourceVersion count as contact;
//   - a 404 takes nothing away that was known, unless the source is optional.
//
// # Time
//
// The package takes time and timers from package time. Its tests run in bubbles of testing/synctest, where that is
// not the machine's.
package follow
