package gridcontroller

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

// target is what a unit's child should be made of.
type target struct {
	// templates are those of the spec, or of a revision; nil if the child is to be left as it is.
	templates *gridchild.Templates
	// revision is their revision; empty without a rollout. update is the revision of the spec.
	revision, update string
	// variant names what the child is made of: children with the same variant differ in the unit alone.
	variant string
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

// targets has the target of every unit.
type targets map[string]target

// rolloutMemory is what is remembered of a rollout between reconciliations.
type rolloutMemory struct {
	// generation is the grid's when its revisions were last read.
	generation int64
	// objects are the grid's ControllerRevisions. revisions has their contents, by name.
	objects   []*appsv1.ControllerRevision
	revisions map[string]gridrevision.Revision
	// decided is set if the fields below are our own last decision, which the cache may not have yet.
	decided         bool
	current, update string
	status          *v1.RolloutStatus
	// failures has the units that have failed.
	failures map[string]failedUnit
	// inferred has the revisions of children that carry none, by the digest of what was applied to them; empty for an
	// unknown one.
	inferred map[string]string
	// mark identifies the last state of the rollout for which there was an event.
	mark string
}

// failedUnit is a unit that has failed with a revision.
type failedUnit struct{ revision, why string }

// accept remembers a plan.
func (m *rolloutMemory) accept(plan rollout.Plan, update string) {
	m.decided, m.current, m.update, m.status = true, plan.Current, update, plan.Status
}

// roller gives the units of one grid their revisions, in one pass.
type roller struct {
	*workloadReconciler

	grid     v1.Object
	spec     *v1.WorkloadGridSpec
	owner    *gridchild.Owner
	units    []string
	lost     map[string]bool
	children *assignment
	memory   *gridMemory

	// The fields below are set by aim.

	// around is what templates and waves depend on besides the grid.
	around gridchild.Context
	// current are the templates of the spec.
	current *gridchild.Templates
	// waves are nil without a rollout.
	waves *gridchild.Waves
	// templates has those that were read, by revision; nil for one that cannot be read.
	templates map[string]*gridchild.Templates
	// unrecorded is set if units are to go back, and the status does not say so yet. They go back once it does: a
	// controller that starts anew would otherwise give them the change again.
	unrecorded bool
}

// aim returns what every unit's child should be made of.
func (r *roller) aim(ctx context.Context) (targets, error) {
	r.around = r.context(ctx)
	r.current = gridchild.NewTemplates(r.spec, r.around)
	t := make(targets, len(r.units))
	if r.spec.Rollout == nil {
		r.memory.rollout = rolloutMemory{}
		for _, unit := range r.units {
			t[unit] = target{templates: r.current, variant: r.current.Variant(unit)}
		}
		return t, nil
	}
	var err error
	if r.waves, err = gridchild.NewWaves(r.spec.Rollout, r.around.Nodes); err != nil {
		return nil, err
	}
	update, err := r.revise(ctx)
	if err != nil {
		return nil, err
	}
	r.templates = map[string]*gridchild.Templates{}
	r.infer(update)
	plan := r.plan(nil, update)
	r.unrecorded = plan.Status.Phase == v1.RolloutRollingBack && !r.recorded(update)
	for _, unit := range r.units {
		revision, ok := plan.Revisions[unit]
		if live := r.children.child(unit); r.unrecorded && live != nil && live.revision == update {
			revision = update
		}
		if r.of(revision) == nil && r.children.child(unit) == nil { // nothing is left of the revision
			revision, ok = update, true
		}
		to := target{update: update}
		switch templates := r.of(revision); {
		case ok && templates != nil:
			to.templates, to.revision = templates, revision
			to.variant = revision + "/" + templates.Variant(unit)
		case ok && revision != "":
			to.err = gridchild.Errorf(v1.ReasonRevisionGone,
				"ControllerRevision %s is gone; the workload stays as it is until it gets another revision", revision)
		}
		t[unit] = to
	}
	r.memory.rollout.accept(plan, update)
	return t, nil
}

// recorded reports whether the grid's status says that units with the update go back.
func (r *roller) recorded(update string) bool {
	_, status := v1.Workload(r.grid)
	if status.Rollout == nil || status.UpdateRevision != update {
		return false
	}
	return status.Rollout.Phase == v1.RolloutRollingBack || status.Rollout.Phase == v1.RolloutRolledBack
}

// nextLook returns when units get what the plan says: at once, or after the status was written.
func (r *roller) nextLook() time.Time {
	if r.unrecorded {
		return r.clock.Now().Add(statusPause)
	}
	return r.clock.Now()
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

// infer finds the revisions of children that carry none, or one that is not ours, by what was applied to them: they are
// older than the rollout, or somebody has changed the annotation.
func (r *roller) infer(update string) {
	m := &r.memory.rollout
	for _, unit := range r.units {
		live := r.children.child(unit)
		if live == nil || live.revision != "" || live.applied == "" {
			continue
		}
		if m.inferred == nil {
			m.inferred = map[string]string{}
		}
		if _, done := m.inferred[live.applied]; done {
			continue
		}
		found := ""
		for name := range m.revisions {
			if found != update && r.made(unit, live, name) {
				found = name
			}
		}
		m.inferred[live.applied] = found
	}
}

// made reports whether what was last applied to a unit's child was made of a revision, with its annotation or without.
func (r *roller) made(unit string, live *child, revision string) bool {
	templates := r.of(revision)
	if templates == nil {
		return false
	}
	owner := r.owner.WithUnitInSelector(live.selectsUnit)
	for _, owner := range []*gridchild.Owner{owner.WithRevision(revision), owner} {
		template, err := templates.Of(unit)
		if err != nil {
			return false
		}
		made, err := gridchild.OfUnit(owner, r.GridKind, unit, live.name, template)
		if err == nil && made.Digest == live.applied {
			return true
		}
	}
	return false
}

// plan makes a plan. results are those of the sync of the units; nil before it.
func (r *roller) plan(results map[string]result, update string) rollout.Plan {
	_, status := v1.Workload(r.grid)
	annotations := r.grid.GetAnnotations()
	in := rollout.Input{
		Rollout: r.spec.Rollout, Revision: update,
		Current: status.CurrentRevision, Update: status.UpdateRevision, Status: status.Rollout,
		Approved: annotations[v1.AnnotationApproved], Resumed: annotations[v1.AnnotationResumed],
		Now: r.clock.Now(),
	}
	if annotations[v1.AnnotationAtOnce] == gridrevision.AtOnce(update, r.grid.GetGeneration()) {
		in.AtOnce = update
	}
	if m := r.memory.rollout; m.decided {
		in.Current, in.Update, in.Status = m.current, m.update, m.status
	}
	for _, unit := range r.units {
		live := r.children.child(unit)
		if of, ok := results[unit]; ok && of.child != nil {
			live = of.child
		}
		in.Units = append(in.Units, r.look(unit, live))
	}
	return rollout.New(in)
}

// look returns the state of a unit for the plan.
func (r *roller) look(unit string, live *child) rollout.Unit {
	u := rollout.Unit{Name: unit, Wave: r.waves.Of(unit), Unreachable: r.lost[unit]}
	memory := r.memory.children[unit]
	fresh := true // the cache has what was applied last
	if memory != nil && memory.applied.resourceVersion != "" &&
		r.clock.Now().Before(memory.applied.at.Add(cacheLag)) {
		fresh = live != nil && !older(live.resourceVersion, memory.applied.resourceVersion)
	}
	if failure, ok := r.memory.rollout.failures[unit]; ok {
		u.Failed, u.Tried, u.Why = true, failure.revision, failure.why
	}
	if !fresh {
		u.Exists, u.Revision = true, memory.applied.revision
		return u
	}
	if live == nil {
		return u
	}
	u.Exists, u.Revision, u.Held = true, live.revision, live.held
	if u.Revision == "" {
		u.Revision = r.memory.rollout.inferred[live.applied]
	}
	u.Ready = live.progress.complete && live.observed && !live.deleting && !u.Unreachable
	if u.Ready && u.Tried == u.Revision {
		u.Failed = false
	}
	return u
}

// conclude looks at the units after they were synced. It notes what the rollout has come to, and when to look again.
func (r *roller) conclude(ctx context.Context, t targets, results map[string]result, p *pass) {
	_, before := v1.Workload(r.grid)
	for _, name := range r.current.Idle(r.units) {
		p.noEffect = append(p.noEffect, fmt.Sprintf("spec.overrides[%s] selects no unit", name))
	}
	if r.spec.Rollout == nil {
		return
	}
	m := &r.memory.rollout
	m.failures = map[string]failedUnit{}
	for _, unit := range r.units {
		state := p.states[unit]
		switch {
		case state.Phase == v1.UnitFailed && state.Reason != v1.ReasonSyncFailed:
			m.failures[unit] = failedUnit{t[unit].revision, state.Reason + ": " + state.Message}
		case state.Phase == v1.UnitStalled && results[unit].child != nil:
			m.failures[unit] = failedUnit{results[unit].child.revision, state.Message}
		}
	}
	plan := r.plan(results, m.update)
	for unit, revision := range plan.Revisions {
		if t[unit].templates != nil && t[unit].revision != revision {
			p.lookAgain(r.nextLook())
			break
		}
	}
	p.lookAgain(plan.Again)
	m.accept(plan, m.update)
	p.rollout = &rolloutResult{plan.Current, m.update, before.Rollout, plan.Status}
	r.warn(p)
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
