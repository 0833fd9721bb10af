// Package takeover follows docs/migrate.md on an embedded cluster that has what SuperEdge's own
// installation leaves there: its roles, DaemonSets, controller, CRDs, grids and their children, a kube-proxy whose
// kubeconfig leads to the wrapper, and hosts files. The commands are those of the pages, run in their order, with
// traffic during every step.
//
// kwok plays the kubelets of that cluster, and runs nothing. For the programs of SuperEdge and of this project this
// package does what a kubelet and a container runtime do: it starts, in the network of the pod's node, the command of
// the pod's spec, in the files of its image, with its volumes, user, capabilities and ServiceAccount. So a path that is
// not in an image, a directory that a user may not write, or a right that a role lacks fails here as on a node.
//
// SuperEdge's controller and its daemon of hosts files are the real ones, of release 0.9.0. Its wrapper is not: it does
// not work with a kube-proxy of today, and this project's wrapper is started in its place as SuperEdge's DaemonSet
// says.
package takeover
