// Package gridview computes the state of grids, and whether Services stay in their sites, in terms that a user acts on.
// Its functions are pure: objects that were read from the API server go in, and what command kubectl-grid prints comes
// out. What a node sees of a Service is computed with package topology, the rule that the wrapper applies on the nodes.
package gridview
