// Package columns holds the columns of the wrapper's tables against those of kube-apiserver: its own printers make the
// cells of random objects. It needs no cluster.
package columns
