// Package ingress runs an ingress controller of Traefik's own provider on an edge node, directly at kube-apiserver and
// through application-grid-wrapper. It sends requests to pods by their addresses, past Services and kube-proxy.
//
// It is not part of `make test`, because the provider takes minutes to build. `make test-ingress` builds it, from the
// module in the directory traefik, and runs it.
package ingress
