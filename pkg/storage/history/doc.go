// Package history keeps versioned tables of API objects for clients that list and watch them.
//
// A History has one Table per served Resource. Package view writes it, in atomic steps (History.Update); package serve
// reads it. Every change of a table gets a resourceVersion from Revisions: a decimal number, which grows over all
// tables of the History.
//
// # How a watcher follows
//
// A watcher has a Cursor: a revision, and no buffer. The writer never waits for a slow watcher. A table keeps its past
// in two forms.
//
//   - The log has every event of the recent past, within a bound on its memory. A cursor within the log gets the events
//     one by one.
//   - The order has the current version of every object, sorted by revision, and retired versions: those of deleted
//     objects, and of objects whose labels or fields changed, which selectors need. A cursor that has fallen behind the
//     log gets from the order the newest version of each object that changed since. It skips the versions in between,
//     and its client needs no new list.
//
// So a burst that changes every object of a table does not expire any cursor, and a client that is too slow for every
// event gets the newest state at its own pace. Only a cursor that is older than the retired versions gets ErrExpired.
//
// A client whose connection breaks while it catches up, before it got a bookmark, may hold a state that the table never
// had. The table records which events it returned out of order, and a cursor that would start at one of them gets
// ErrExpired.
//
// The package knows nothing of topology and nothing of HTTP.
package history
