// Package snapshot keeps what the wrapper serves from on the node's disk, for a node that restarts while its
// upstream is away.
//
// A state directory has two files of one format (format.go): "snapshot", the latest storage.State, and
// "revision", above which the next process numbers its events. Both are only ever replaced as a whole. What
// cannot be read, or is not this node's, is set aside with the ending ".rejected" and never served.
//
// Flash wears out, so a Writer writes only when what this node sees has changed, never more often than its
// Delay, and on the average no more than its HourlyBytes.
package snapshot
