// Package hub is an aggregated API server that gives every node its share of the cluster: the Services, EndpointSlices
// and nodes that the node's wrapper needs to show what it would show of everything.
//
// A Server follows the cluster (source.go) into facts, from which view.Shares makes the shares. A request for a share
// comes through the filters of k8s.io/apiserver to the subresource proxy of a node (proxy.go), and from there to
// package serve (share.go). Who may ask for which node is decided before that, see identity.go.
//
// The command cmd/application-grid-hub runs it. The package knows nothing of wrappers.
package hub
