// Package health reports the state of a program: as readiness lines over HTTP for a kubelet and for people, as one line
// for systemd, and as metrics of the sources that the program follows for Prometheus.
//
// It formats and serves the lines. Its callers decide what they say.
package health
