// Package rollout decides which revision each site of a grid should have. NewPlan is a pure function of the grid's
// rollout, the sites with their revisions and health, the status that was written before, the approvals and the time.
// It reads and writes nothing; the reconcilers of package gridcontroller call it and carry out the plan.
//
// The status keeps only a few sets and decisions: when the attempt began, which gates have passed, which sites have
// proven the revision, with which workloads, the sites in flight with their clocks, and which sites people have
// accepted. It is written before the plan acts on it. Everything else is computed at each pass.
//
// A site has proven a revision when its pods have run it, ready without a break, for the soak time of its wave, and its
// check has succeeded. It is listed before it gets the revision, so that a controller that restarts, or reads a stale
// cache, does not take an unproven site for proven. A gate is the end of a wave. It passes once, when every site of the
// wave is proven or excused; the method excused is the only rule for that.
//
// judge_test.go states the rules a second time, in terms of simulated sites whose real state it knows. It shares no
// code with the plan.
package rollout
