package gridcontroller

import (
	"context"
	"fmt"
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
}

// targets are by unit.
type targets map[string]target

// told is what the state of a unit tells of its child's revision.
func (t target) told(live *child) string {
	if t.update == "" || live.revision == t.update {
		return ""
	}
	return live.revision
}

// rolloutMemory is what is remembered of a rollout between reconciliations.
type rolloutMemory struct {
	// generation is the grid's when its revisions were last read.
	generation int64
	// objects are the grid's ControllerRevisions, revisions their contents by name.
	objects   []*appsv1.ControllerRevision
	revisions map[string]gridrevision.Revision
	// known: the fields below are our own last decision, which the cache may not have yet.
	known           bool
	current, update string
	status          *v1.RolloutStatus
	// failures are the units that have failed, with the revision for which they did.
	failures map[string]failedUnit
	// inferred are revisions of children that carry none, by the digest of what was applied to them; empty for unknown.
	inferred map[string]string
	// told is the last event.
	told string
}

type failedUnit struct{ revision, why string }

// rolledOut is what a rollout has come to.
type rolledOut struct {
	current, update string
	before, status  *v1.RolloutStatus
}

// nodesOf gives the labels of the nodes of units, if a grid selects units by them.
func (r *workloadReconciler) nodesOf(spec *v1.WorkloadGridSpec) gridchild.NodesOf {
	selects := false
	for i := range spec.Overrides {
		selects = selects || spec.Overrides[i].Units.NodeSelector != nil
	}
	if spec.Rollout != nil {
		selects = true // overrides of older revisions may
	}
	if !selects {
		return nil
	}
	labels := r.units.labelsOf(spec.GridUniqKey)
	return func(unit string) []map[string]string { return labels[unit] }
}

// aim says what every unit's child should be made of.
func (r *workloadReconciler) aim(ctx context.Context, grid v1.Object, o *gridchild.Owner, units []string, lost map[string]bool, a *assignment, m *gridMemory) (targets, error) {
	spec, _ := v1.Workload(grid)
	around := gridchild.Context{Nodes: r.nodesOf(spec)}
	if r.schemas != nil {
		around.Merge = r.schemas.Merge(ctx, r.Child)
	}
	t := make(targets, len(units))
	if spec.Rollout == nil {
		m.rollout = rolloutMemory{}
		templates := gridchild.NewTemplates(spec, around)
		for _, unit := range units {
			t[unit] = target{templates: templates, variant: templates.Variant(unit)}
		}
		return t, nil
	}
	update, err := r.revise(ctx, grid, m)
	if err != nil {
		return nil, err
	}
	of := map[string]*gridchild.Templates{}
	templates := func(name string) *gridchild.Templates {
		if made, ok := of[name]; ok {
			return made
		}
		var made *gridchild.Templates
		if revision, ok := m.rollout.revisions[name]; ok {
			if content, err := revision.Spec(spec); err == nil {
				made = gridchild.NewTemplates(content, around)
			}
		}
		of[name] = made
		return made
	}
	r.infer(o, units, a, update, templates, m)
	plan, err := r.plan(grid, units, lost, a, nil, around.Nodes, update, m)
	if err != nil {
		return nil, err
	}
	for _, unit := range units {
		revision, ok := plan.Revisions[unit]
		to := target{update: update}
		if ok && templates(revision) != nil {
			to.templates, to.revision = templates(revision), revision
			to.variant = revision + "/" + to.templates.Variant(unit)
		}
		if to.templates == nil && a.child(unit) == nil { // nothing is left of the revision
			to.templates, to.revision = templates(update), update
			to.variant = update + "/" + to.templates.Variant(unit)
		}
		t[unit] = to
	}
	m.rollout.accept(plan, update)
	return t, nil
}

