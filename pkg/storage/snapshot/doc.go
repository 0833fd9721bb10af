// Package snapshot stores the state that the wrapper serves on the node's disk, for a node that restarts while its
// upstream is away.
//
// A state directory has a store of package program/store, which belongs to one process at a time. The store has the
// latest facts.Snapshot, a key for each object, and the revision above which the next process numbers its events. An
// incomplete State, or that of another node, is never served.
//
// Flash memory wears out. So a Writer writes only changes of objects that this node sees, never more often than its
// Delay, and on average no more than HourlyBytes.
package snapshot
