// Package gridview computes the state of grids, and whether Services stay in their sites, in terms that a user acts on.
// Its functions are pure: from objects of the API server they compute the output of kubectl-grid. They compute the
// endpoints that a node sees with package topology, as the wrapper does on the nodes.
package gridview
