// Package nodename finds this node's name as kube-proxy does. For a name that no node has, it finds the names that may
// have been meant.
package nodename
