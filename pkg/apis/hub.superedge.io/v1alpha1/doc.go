// Package v1alpha1 names the API of application-grid-hub: an aggregated API that gives every node its share of the
// cluster's Services, EndpointSlices and nodes. The group has one resource, shares, whose names are those of nodes. A
// WATCH follows a node's share, and a GET reads it.
package v1alpha1
