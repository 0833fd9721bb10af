// Package cluster is what the commands of kubectl grid ask of a cluster: a connection as kubectl has it, and reads that
// several commands need. Lists are read in pages. What is made of the objects is the business of packages gridview,
// status, diff, check and prove.
package cluster
