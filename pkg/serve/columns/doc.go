// Package columns has the columns that kubectl shows for the served resources: their definitions, and the cells of an
// object. Names, order and texts are those of kube-apiserver, so that kubectl shows the same through the wrapper.
//
// Package serve makes tables of them.
package columns
