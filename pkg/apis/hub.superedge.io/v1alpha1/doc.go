// Package v1alpha1 names the API of application-grid-hub: an aggregated API that gives every node its share of the
// cluster's Services, EndpointSlices and nodes. The group has no objects of its own. A node's share is followed by a
// watch of the resource shares, and read at the subresource proxy of the resource nodes, by the paths that the
// Kubernetes API has for the three.
package v1alpha1
