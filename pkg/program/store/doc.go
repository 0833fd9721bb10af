// Package store keeps keys and values in a directory, so that a loss of power at any moment leaves one of the states
// that were committed, and at least the last one that Commit reported to be on the disk.
//
// A directory has two generations: the newest file, and the one before it. A file begins with a whole state, and each
// commit appends to it. When a file has grown to several times that state, the whole state is written to the next file,
// and the oldest file is removed. The longest valid prefix of the newest file counts. The older file counts only if the
// first state of the newer one cannot be read. Keys that are lasting are taken from both files.
//
// Opening writes nothing, and takes time in proportion to the size of the files. Nothing on the disk keeps a Store from
// being opened: what cannot be used is reported as a problem, and what cannot be written is tried again.
//
// A file in another format version, or sealed with another key, stays in place and is reported. After a newer file in
// another version the Store is empty, because its own files are older than that one; it then writes its own next file.
// With another key nothing is written: somebody may still find the right key.
//
// Flash memory wears out. Each commit is charged with what flash writes for it, at least 16 KiB, against a budget of
// bytes an hour. The budget is kept in the store itself, so that a program that restarts again and again stays within
// it, and failed writes are charged too.
package store
