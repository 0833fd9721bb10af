// Package upstream is what the wrapper follows of the API server, or of the lite-apiserver before it: the list of
// sources that fill the Store (package follow does the following), what is known of them as a whole, and the nodes'
// addresses, which are listed on their own, rarely, when somebody needs them.
package upstream
