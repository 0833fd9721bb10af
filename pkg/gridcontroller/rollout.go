package gridcontroller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

// target is what a unit's child should be made of.
type target struct {
	// templates are those of the spec, or of a revision; nil if the child is to be left as it is. scale are those of
	// the spec, which has the replicas.
	templates, scale *gridchild.Templates
	// revision is their revision, update that of the spec; both are empty without a rollout.
	revision, update string
	// variant names what the child is made of: children with the same variant differ in the unit alone. mark is the
	// value of AnnotationVariant.
	variant, mark string
	// err is why there are no templates, if that is an error.
	err error
}

// outdated returns the revision of a child for the status; empty if the child has the revision of the spec.
func (t target) outdated(live *child) string {
	if t.update == "" || live.revision == t.update {
		return ""
	}
	return live.revision
}

// template returns the template of a unit, with the replicas that the spec gives it.
func (t target) template(unit string) (map[string]any, error) {
	template, err := t.templates.Of(unit)
	if err != nil || t.templates == t.scale {
		return template, err
	}
	delete(template, "replicas")
	if replicas, set, err := t.scale.Replicas(unit); err == nil && set {
		template["replicas"] = replicas
	}
	return template, nil
}

// targets has the target of every unit.
type targets map[string]target

// rolloutMemory is what is remembered of a rollout between reconciliations.
type rolloutMemory struct {
	// generation is the grid's when its revisions were last read.
	generation int64
	// objects are the grid's ControllerRevisions. revisions has their contents, by name.
	objects   []*appsv1.ControllerRevision
	revisions map[string]gridrevision.Revision
	// update is the name of that of the spec.
	update string
	// written is the grid with the newest status that is known to be written; nil if that is not known.
	written v1.Object
	// failures has the units that have failed.
	failures map[string]failedUnit
	// asked has what the pods of units said, by unit.
	asked map[string]answer
	// passed has the Jobs of checks that have succeeded, by unit, until the status says so.
	passed map[string]*batchv1.Job
	// mark identifies the last state of the rollout for which there was an event.
	mark string
}

// failedUnit is a unit that has failed with a revision.
type failedUnit struct{ revision, why string }

// answer is what the pods of a unit said, at a time, about a time.
type answer struct {
	rollout.Pods

	at, since, ready time.Time
}

// roller gives the units of one grid their revisions, in one pass.
type roller struct {
	*workloadReconciler

	grid     v1.Object
	spec     *v1.WorkloadGridSpec
	owner    *gridchild.Owner
	units    []string
	lost     map[string]time.Time
	children *assignment
	memory   *gridMemory

	// The fields below are set by aim.

	// around is what templates and waves depend on besides the grid.
	around gridchild.Context
	// current are the templates of the spec, update is its revision.
	current *gridchild.Templates
	update  string
	// waves are nil without a rollout.
	waves *gridchild.Waves
	// templates has those that were read, by revision; nil for one that cannot be read.
	templates map[string]*gridchild.Templates
	planned   rollout.Plan
}

// aim returns what every unit's child should be made of.
func (r *roller) aim(ctx context.Context) (targets, error) {
	r.around = r.context(ctx)
	r.current = gridchild.NewTemplates(r.spec, r.around)
	t := make(targets, len(r.units))
	var err error
	if r.update, err = r.revise(ctx); err != nil {
		return nil, err
	}
	if r.spec.Rollout == nil {
		for _, unit := range r.units {
			t[unit] = r.target(unit, "", r.current)
		}
		return t, nil
	}
	if r.waves, err = gridchild.NewWaves(r.spec.Rollout, r.around.Nodes); err != nil {
		return nil, err
	}
	r.templates = map[string]*gridchild.Templates{}
	if r.planned, err = r.plan(ctx); err != nil {
		return nil, err
	}
	for _, unit := range r.units {
		revision, ok := r.planned.Revisions[unit]
		to := target{update: r.update}
		switch templates := r.of(revision); {
		case ok && templates != nil:
			to = r.target(unit, revision, templates)
		case ok && revision != "":
			to.err = gridchild.Errorf(v1.ReasonRevisionGone,
				"ControllerRevision %s is gone; the workload stays as it is until it gets another revision", revision)
		}
		t[unit] = to
	}
	return t, nil
}

// target is what a unit's child is made of if it gets the templates of a revision.
func (r *roller) target(unit, revision string, templates *gridchild.Templates) target {
	to := target{
		templates: templates, scale: r.current, revision: revision,
		variant: revision + "\n" + templates.Variant(unit) + "\n" + r.current.Variant(unit),
		mark:    templates.Mark(unit, cmp.Or(revision, r.update)),
	}
	if revision != "" {
		to.update = r.update
	}
	return to
}

