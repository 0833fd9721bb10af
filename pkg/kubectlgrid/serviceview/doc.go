// Package serviceview writes the answer of kubectl grid view: the endpoints of a Service that the nodes of every site
// see. Package gridview computes it.
package serviceview
