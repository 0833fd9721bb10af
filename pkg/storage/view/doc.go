// Package view computes what one viewer is shown of the facts.
//
// A View prunes the endpoints of governed Services by its Viewer's labels, as package topology says, hides endpoints on
// dead nodes, replaces the endpoint of default/kubernetes by the local API server if it is configured to, and publishes
// the result to a History of its own. Package serve answers clients from that History.
//
// This node, a site and nobody are values of one type, Viewer. What a View shows depends on the facts and the Viewer's
// labels alone, and not on the order of the steps. Each step of the facts becomes at most one step of the History.
// Everything is decided before anything is published, so no client sees a state that the cluster never had.
//
// A step costs a View only what the step touched and its viewer can see: the View finds in the Change the objects whose
// endpoints may be shown differently, and prunes those. The History ignores objects that are the same as before.
//
// A hub has no View: package hub gives each node's own View what it needs of the facts.
package view
