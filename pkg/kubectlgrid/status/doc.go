// Package status is what kubectl grid status does: it reads grids and what they are compared with, once or as it
// changes, and prints the state of every site. What the state is follows from the objects in package gridview.
package status
