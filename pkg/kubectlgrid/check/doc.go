// Package check finds out whether application-grid can be installed on a cluster, and whether an installed one works:
// the findings that `kubectl grid check` prints.
//
// readCluster asks the API server and reduces the answers, page by page, to a Cluster, whose size grows with the number
// of nodes, not with the number of pods on them. Before and After write a Report from a Cluster; checkRights and
// checkCredentials ask for more. An object that could not be read is also a finding; nothing is concluded from it.
//
// The package prints nothing and reads no command line; cmd/kubectl-grid does.
package check
