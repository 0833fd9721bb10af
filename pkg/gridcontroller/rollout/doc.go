// Package rollout decides which revision each site of a grid should have. New is a pure function of the grid's rollout,
// the sites with their revisions and health, the status that was written before, the approvals and the time. It reads
// and writes nothing; the reconcilers of package gridcontroller call it and do what it says.
//
// Little is remembered, as sets and decisions, and is written before what follows from it: when the attempt began,
// which gates have passed, which sites have proven the revision, with their workloads, the sites in flight with their
// clocks, and what people have accepted. All else is computed at each pass.
//
// A site has proven a revision when its pods have run it, ready without a break, for the soak time of its wave, and its
// check has succeeded. It is listed before it gets the revision, so that a controller that restarts, or reads a stale
// cache, takes nobody for proven who is not. A gate is the end of a wave. It passes once, when every site of the wave
// that is not excused is proven; one predicate says who is excused.
//
// judge_test.go has the rule a second time, in terms of what happens to sites whose truth it knows. It shares no code
// with the plan.
package rollout
