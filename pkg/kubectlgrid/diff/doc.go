// Package diff implements kubectl grid diff: it reads grids from files, finds out what applying them would change in
// their children, and shows that with a diff program. The API server applies them as a dry run, which stores nothing:
// first the grid, to find refusals of the CRD and of admission, then the child of one site of each template, which
// package gridchild renders, in the same way as the controller.
package diff
