// Package storage is the wrapper's cache: upstream state in, pruned and revisioned state out.
//
// In: the upstream's nodes (labels only), this node, Services, EndpointSlices and, once a client asks for
// them, Endpoints. Package upstream feeds them through the Inputs of a Store, in any order. Package autonomy
// tells which nodes are dead (SetDeadNodes).
//
// Out: one table per served Resource. What stands in a table is a function of the upstream state, of the set of
// dead nodes and of this node's name alone; package topology says which. Every change of a table is an Event with a revision of the
// wrapper's own, kept in a bounded log. A watcher is a Cursor into that log: it never holds up the Store, and
// one that falls off the log's end is told so (ErrExpired) and lists again. Package serve turns tables and
// logs into LIST and WATCH responses.
//
// The cost of a change is that of what it changes: an index leads from a node to the slices with endpoints
// on it, and from a topology key to the Services that it governs. Nothing walks the whole cache per event.
package storage
