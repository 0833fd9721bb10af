// Package view is what one viewer is shown of the facts.
//
// A View prunes the endpoints of governed Services by its Viewer's labels, as package topology says, hides endpoints
// on dead nodes, replaces the endpoint of default/kubernetes by the node's own API server where that is asked for, and
// publishes the outcome to a History of its own. Package serve answers clients from that History.
//
// This node, a unit and nobody are values of one type, Viewer. What a View shows is a function of the facts and of the
// Viewer's labels alone, whatever the order of the steps was. Each step of the facts becomes at most one step of the
// History: everything is decided before anything is published, so no client sees a state that never was.
//
// A View does work for what a step touched and its viewer can see: it looks at the Change, finds the objects whose
// endpoints may be shown differently, prunes those, and leaves it to the History to pass over what came out the same.
//
// In a hub, Shares take the place of a View: what each node needs of the facts so that its own View shows what it would
// show of all of them.
package view
