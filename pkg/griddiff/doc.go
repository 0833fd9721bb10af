// Package griddiff says what applying a grid would change in its children. It asks the API server to do so without
// keeping anything (dry-run): for the grid, so that what the CRD and admission refuse is found, and then for the child
// of one unit of each template, rendered by pkg/gridchild and applied as the controller applies it. It writes nothing.
package griddiff