// context returns what templates and waves depend on besides the grid. It has the labels of nodes only if units may be
// selected by them.
func (r *roller) context(ctx context.Context) gridchild.Context {
	var around gridchild.Context
	selects := r.spec.Rollout != nil // the overrides of older revisions may
	for i := range r.spec.Overrides {
		selects = selects || r.spec.Overrides[i].Units.NodeSelector != nil
	}
	if selects {
		labels := r.workloadReconciler.units.labelsOf(r.spec.GridUniqKey)
		around.Nodes = func(unit string) []map[string]string { return labels[unit] }
	}
	if r.schemas != nil {
		around.Merge = r.schemas.Merge(ctx, r.Child)
	}
	return around
}

// of returns the templates of a revision; nil if there are none.
func (r *roller) of(revision string) *gridchild.Templates {
	if revision == r.update {
		return r.current
	}
	if made, ok := r.templates[revision]; ok {
		return made
	}
	var made *gridchild.Templates
	if known, ok := r.memory.rollout.revisions[revision]; ok {
		if spec, err := known.Spec(r.spec); err == nil {
			made = gridchild.NewTemplates(spec, r.around)
		}
	}
	r.templates[revision] = made
	return made
}

// lastWritten returns the grid with the newest status that is known to be written. A controller that starts anew reads
// it from the API server: what the cache has may be older than what the controller before has done.
func (r *roller) lastWritten(ctx context.Context) (*v1.WorkloadGridStatus, error) {
	m := &r.memory.rollout
	switch {
	case m.written == nil:
		grid := r.New()
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(r.grid), grid); err != nil {
			return nil, fmt.Errorf("reading the status of the rollout: %w", err)
		}
		m.written = grid
	case older(m.written.GetResourceVersion(), r.grid.GetResourceVersion()):
		m.written = r.grid
	}
	_, status := v1.Workload(m.written)
	return status, nil
}

// plan makes a plan.
func (r *roller) plan(ctx context.Context) (rollout.Plan, error) {
	status, err := r.lastWritten(ctx)
	if err != nil {
		return rollout.Plan{}, err
	}
	annotations := r.grid.GetAnnotations()
	deadline := ptr.Deref(r.spec.ProgressDeadlineSeconds, defaultDeadlineSeconds)
	in := rollout.Input{
		Rollout: r.spec.Rollout, Revision: r.update, Deadline: time.Duration(deadline) * time.Second,
		Current: status.CurrentRevision, Update: status.UpdateRevision, Status: status.Rollout,
		Approved: annotations[v1.AnnotationApproved], Resumed: annotations[v1.AnnotationResumed],
		Now: r.clock.Now(),
	}
	if annotations[v1.AnnotationAtOnce] == gridrevision.AtOnce(r.update, r.grid.GetGeneration()) {
		in.AtOnce = r.update
	}
	in.Gone = in.Current != "" && r.of(in.Current) == nil
	for _, unit := range r.units {
		in.Units = append(in.Units, r.look(unit, r.children.child(unit), status.CurrentRevision))
	}
	plan := rollout.New(in)
	if len(plan.Ask) == 0 && len(plan.Checks) == 0 {
		return plan, nil
	}
	r.ask(ctx, plan, &in)
	return rollout.New(in), nil
}

// look returns the state of a unit for the plan. current is the grid's currentRevision.
func (r *roller) look(unit string, live *child, current string) rollout.Unit {
	u := rollout.Unit{Name: unit, Wave: r.waves.Of(unit)}
	u.SilentSince, u.Silent = r.lost[unit]
	memory := r.memory.children[unit]
	fresh := true // the cache has what was applied last
	if memory != nil && memory.applied.resourceVersion != "" &&
		r.clock.Now().Before(memory.applied.at.Add(cacheLag)) {
		fresh = live != nil && !older(live.resourceVersion, memory.applied.resourceVersion)
	}
	if failure, ok := r.memory.rollout.failures[unit]; ok {
		u.Broken, u.Tried = failure.why, failure.revision
	}
	if memory != nil {
		u.Progress = memory.progressAt
	}
	if !fresh {
		u.Exists, u.Revision = true, memory.applied.revision
		return u
	}
	if live == nil {
		if live = r.children.orphan(unit); live == nil {
			return u
		}
	}
	u.Exists, u.Revision, u.Held = true, live.revision, live.held
	switch own := r.children.child(unit) != nil; {
	case own && u.Revision == "" && memory != nil && memory.applied.revision != "": // somebody has changed it
		u.Revision = memory.applied.revision
	case own && u.Revision == "": // it was made without a rollout, when all had what is current now
		u.Revision = current
	case !own && r.of(u.Revision) == nil: // an orphan of something that is forgotten
		u.Revision = ""
	}
	u.Idle = live.observed && live.progress.replicas == 0
	done := live.progress.complete && live.observed && !live.deleting
	if r.Kind == v1.DaemonSetGridKind.Kind && live.observed && !done {
		done = r.heardPart(unit, live)
	}
	u.Ready = done && live.progress.waits == "" && !u.Silent
	if live.observed && !u.Ready {
		u.Waits = live.progress.waits
	}
	if u.Ready && u.Tried == u.Revision {
		u.Broken = ""
	}
	return u
}

// isLost reports whether the control plane has lost contact with a unit.
func (r *roller) isLost(unit string) bool {
	_, lost := r.lost[unit]
	return lost
}

