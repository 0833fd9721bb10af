// Package dnshosts keeps the hosts file from which a node's CoreDNS answers the names of StatefulSetGrids:
// {grid}-{ordinal}.{service}.{namespace}.svc.{cluster domain} is, in every site, that site's own pod.
//
// The records of the file depend only on the cluster's state and on this node's labels (records.go). The state comes
// from sources of package follow into tables (sources.go). The file has one marked block among foreign bytes
// (block.go), and is always replaced as a whole (file.go). The Daemon (daemon.go) connects these parts, and serves its
// health and metrics (serve.go).
//
// # What is watched
//
// Names come from endpoints. The node's own wrapper has what the daemon watches, and shows only the endpoints in the
// node's own site. So the cost of the daemon depends on the size of its site and not of the cluster, and it needs no
// rights of its own. The daemon also works with any API server, which then sends the slices of all sites.
//
// An endpoint names its pod, and has a host name exactly if the pod's subdomain is the Service, as for the pods of a
// StatefulSet with this Service as its serviceName. The pod's name is {set}-{ordinal}, and the set's name determines
// its grid in the own site (GridKind.GridOf). So neither pods nor StatefulSets have to be watched. A pod that the
// Service does not select has no endpoint, and so no name. A pod that remains after its set was deleted keeps its name
// as long as it is an endpoint.
//
// A name leads to its pod whether or not the pod is ready, and while it is suspected or on a silent node, even if the
// Service uses another pod: no other pod has that name. So the names are as if every Service had
// publishNotReadyAddresses, and a wrapper keeps a hidden endpoint that has a host name, neither ready nor serving, in
// its slice. A name goes with its endpoint, or as soon as that is terminating. While the API server is away, a wrapper
// shows the endpoint of a pod that its node does not run as terminating once another pod has the address, whatever
// Service that pod belongs to.
//
// # Which answers are used
//
// At the edge the API server may be away for hours, and proxies before it may send wrong answers meanwhile. The node
// then depends on the file, even after a reboot. So
//
//   - the file is not changed before the node, the Services and the EndpointSlices were listed completely;
//   - a wrapper that has restarted while the cloud is away serves its snapshot, which may be older than the file, and
//     marks it: names that are in the file get new addresses, and none is added. Without marks the daemon asks for no
//     such answer (Cache-Control: no-cache). When the marks end, each source lists, so that no name goes before all is
//     known;
//   - a list or watch that fails changes nothing: only a complete list replaces the known state, and /readyz reports
//     how old that is;
//   - an empty list, where there were objects before, is used only if the same API server, asked at that moment, knows
//     this node: a cache that lost its data does not. The same goes for the removal of all names: a wrapper whose node
//     was deleted shows no endpoints. This cannot delay the true state forever: the node will register.
//
// More is not possible. A cache that knows the node and has lost everything else looks like a cluster whose last grid
// was deleted: some proxies leave revisions out, a restored etcd sets them back, default/kubernetes says nothing about
// grids' Services, and a cache may repeat its wrong answer as long as the link is down.
package dnshosts
