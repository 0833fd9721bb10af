// Package wiretest has objects in wire form for unit tests. Only tests import it.
package wiretest

import "github.com/application-grid/application-grid/pkg/storage/wire"

// Object is a Go value of the API in wire form. It panics if the value cannot be encoded; values of k8s.io/api always
// can.
func Object(typed interface{ Marshal() ([]byte, error) }) *wire.Object {
	o, err := wire.ObjectOf(typed)
	if err != nil {
		panic(err)
	}
	return o
}
