// Package explain asks a running wrapper why a node sees of a Service what it sees, and prints the answer. It is what
// `application-grid-wrapper explain` does; the answer is made by pkg/storage/view, and served by pkg/filters.
package explain
