// Package restore sets a cluster's etcd back to a backup, under wrappers, a hub and the daemon.
package restore
