// Package e2e tests application-grid-wrapper where it works: between an unmodified kube-proxy and a real
// control plane, judged by requests from the nodes' namespaces.
//
// One cluster serves all tests. Its four nodes are every combination of proxy mode and watch protocol, two in
// each site, so that every scenario is checked on all combinations at once:
//
//	a1  site-a  nftables  watch-list        b1  site-b  nftables  list and watch
//	a2  site-a  iptables  list and watch    b2  site-b  iptables  watch-list
//
// Run it as root, with the binaries' paths in COMPONENTS_BIN and WRAPPER_BIN (default: bin/ of the repository).
package e2e
