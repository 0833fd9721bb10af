// Package dnshosts keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids:
// {grid}-{ordinal}.{service}.{namespace}.svc.{cluster domain} is, in every unit, that unit's own pod.
//
// The records of the file depend on the cluster's state and on this node's labels alone (records.go). The state comes
// from sources of package follow into tables (sources.go, state.go). The file has one marked block among foreign bytes
// (block.go), and is always replaced as a whole (file.go). The Daemon (daemon.go) connects these parts, and serves its
// health and metrics (serve.go).
//
// # What is watched
//
// The package runs on every node of a big cluster, so it does not watch the cluster's pods. It watches
//
//   - the metadata of its own node;
//   - the metadata of StatefulSetGrids, and of Services with the label superedge.io/grid-uniq-key;
//   - the StatefulSets with the label superedge.io/grid-selector, of which it keeps a few strings each;
//   - the pods of its own unit's StatefulSets, selected by the label statefulset.kubernetes.io/pod-name, which
//     Kubernetes itself puts on them. Their names are known: {set}-0, {set}-1, and so on. So the API server does the
//     filtering, and it depends neither on the pods' template nor on the Service's selector.
//
// EndpointSlices would not be less data: one slice has the pods of many units, and is sent whole when one of them
// changes. Also they do not say to which StatefulSet a pod belongs if the set was deleted and created again, and lack
// pods that the Service does not select.
//
// # Which answers are used
//
// At the edge the API server may be away for hours, and proxies before it may send wrong answers meanwhile. The node
// then depends on the file, also after a reboot. So
//
//   - the file is not changed before the node, the Services and the StatefulSets were listed completely, and the lines
//     of a set whose pods are not listed yet stay;
//   - a list or watch that fails changes nothing: only a complete list replaces what was known, and /readyz says how
//     old that is;
//   - an empty list, where there were objects before, is used only if the same API server, asked at that moment, knows
//     this node: a cache that lost its data does not. This cannot keep the truth out forever: it comes in with the
//     node's registration, and a watch's events are always believed.
//
// More is not possible. A cache that knows the node and has lost everything else looks like a cluster whose last grid
// was deleted. Revisions do not help, because some proxies leave them out, and a restored etcd sets them back. The
// presence of a Service like default/kubernetes does not help, because it says nothing about StatefulSets. Repeating
// the request does not help, because a cache may give the same wrong answer as long as the link is down. After a
// restart the daemon trusts an upstream that knows the node.
//
// After an outage all sources of a daemon try together, after random pauses that grow to between 7.5 and 22.5 s. Then
// they resume their watches, or list their few objects once. They send no other requests to a cloud that has just come
// back.
package dnshosts
