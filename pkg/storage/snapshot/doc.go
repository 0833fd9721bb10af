// Package snapshot keeps the state that the wrapper serves on the node's disk, for a node that restarts while its
// upstream is away.
//
// A state directory belongs to one process at a time, which holds a lock on the file "lock". For each node the
// directory has two files of the same format (format.go): "snapshot-NODE" has the latest facts.State, and
// "revision-NODE" the revision above which the next process numbers its events. Both are always replaced as a whole. A
// file that cannot be read is set aside with the ending ".rejected" and never served. The files of other nodes are left
// alone, and so are files in another version of the format until this version replaces them.
//
// Flash memory wears out. So a Writer writes only when what this node sees has changed, never more often than its
// Delay, and on the average no more than HourlyBytes.
package snapshot
