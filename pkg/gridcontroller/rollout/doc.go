// Package rollout decides which revision each site of a grid should have. New is a pure function of the grid's rollout,
// the sites with their revisions and health, the status that was written before, the approvals and the time. It reads
// and writes nothing; the reconcilers of package gridcontroller call it and do what it says.
//
// One rule decides: a site counts only for what it has proven itself, with this revision, in this attempt. A site has
// proven a revision when its pods have run it, ready without a break, for the soak time of its wave, and its check has
// succeeded. Until then the grid's status lists the site, and it takes a place of its wave. It is listed before it gets
// the revision, so that a controller that restarts, or reads a stale cache, takes nobody for proven who is not.
//
// The tests are fleets whose truth is known: random ones, small ones in every state that they can reach, and large ones
// over days; their flags begin with -rollout.
package rollout
