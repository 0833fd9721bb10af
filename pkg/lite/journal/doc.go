// Package journal keeps keys and values in a file that is only appended to, so that a loss of power at any moment
// leaves one of the states that were committed.
//
// A directory has two generations: the newest file, and the one before it. A file begins with a whole state, and every
// commit appends one frame, which is on the disk when Commit returns. When the newest file has grown to several times
// what it holds, the state is written to the next file, and the oldest file is removed.
//
// A frame that is cut off or damaged at the end of a file was never committed, or is the last commit: what came before
// it is used. Damage before other frames makes the file unusable; then the file before it is used, which is older. If
// neither can be used, the journal is empty and says so: Problems has an error for each file that was not used.
package journal
