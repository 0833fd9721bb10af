// Package health reports the state of a program: as readiness lines over HTTP for a kubelet and for people, and as one
// line for systemd.
//
// It formats and serves the lines. Its callers decide what they say.
package health
