// Package history keeps versioned tables of API objects for clients that list and watch them.
//
// A History has one Table per served Resource. Package view writes it, in atomic steps (History.Update); package serve
// reads it. Every change of a table gets a resourceVersion from Revisions: a decimal number, which grows over all
// tables of the History.
//
// # How a watcher follows
//
// A watcher has a Cursor: a revision, and no buffer. The writer never waits for a slow watcher. A table has a log of
// the recent events, within a bound on its memory. A cursor within the log gets the events one by one; one that has
// fallen behind it gets ErrExpired, and its client lists again. The versions that the table shows do not count towards
// the bound, so a step that changes every object of a large table expires no cursor.
//
// The package knows nothing of topology and nothing of HTTP.
package history
