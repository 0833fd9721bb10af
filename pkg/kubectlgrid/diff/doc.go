// Package diff implements kubectl grid diff: it finds out what applying grids would change in their children, and shows
// that with a diff program. It decides nothing itself. Package gridchild names, claims and renders the children, for
// the controller and for this package, package gridrevision finds the revision, and the API server applies the grid and
// then the child of each site as a dry run.
//
// It does not run the controller's pass, which changes the sites of one wave only, and leaves held sites alone.
package diff
