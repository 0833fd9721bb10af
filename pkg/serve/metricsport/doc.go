// Package metricsport serves /metrics, and nothing else, over plain HTTP on an address of its own. That is for a
// Prometheus that has no credentials for the program's other port.
//
// The wrapper (package proxy) and the hub (package hub) use it for their flag --metrics-bind-address.
package metricsport
