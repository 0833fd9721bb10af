// Package snapshot keeps what the wrapper serves from on the node's disk, for a node that restarts while its
// upstream is away.
//
// A state directory belongs to one process at a time, which holds the file "lock". For each node it has two files of
// one format (format.go): "snapshot-NODE", the latest facts.State, and "revision-NODE", above which the next process
// numbers its events. Both are only ever replaced as a whole. What cannot be read is set aside with the ending
// ".rejected" and never served. The files of another node are left alone, and those of another version of the format
// until this version replaces them.
//
// Flash wears out, so a Writer writes only when what this node sees has changed, never more often than its
// Delay, and on the average no more than its HourlyBytes.
package snapshot
