// Package rule judges what a wrapper shows of Services with kube-proxy's own code: what its caches make of the shown
// slices has to be what the rule of docs/concepts.md says of everything that there is, written here as it reads.
package rule
