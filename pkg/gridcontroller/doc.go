// Package gridcontroller turns grids into one workload per unit, or one closed-loop Service, and keeps them so.
//
// A child (a Deployment, StatefulSet, DaemonSet or Service of a grid) is desired state, computed from the grid
// and the unit alone (pkg/gridchild), and applied with server-side apply under one field manager. What the manager
// owns of the live child is read from its managedFields (owned.go) and compared with what is desired; if they
// are the same nothing is written. So drift in what the grid says is reverted, and what others own stays.
//
// The kinds of workloads differ only in a descriptor (kinds.go); one reconciler serves them all (workload.go),
// another one the Services (service.go). Both leave a single child to the same code (children.go): adoption,
// conflicts, the apply, and retries with a backoff of the child's own, so that one unit's failure stops no
// other's.
//
// The caches hold nodes as names and labels, from which unit sets are kept (units.go), and of children only
// what the comparison and the status need (child.go).
//
// # When the API server is away, or wrong
//
// A list or watch that fails, in whatever way, changes no cache, so no unit vanishes by it. What does vanish, because a
// list came back without its nodes, waits for the grace time, which is forgotten when they return; and at its end the
// API server is asked, past all caches, whether the unit has a node, and whether it knows any (children.go). A leader
// that cannot renew its Lease ends with an error, for its supervisor to start it again, and another one goes on. Who
// starts finds every child as it should be, and writes nothing.
//
// How replicas return: informers wait between attempts as client-go has it, for a random time that grows to 30 to
// 60 s; there are two or three of them in a cluster.
package gridcontroller
