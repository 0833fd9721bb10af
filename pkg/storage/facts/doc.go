// Package facts stores the wrapper's knowledge of the cluster: nodes, Services, the objects that list endpoints, which
// nodes are dead, and the indexes between them.
//
// Package follow writes to it through Inputs, in any order. Each write is one step: it changes the facts, records in a
// Change what it touched, and passes that to every Watcher. So a Watcher sees the facts before or after a step, never
// in between. Package view has the Watcher that computes what one viewer is shown.
//
// A node's own state of its pods (pods.go) corrects the upstream's state of their endpoints while the upstream's state
// may be out of date.
//
// The nodes that share Services with this one are its site (site.go). Those of them that no longer answer their
// neighbours are silent.
//
// The facts are the same for every viewer. Indexes keep the cost of a change small: from a node to the objects that
// list endpoints on it, from a topology key to the Services that it governs, and for a Service with several keys from a
// label's value to the number of ready endpoints on nodes with that value.
//
// # Holding back
//
// Changes from the upstream can be held back and applied as one step (hold.go). After an outage of several sources they
// are held back until all sources have caught up. If the facts were restored from a Snapshot on disk, they are held
// back until the upstream's state is complete.
package facts
