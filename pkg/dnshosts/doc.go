// Package dnshosts keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids:
// {grid}-{ordinal}.{service}.{namespace}.svc.{cluster domain} is, in every unit, that unit's own pod.
//
// What should stand in the file is a function of the cluster's state and of this node's labels alone
// (records.go). The state comes from sources of package follow into tables (sources.go, state.go). The file's content
// is foreign bytes around one marked block (block.go), and the file is only ever replaced as a whole (file.go). The
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
//
// # What is believed
//
// At the edge the API server is away for hours, and what stands before it makes things up. The file is what a node has
// then, also after a reboot. So
//
//   - it is not touched before the node, the Services and the StatefulSets were listed completely, and of a set
//     whose pods are not listed yet the lines stay;
//   - a list or watch that fails, in whatever way, changes nothing: only a complete list takes the place of what was
//     known, and /readyz tells how old that is;
//   - a list that has nothing, where there was something, is believed only if the same API server, asked at that
//     moment, knows this node: a cache that lost its data does not. This cannot keep the truth out for ever: it comes in
//     with the node's registration, and a watch's events are always believed.
//
// More cannot be told apart. A cache that knows the node and has lost the rest looks like a cluster whose last grid
// was deleted; revisions do not help, which some proxies leave out and a restored etcd sets back; nor does a Service
// that must be there, as default/kubernetes, which says nothing of StatefulSets. An answer that comes too often to be
// a lie is not known either: a cache may lie as long as the link is down. After a restart there is nothing to compare
// with but the file, and there an upstream that knows the node is believed.
//
// How a fleet returns: all sources of a daemon try together, after random pauses that grow to 7.5 to 22.5 s, and then
// resume their watches or list their few objects once. Nothing else is asked of a cloud that has just come back.
package dnshosts
