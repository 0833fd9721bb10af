// Package gridchild renders the children of grids: the Deployment, StatefulSet or DaemonSet of a unit, and the Service
// of a ServiceGrid, with their names. A child follows from the grid and the unit alone. The package reads and writes
// nothing: pkg/gridcontroller applies what it renders, and kubectl grid diff compares it with what there is.
package gridchild
