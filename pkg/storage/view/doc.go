// Package view computes what one viewer is shown of the facts.
//
// A View prunes the endpoints of governed Services by its Viewer's labels, as package topology says, hides endpoints on
// dead nodes, replaces the endpoint of default/kubernetes by the local API server if it is configured to, and publishes
// the result to a History of its own. Package serve answers clients from that History.
//
// A Viewer is this node, a site, or a viewer without any labels. A View's output depends only on the facts and the
// Viewer's labels, not on the order of the steps. Each step of the facts becomes at most one step of the History.
// Everything is decided before anything is published, so no client sees a state that the cluster never had.
//
// The cost of a step depends only on the touched objects that the viewer can see: the View finds in the Change the
// objects whose endpoints may be shown differently, and prunes those. The History ignores objects that are the same as
// before.
//
// A hub has no View: package hub gives each node's own View the facts that it needs.
package view
