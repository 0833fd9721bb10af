// Package gridchild renders the children of grids: the Deployment, StatefulSet or DaemonSet of a site, and the Service
// of a ServiceGrid, with their names. A child depends on the grid and the site alone. The package does no I/O:
// pkg/gridcontroller applies what it renders, and kubectl grid diff compares it with the live objects.
package gridchild
