// Package serve turns what the Store holds into API responses: one LIST, one WATCH and one GET writer for all
// resources, the negotiation of their encoding, and errors as metav1.Status.
//
// The contract is kube-apiserver's, as far as clients of the served resources can tell: resourceVersions,
// resuming, 410, bookmarks, initial events, limit and continue. Package filters decides which requests come
// here; package storage owns the data.
package serve
