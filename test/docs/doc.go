// Package docs runs the commands of the README and of the pages in docs/ on an embedded cluster: a reader's cluster
// with three nodes in two sites, wrappers, daemons, the controller and the demonstration's grids. CONTRIBUTING.md says
// how a block is marked. Those that cannot be run here have to say why, and are listed.
package docs
