// Package nodename finds this node's name as kube-proxy does, and the names that somebody may have meant who gave one
// that is no node's.
package nodename
