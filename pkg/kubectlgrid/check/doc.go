// Package check finds out whether a cluster can take application-grid, and whether an installed one holds: what
// `kubectl grid check` prints.
//
// Read asks the API server and reduces what it says, page by page, to a Cluster: what is kept grows with the number of
// nodes, not with what runs on them. Before and After are functions of a Cluster that write a Report. What could not be
// read is a finding like any other; nothing is concluded from it.
//
// The package prints nothing and reads no command line; cmd/kubectl-grid does.
package check
