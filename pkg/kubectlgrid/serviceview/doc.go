// Package serviceview writes what the nodes of every site see of a Service: the answer of kubectl grid view. The answer
// itself is made by package gridview.
package serviceview
