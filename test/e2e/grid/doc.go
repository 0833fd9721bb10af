// Package grid tests application-grid-controller on a real control plane: kube-apiserver with the grids' CRDs,
// kube-controller-manager for what becomes of the workloads, kube-scheduler, and kwok for the life of pods.
//
// Two clusters, each with one controller, serve all tests: in one of them several tests run at the same time, in the
// other one those that need it for themselves. A test has a namespace and a site label of its own, so that its nodes
// are no other test's sites. The controller has the permissions of its manifest, no more.
//
// There is no data plane: it needs no root. COMPONENTS_BIN and CONTROLLER_BIN are the binaries' paths (default:
// bin/ of the repository).
package grid
