// Package gridcontroller turns grids into one workload per unit, or one closed-loop Service, and keeps them so.
//
// A child (a Deployment, StatefulSet, DaemonSet or Service of a grid) is desired state, computed from the grid
// and the unit alone (desired.go), and applied with server-side apply under one field manager. What the manager
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
package gridcontroller

// FieldManager is under which children are applied.
const FieldManager = "application-grid-controller"
