// Package diff implements kubectl grid diff: it reads grids from files, finds out what applying them would change in
// their children, and shows that with a diff program. It decides nothing itself. Package gridchild names, claims and
// renders the children, for the controller and for this package, and package gridrevision finds the revision. The API
// server applies them as a dry run, which stores nothing: first the grid, to find refusals of the CRD and of admission,
// then the child of one site of each group of sites that have the same now and get the same.
//
// It does not run the controller's pass. A pass changes the sites of one wave; diff shows what all sites will end with.
// A pass leaves held sites alone; diff shows their difference. And a pass applies the child of every site, so a large
// grid would take thousands of dry runs.
package diff
