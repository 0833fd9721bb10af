// Package history keeps versioned tables of API objects for clients that list and watch them.
//
// A History has one Table per served Resource. Package view writes it, in atomic steps (History.Update); package serve
// reads it. Every change of a table gets a resourceVersion from Revisions: decimal, and growing over all tables of
// the process.
//
// # How a watcher follows
//
// A watcher is a Cursor: a revision, and no buffer. It never blocks the writer. A table remembers its past in two ways.
//
//   - The log has every event of the recent past, bounded by the memory that it holds on to. A cursor within the log
//     gets the events one by one.
//   - The order has the current version of every object, by revision, and the retired versions that a selector may
//     still ask for: of deleted objects, and of objects whose labels or fields changed. A cursor that has fallen behind
//     the log gets from there the newest version of each object that changed since. It skips versions that came and
//     went in between, and needs no new list.
//
// So a burst that changes every object of a table expels nobody, and a client that is too slow for every event gets the
// newest state at its own pace. Only a cursor that is older than the retired versions gets ErrExpired.
//
// A client whose connection breaks while it catches up, or before it got a bookmark after that, holds a state that the
// table may never have had. The table notes the events that it returned out of turn; a cursor that would start at one of
// them gets ErrExpired.
//
// The package knows nothing of topology and nothing of HTTP.
package history
