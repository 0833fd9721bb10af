// Package compat shows which releases of which clients work through application-grid-wrapper, by running them:
// the kube-proxies of the releases that have a module in a directory here, kube-proxy-MINOR, and of the one in the
// components binary; CoreDNS; and kubectl.
//
// It is not part of `make test`, because every release of kube-proxy takes minutes to build. `make compat` builds
// them and runs it, prints what worked as a table, and writes the table into docs/compatibility.md.
//
// The directories kube-proxy-MINOR are modules of their own, written by hack/kube-proxy-module.sh.
package compat