// infer finds the revisions of children that carry none, or one that is not ours, by what was applied to them: they are
// older than the rollout, or somebody has changed the annotation.
func (r *workloadReconciler) infer(o *gridchild.Owner, units []string, a *assignment, update string, templates func(string) *gridchild.Templates, m *gridMemory) {
	for _, unit := range units {
		live := a.child(unit)
		if live == nil || live.revision != "" || live.applied == "" {
			continue
		}
		if m.rollout.inferred == nil {
			m.rollout.inferred = map[string]string{}
		}
		if _, done := m.rollout.inferred[live.applied]; done {
			continue
		}
		found := ""
		for name := range m.rollout.revisions {
			t := templates(name)
			if t == nil {
				continue
			}
			owner := o.WithUnitInSelector(live.selectsUnit)
			for _, owner := range []*gridchild.Owner{owner.WithRevision(name), owner} {
				template, err := t.Of(unit)
				if err != nil {
					continue
				}
				if child, err := gridchild.OfUnit(owner, r.GridKind, unit, live.name, template); err == nil && child.Digest == live.applied && found != update {
					found = name
				}
			}
		}
		m.rollout.inferred[live.applied] = found
	}
}

// plan asks for a plan. results are what came of the sync of the units; nil before it.
func (r *workloadReconciler) plan(grid v1.Object, units []string, lost map[string]bool, a *assignment, results map[string]result, nodes gridchild.NodesOf, update string, m *gridMemory) (rollout.Plan, error) {
	spec, status := v1.Workload(grid)
	annotations := grid.GetAnnotations()
	in := rollout.Input{
		Rollout: spec.Rollout, Revision: update,
		Current: status.CurrentRevision, Update: status.UpdateRevision, Status: status.Rollout,
		Approved: annotations[v1.AnnotationApproved], Resumed: annotations[v1.AnnotationResumed], AtOnce: annotations[v1.AnnotationAtOnce],
		Now: r.clock.Now(),
	}
	if m.rollout.known {
		in.Current, in.Update, in.Status = m.rollout.current, m.rollout.update, m.rollout.status
	}
	for _, unit := range units {
		wave, err := gridchild.WaveOf(spec.Rollout, unit, nodes)
		if err != nil {
			return rollout.Plan{}, err
		}
		live := a.child(unit)
		if of, ok := results[unit]; ok && of.child != nil {
			live = of.child
		}
		u := rollout.Unit{Name: unit, Wave: wave, Unreachable: lost[unit]}
		r.look(&u, live, m)
		in.Units = append(in.Units, u)
	}
	return rollout.New(in), nil
}

// look fills in how it stands with a unit's child.
func (r *workloadReconciler) look(u *rollout.Unit, live *child, m *gridMemory) {
	memory := m.children[u.Name]
	fresh := true // the cache has what was applied last
	if memory != nil && memory.applied.resourceVersion != "" && r.clock.Now().Before(memory.applied.at.Add(cacheLag)) {
		fresh = live != nil && !older(live.resourceVersion, memory.applied.resourceVersion)
	}
	if failure, ok := m.rollout.failures[u.Name]; ok {
		u.Failed, u.Tried, u.Why = true, failure.revision, failure.why
	}
	if !fresh {
		u.Exists, u.Revision = true, memory.applied.revision
		return
	}
	if live == nil {
		return
	}
	u.Exists, u.Revision, u.Held = true, live.revision, live.held
	if u.Revision == "" {
		u.Revision = m.rollout.inferred[live.applied]
	}
	u.Ready = live.progress.complete && live.observed && !live.deleting && !u.Unreachable
	if u.Ready && u.Tried == u.Revision {
		u.Failed = false
	}
}

// accept remembers a plan.
func (m *rolloutMemory) accept(plan rollout.Plan, update string) {
	m.known, m.current, m.update, m.status = true, plan.Current, update, plan.Status
}

