// Package store keeps keys and values in a directory. A loss of power at any moment leaves one of the committed states:
// the last one that Commit reported to be on the disk, or a later one.
//
// A directory has two generations: the newest file, and the one before it. A file begins with a whole state, and each
// commit appends to it. When a file has grown to several times that state, the whole state is written to the next file,
// and the oldest file is removed. The longest valid prefix of the newest file is used. The older file is used only if
// the first state of the newer one cannot be read. Lasting keys are read from both files, and the later commit counts:
// the end of the newer file may be damaged.
//
// Opening writes nothing, and takes time in proportion to the size of the files. A Store can always be opened, whatever
// is on the disk: unusable files are reported as problems, and failed writes are tried again.
//
// A file in a later format version, or sealed with another key, is kept and reported. If a newer file has a later
// version, the Store begins empty, because its own files are older than that one, and then writes its own next file. If
// the key differs, nothing is written, because somebody may still find the right key.
//
// Flash memory wears out. Each commit is charged with what flash writes for it, at least 16 KiB, against a budget of
// bytes an hour. The budget is kept in the store itself, so that a program that restarts again and again stays within
// it. Failed writes are charged as well. A whole state takes what is left of the budget; half of what the budget gets
// afterwards pays the rest, and until then no other whole state is written. So changes do not wait until a large state
// is paid, unless no file can be appended to. Flash writes the hourly bytes on average, and in a single hour at most
// twice as many, one commit and one whole state.
package store
