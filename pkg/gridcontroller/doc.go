// Package gridcontroller makes one workload per site, or one site-local Service, from each grid, and keeps them as
// desired.
//
// A child (a Deployment, StatefulSet, DaemonSet or Service of a grid) depends only on the grid and the site (package
// gridchild). It is applied with server-side apply under one field manager. It is applied again if the desired child
// has another digest than the applied one, if somebody has taken a field from the manager, or if the spec has changed
// since the apply (live_child.go). So drift in fields that the grid sets is reverted, and fields of others are kept.
//
// One reconciler handles all kinds (reconcile.go): workloads in passes over all sites of a grid, whose stages are types
// (pass.go). All kinds use the same code for a single child (apply.go), with retries and a backoff for each child,
// so that the failure of one site does not stop the others. The caches have only what determines the sites (sites.go),
// and those parts of children that the comparison and the status need (live_child.go).
//
// # When the API server is away, or wrong
//
// A list or watch that fails does not change a cache, so no site vanishes because of it. If a site does vanish, because
// a list came without its nodes, its workload is kept for the grace time. The grace time ends when a node returns.
// After the grace time the controller asks the API server itself, and not a cache, whether the site has a node, and
// whether there are any nodes (removal.go). After a start one child of each template is applied. That changes nothing,
// but shows which fields the manager owns; the others are compared with that child.
package gridcontroller
