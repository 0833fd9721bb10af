// Package dnshosts keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids:
// {grid}-{ordinal}.{service}.{namespace}.svc.{cluster domain} is, in every unit, that unit's own pod.
//
// What should stand in the file is a function of the cluster's state and of this node's labels alone
// (records.go). The state comes from reflectors (sources.go) into a Cluster (state.go). The file's content is
// foreign bytes around one marked block (block.go), and the file is only ever replaced as a whole (file.go). The
// Daemon (daemon.go) ties them together and tells how it stands (serve.go).
//
// # What is watched
//
// The package runs on every node of a big cluster, so it does not watch the cluster's pods. It watches
//
//   - of nodes: the metadata of its own one;
//   - of StatefulSetGrids, and of Services with the label superedge.io/grid-uniq-key: the metadata;
//   - the StatefulSets with the label superedge.io/grid-selector, of which it keeps a few strings each;
//   - of pods: those of its own unit's StatefulSets, by the label statefulset.kubernetes.io/pod-name, which
//     Kubernetes itself puts on them. The names are known: {set}-0, {set}-1, and so on. So the API server does
//     the filtering, and neither the pods' template nor the Service's selector has a say in it.
//
// EndpointSlices would be no lighter (one slice has the pods of many units, and is sent whole when one of them
// changes), and they say neither to which incarnation of a set a pod belongs nor anything of pods that the
// Service does not select.
package dnshosts
