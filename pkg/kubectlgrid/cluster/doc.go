// Package cluster has the access of the commands of kubectl grid to a cluster: a connection like kubectl's, and reads
// that several commands need. Lists are read in pages. Packages gridview, status, diff, check and prove process the
// objects.
package cluster
