// Package status implements kubectl grid status: it reads grids and the objects with which they are compared, once or
// as they change, and prints the state of every site. Package gridview computes the state from the objects.
package status
