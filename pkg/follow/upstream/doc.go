// Package upstream has the sources that the wrapper follows: resources of the API server, or of a caching proxy before
// it. Package follow lists and watches them; here is which sources there are, which input of the facts (package
// storage/facts) each fills, and what is known of all of them together. The addresses of nodes are listed apart from
// that, and rarely.
package upstream
