// Package hub is an aggregated API server that gives every node its share of the cluster: the Services, EndpointSlices
// and nodes from which the node's wrapper computes the same result as from the whole cluster.
//
// A Server follows the cluster (hub.go) into facts, from which it computes shares (shares.go) and their steps
// (step.go). Requests pass the filters of k8s.io/apiserver. A wrapper follows its share on a stream (watch.go,
// stream.go); people get it as a list (list.go). identity.go decides who may ask for which node.
//
// The command cmd/application-grid-hub runs it. The package knows nothing of wrappers.
package hub