// rollOut looks at the units after they were synced: what the status tells, and whether more is to be done.
func (r *workloadReconciler) rollOut(ctx context.Context, grid v1.Object, units []string, lost map[string]bool, a *assignment, t targets, results map[string]result, m *gridMemory, p *pass) {
	spec, told := v1.Workload(grid)
	if spec.Rollout == nil {
		return
	}
	failures := map[string]failedUnit{}
	for _, unit := range units {
		state := p.states[unit]
		switch {
		case state.Phase == v1.UnitFailed && state.Reason != v1.ReasonSyncFailed:
			failures[unit] = failedUnit{t[unit].revision, state.Reason + ": " + state.Message}
		case state.Phase == v1.UnitStalled && results[unit].child != nil:
			failures[unit] = failedUnit{results[unit].child.revision, state.Message}
		}
	}
	m.rollout.failures = failures
	plan, err := r.plan(grid, units, lost, a, results, r.nodesOf(spec), m.rollout.update, m)
	if err != nil {
		return // aim has returned it
	}
	for unit, revision := range plan.Revisions {
		if t[unit].templates != nil && t[unit].revision != revision {
			p.lookAgain(r.clock.Now())
			break
		}
	}
	p.lookAgain(plan.Again)
	m.rollout.accept(plan, m.rollout.update)
	p.rolledOut = &rolledOut{plan.Current, m.rollout.update, told.Rollout, plan.Status}
	r.collect(ctx, grid, a, m)
}

// summarize writes into the status what the rollout has come to.
func (o *rolledOut) summarize(status *v1.WorkloadGridStatus, generation int64) {
	if o == nil {
		status.CurrentRevision, status.UpdateRevision, status.Rollout = "", "", nil
		return
	}
	status.CurrentRevision, status.UpdateRevision, status.Rollout = o.current, o.update, o.status.DeepCopy()
	if o.status.Phase == v1.RolloutComplete {
		return
	}
	condition := conditionSetter(&status.Conditions, generation)
	condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonRollout, o.describe())
	switch o.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack:
		condition(v1.ConditionDegraded, metav1.ConditionTrue, v1.ReasonRolloutHalted, o.describe())
	case v1.RolloutProgressing, v1.RolloutSoaking:
		condition(v1.ConditionProgressing, metav1.ConditionTrue, v1.ReasonRollout, o.describe())
	default:
	}
}

// count adds what the metrics tell of it.
func (o *rolledOut) count(f *figures) {
	if o == nil {
		return
	}
	switch o.status.Phase {
	case v1.RolloutProgressing, v1.RolloutSoaking:
		f.rolling = 1
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack:
		f.halted = 1
	case v1.RolloutAwaitingApproval:
		f.waiting = 1
	default:
	}
}

// describe says in one line how it stands.
func (o *rolledOut) describe() string {
	parts := []string{"rollout of " + o.update}
	if o.status.Wave != "" {
		parts = append(parts, "wave "+o.status.Wave)
	}
	parts = append(parts, string(o.status.Phase))
	if o.status.Message != "" {
		parts = append(parts, o.status.Message)
	}
	return gridchild.Shorten(strings.Join(parts, ": "))
}

// tell records an event where the rollout has come to another phase or wave.
func (o *rolledOut) tell(m *gridMemory, event func(kind, reason, action, format string, args ...any)) {
	mark := fmt.Sprint(o.update, "/", o.status.Wave, "/", o.status.Phase)
	if m.rollout.told == "" && o.before != nil { // a controller before this one may have told it
		m.rollout.told = fmt.Sprint(o.update, "/", o.before.Wave, "/", o.before.Phase)
	}
	if m.rollout.told == mark {
		return
	}
	m.rollout.told = mark
	switch o.status.Phase {
	case v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack:
		event(corev1.EventTypeWarning, v1.ReasonRolloutHalted, "Rollout", "%s", o.describe())
	default:
		event(corev1.EventTypeNormal, v1.ReasonRollout, "Rollout", "%s", o.describe())
	}
}

