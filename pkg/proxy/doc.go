// Package proxy is the wrapper's server: the order of its filters (chain.go), TLS, health, metrics, and the
// start and stop of it all. What a filter does is package filters, what is answered from the cache is package
// serve, where the cache's contents come from is package upstream.
package proxy
