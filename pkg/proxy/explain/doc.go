// Package explain asks a running wrapper why a node sees which endpoints of a Service, and prints the answer. It
// implements `application-grid-wrapper explain`. Package storage/view makes the answer, and package proxy serves it.
package explain
