// Package griddiff finds out what applying a grid would change in its children. It lets the API server do that as a dry
// run, which stores nothing: first with the grid, so that the CRD's and admission's refusals are found, then with the
// child of one unit of each template, which package gridchild renders, and which is applied as the controller does.
package griddiff
