// Package diff is what kubectl grid diff does: it reads grids from files, finds out what applying them would change in
// their children, and shows that with a diff program. It lets the API server apply as a dry run, which stores nothing:
// first the grid, so that the CRD's and admission's refusals are found, then the child of one site of each template,
// which package gridchild renders, and which is applied as the controller does.
package diff
