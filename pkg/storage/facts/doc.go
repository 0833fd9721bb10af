// Package facts is what the wrapper knows of the cluster: nodes, Services, the objects that list endpoints, dead
// neighbours, and the indexes between them.
//
// Package follow writes it through Inputs, in any order. One write is one step: a step changes the facts, notes in a
// Change what it touched, and hands that to every Watcher. So an observer sees the facts before or after a step, never
// in between. Package view is the observer that turns facts into what one viewer is shown.
//
// The facts are the same for every viewer. What a change costs follows from the indexes: from a node to the objects
// that list endpoints on it, from a topology key to the Services that it governs, and, of a Service with several keys,
// from a label's value to the number of its ready endpoints on nodes with that value.
//
// # Holding back
//
// What the upstream says can be held back and applied as one step (hold.go): after an outage of several sources until
// all have caught up, and while the facts are those of a State from disk until the upstream's are complete.
package facts
