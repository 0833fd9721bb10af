// Package rollout decides which revision each unit of a grid should have. New is a pure function of the grid's rollout,
// the units with their revisions and health, the status that was told before, the approvals and the time. It reads and
// writes nothing; the reconcilers of package gridcontroller call it and do what it says.
//
// What a rollout remembers is in the grid's status alone: which waves are done, since when one soaks, and whether it
// has halted. A controller that starts anew goes on from there. If the last status was not written, the same decisions
// are made again, or a wave soaks once more; no unit gets a change sooner by it.
package rollout
