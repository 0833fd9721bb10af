// Package upstream is the wrapper's side towards the API server (or the lite-apiserver before it): the
// reflectors that fill the Store, what is known of their state, and the transports for requests that are
// passed on.
//
// Reflectors are client-go's, in classic LIST + WATCH: caching edge proxies accept sendInitialEvents and then
// never send the bookmark that ends the initial events, on which a streaming list would hang for ever. Their
// decoder keeps objects in wire form (package wire), so that no second cache of Go values stands beside the
// Store, and their objects go straight into the Store's Inputs. Of other nodes they take metadata only; the nodes'
// addresses are listed on their own, rarely, when somebody needs them (addresses.go).
package upstream
