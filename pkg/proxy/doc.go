// Package proxy is the wrapper's server: it has the order of the filters (chain.go), TLS, health and metrics, and
// starts and stops everything. The filters themselves are in package filters. Package serve answers from the cache,
// which package upstream fills.
package proxy