// revise makes the ControllerRevision of the spec, if there is none, and returns its name.
func (r *workloadReconciler) revise(ctx context.Context, grid v1.Object, m *gridMemory) (string, error) {
	spec, _ := v1.Workload(grid)
	update, err := gridrevision.Of(r.Kind, grid.GetName(), spec)
	if err != nil {
		return "", err
	}
	if m.rollout.revisions != nil && m.rollout.generation == grid.GetGeneration() {
		return update.Name, nil
	}
	list := &appsv1.ControllerRevisionList{}
	if err := r.live.List(ctx, list, client.InNamespace(grid.GetNamespace()), client.MatchingLabels{v1.LabelGridSelector: grid.GetName()}); err != nil {
		return "", fmt.Errorf("asking for the ControllerRevisions: %w", err)
	}
	objects := []*appsv1.ControllerRevision{}
	revisions := map[string]gridrevision.Revision{}
	highest := int64(0)
	var own *appsv1.ControllerRevision
	for i := range list.Items {
		object := &list.Items[i]
		if by := metav1.GetControllerOf(object); by == nil || by.UID != grid.GetUID() {
			continue
		}
		revision, err := gridrevision.FromObject(object)
		if err != nil {
			klog.FromContext(ctx).Error(err, "A ControllerRevision is left alone")
			continue
		}
		if object.Name == update.Name {
			own = object
			if !revision.Same(update) {
				return "", gridchild.Errorf(v1.ReasonNameConflict, "ControllerRevision %s is not what this grid has written; delete it", object.Name)
			}
		}
		objects, revisions[object.Name] = append(objects, object), revision
		highest = max(highest, object.Revision)
	}
	switch {
	case own == nil:
		own = update.Object(r.Kind, grid, highest+1)
		if err := r.writer.Create(ctx, own, client.FieldOwner(v1.FieldManager)); err != nil {
			return "", fmt.Errorf("making ControllerRevision %s: %w", own.Name, err)
		}
		objects, revisions[own.Name] = append(objects, own), update
	case own.Revision < highest: // an undo
		before := own.DeepCopy()
		own.Revision = highest + 1
		if err := r.writer.Patch(ctx, own, client.MergeFrom(before), client.FieldOwner(v1.FieldManager)); err != nil {
			return "", fmt.Errorf("changing ControllerRevision %s: %w", own.Name, err)
		}
	}
	m.rollout.objects, m.rollout.revisions, m.rollout.generation = objects, revisions, grid.GetGeneration()
	m.rollout.inferred = nil
	return update.Name, nil
}

// collect deletes revisions beyond the limit that no unit has.
func (r *workloadReconciler) collect(ctx context.Context, grid v1.Object, a *assignment, m *gridMemory) {
	spec, _ := v1.Workload(grid)
	inUse := map[string]bool{m.rollout.current: true, m.rollout.update: true}
	for _, live := range a.children {
		inUse[live.revision] = true
		inUse[m.rollout.inferred[live.applied]] = true
	}
	for memory := range maps.Values(m.children) {
		inUse[memory.applied.revision] = true
	}
	for _, object := range gridrevision.Superfluous(m.rollout.objects, inUse, spec.RevisionHistoryLimit) {
		uid := object.UID
		err := r.writer.Delete(ctx, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: object.Namespace, Name: object.Name}},
			client.Preconditions{UID: &uid})
		if err != nil && !apierrors.IsNotFound(err) {
			klog.FromContext(ctx).Error(err, "Removing an old ControllerRevision", "revision", object.Name)
			return
		}
		m.rollout.forget(object.Name, object.UID)
	}
}

func (m *rolloutMemory) forget(name string, uid types.UID) {
	delete(m.revisions, name)
	kept := m.objects[:0:0]
	for _, object := range m.objects {
		if object.UID != uid {
			kept = append(kept, object)
		}
	}
	m.objects = kept
}
