// Package hub is an aggregated API server that gives every node its share of the cluster: the Services, EndpointSlices
// and nodes that the node's wrapper needs to show what it would show of everything.
//
// A Server follows the cluster (hub.go) into facts, from which shares (shares.go) and their steps (step.go) follow.
// Requests come through the filters of k8s.io/apiserver. A wrapper follows its share on a stream (share.go, stream.go);
// people get it as a list (list.go). Who may ask for which node is decided before that, see identity.go.
//
// The command cmd/application-grid-hub runs it. The package knows nothing of wrappers.
package hub
