// Package diff implements kubectl grid diff: it reads grids from files, finds out what applying them would change in
// their children, and shows that with a diff program. It decides nothing itself. Package gridchild names, claims and
// renders the children, for the controller and for this package, and package gridrevision finds the revision. The API
// server applies them as a dry run: first the grid, to find refusals of the CRD and of admission, then the child of one
// site of each group of sites that have the same now and get the same.
//
// It does not run the controller's pass, which changes the sites of one wave only, leaves held sites alone, and applies
// the child of every site: a large grid would take thousands of dry runs.
package diff
