// Package columns has the columns that kubectl shows of the served resources: their definitions, and the cells of an
// object. Names, order and texts are those of kube-apiserver, so that kubectl reads the same through the wrapper.
//
// It knows nothing of requests and of tables; package serve writes those.
package columns
