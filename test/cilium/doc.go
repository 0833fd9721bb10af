// Package cilium runs a real cilium-agent, in kube-proxy's place, directly at kube-apiserver and through
// application-grid-wrapper, and measures both beside a kube-proxy.
//
// It is not part of `make test`, because the agent takes minutes to build. `make test-cilium` builds it, from the
// module in the directory agent, and runs it. The agent compiles its BPF programs when it starts, with a program named
// clang. It needs a kernel with BPF and cgroup v2; where they are missing the tests are skipped.
package cilium