// isPartlyLost reports whether the control plane has lost contact with a node of a unit, which keeps a DaemonSet's
// pods.
func (r *workloadReconciler) isPartlyLost(key, unit string) bool {
	return r.Kind == v1.DaemonSetGridKind.Kind && r.units.silentIn(key, unit) > 0
}

// heardPart reports whether a DaemonSet has all its pods on the nodes of the unit that are heard.
func (r *roller) heardPart(unit string, live *child) bool {
	silent := r.workloadReconciler.units.silentIn(r.spec.GridUniqKey, unit)
	heard := live.progress.replicas - silent
	return silent > 0 && heard > 0 && live.progress.updated >= heard && live.progress.available >= heard
}

// ask has the pods of units tell what the plan wants to know, and runs checks. What there is no time for is asked in
// the next pass.
func (r *roller) ask(ctx context.Context, plan rollout.Plan, in *rollout.Input) {
	m := &r.memory.rollout
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	if m.asked == nil {
		m.asked = map[string]answer{}
	}
	for i := range in.Units {
		unit := &in.Units[i]
		if slices.Contains(plan.Ask, unit.Name) {
			since, ready := rollout.Since(plan.Status, unit.Name)
			known, ok := m.asked[unit.Name]
			if !ok || r.clock.Since(known.at) >= askPause || !known.since.Equal(since) || !known.ready.Equal(ready) {
				pods, nodes, err := r.podsOf(ctx, unit.Name)
				if err != nil {
					klog.FromContext(ctx).V(2).Info("Cannot read the pods of a unit", "unit", unit.Name, "reason", err)
					continue
				}
				known = answer{rollout.Ask(pods, nodes, since, ready), r.clock.Now(), since, ready}
				m.asked[unit.Name] = known
			}
			unit.Pods = &known.Pods
		}
		if slices.Contains(plan.Checks, unit.Name) {
			unit.Check = r.check(ctx, unit.Name, plan.Status.StartTime)
		}
	}
}

// podsOf reads the pods of a unit's workload, and the states of its nodes.
func (r *roller) podsOf(ctx context.Context, unit string) ([]corev1.Pod, map[string]rollout.Node, error) {
	template, err := r.current.Of(unit)
	if err != nil {
		return nil, nil, err
	}
	nodes := r.workloadReconciler.units.nodesIn(r.spec.GridUniqKey, unit)
	var all []corev1.Pod
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		pods, err := r.podsOn(ctx, r.owner.Namespace, template, "spec.nodeName", node)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, pods...)
	}
	return all, nodes, nil
}

// conclude looks at the units after they were synced. It notes what the rollout has come to, and when to look again.
func (r *roller) conclude(ctx context.Context, t targets, results map[string]result, p *pass) {
	for _, name := range r.current.Idle(r.units) {
		p.noEffect = append(p.noEffect, fmt.Sprintf("spec.overrides[%s] selects no unit", name))
	}
	m := &r.memory.rollout
	if r.spec.Rollout == nil {
		p.rollout = &rolloutResult{current: r.update, update: r.update}
		m.written, m.failures = nil, nil
		r.collect(ctx)
		return
	}
	failures := map[string]failedUnit{}
	for _, unit := range r.units {
		state := p.states[unit]
		switch {
		case results[unit].untried:
		case state.Phase == v1.UnitFailed && state.Reason != v1.ReasonSyncFailed:
			failures[unit] = failedUnit{t[unit].revision, state.Reason + ": " + state.Message}
		case state.Phase == v1.UnitStalled && results[unit].child != nil:
			failures[unit] = failedUnit{results[unit].child.revision, state.Message}
		}
	}
	if !maps.Equal(failures, m.failures) {
		p.lookAgain(r.clock.Now())
	}
	m.failures = failures
	p.lookAgain(r.planned.Again)
	_, before := v1.Workload(m.written)
	p.rollout = &rolloutResult{r.planned.Current, r.update, before.Rollout, r.planned.Status}
	r.warn(p)
	if r.removePassed(ctx, before.Rollout); len(m.passed) > 0 {
		p.lookAgain(r.clock.Now().Add(askPause))
	}
	if before.Rollout != nil && before.Rollout.Phase == v1.RolloutComplete && before.CurrentRevision == r.update {
		r.markCompleted(ctx)
	}
	r.collect(ctx)
}

// warn notes which waves have no unit, and which units are named by several.
func (r *roller) warn(p *pass) {
	for i, wave := range p.rollout.status.Waves {
		if i < len(r.spec.Rollout.Waves) && r.spec.Rollout.Waves[i].Units != nil && wave.Units == 0 {
			p.noEffect = append(p.noEffect, fmt.Sprintf("spec.rollout.waves[%s] has no unit", wave.Name))
		}
	}
	if units := gridchild.NamedTwice(r.spec.Rollout); len(units) > 0 {
		p.noEffect = append(p.noEffect, fmt.Sprintf(
			"more than one of spec.rollout.waves names %s; the first one counts", nameSome(units)))
	}
}
