// Package rollout is what kubectl grid rollout does: it prints how far the rollout of a grid has come, shows and restores
// revisions, and changes what a rollout waits for. It has no flags and no terminal of its own.
package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

// changeAttempts is how often a change is tried while the controller writes the status.
const changeAttempts = 5

// restartedAt is the annotation of a pod template that kubectl rollout restart writes.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// Grid is a grid of workloads in a cluster.
type Grid struct {
	api    client.Client
	Kind   v1.GridKind
	Object v1.Object
}

// Get reads a grid.
func Get(ctx context.Context, api client.Client, kind v1.GridKind, namespace, name string) (*Grid, error) {
	g := &Grid{api, kind, kind.New()}
	if spec, _ := v1.Workload(g.Object); spec == nil {
		return nil, fmt.Errorf("a %s has no rollout", kind.Kind)
	}
	return g, g.read(ctx, types.NamespacedName{Namespace: namespace, Name: name})
}

func (g *Grid) read(ctx context.Context, name types.NamespacedName) error {
	fresh := g.Kind.New()
	if err := g.api.Get(ctx, name, fresh); err != nil {
		return err
	}
	g.Object = fresh
	return nil
}

// Refresh reads the grid again.
func (g *Grid) Refresh(ctx context.Context) error {
	return g.read(ctx, client.ObjectKeyFromObject(g.Object))
}

func (g *Grid) spec() *v1.WorkloadGridSpec {
	spec, _ := v1.Workload(g.Object)
	return spec
}

func (g *Grid) status() *v1.WorkloadGridStatus {
	_, status := v1.Workload(g.Object)
	return status
}

// String names the grid as kubectl does.
func (g *Grid) String() string {
	return strings.ToLower(g.Kind.Kind) + "." + v1.GroupName + "/" + g.Object.GetName()
}

// errNoRollout is that the grid has no spec.rollout.
var errNoRollout = errors.New("the grid has no spec.rollout: all its units get a change at once")

// State is how far a rollout has come.
type State struct {
	// Rows are a table of the waves, with a header.
	Rows [][]string
	// Summary is a line that says the rest.
	Summary string
	// Updated and Units are how many units have the change, of how many.
	Updated, Units int
	// Done: the rollout is complete. Failed is why it does not go on by itself; empty if it does.
	Done   bool
	Failed string
}

// State says how far the rollout has come.
func (g *Grid) State() (State, error) {
	spec, status := g.spec(), g.status()
	if spec.Rollout == nil {
		return State{}, errNoRollout
	}
	if status.Rollout == nil || status.ObservedGeneration < g.Object.GetGeneration() {
		return State{Summary: "Waiting for the controller to see the change of " + g.String()}, nil
	}
	r := status.Rollout
	state := State{Rows: [][]string{{"WAVE", "UNITS", "UPDATED", "READY", "FAILED", "DEFERRED", "STATE"}}}
	for _, wave := range r.Waves {
		name := wave.Name
		if name == "" {
			name = "<others>"
		}
		row := []string{name}
		for _, n := range []int32{wave.Units, wave.Updated, wave.Ready, wave.Failed, wave.Deferred} {
			row = append(row, strconv.Itoa(int(n)))
		}
		state.Rows = append(state.Rows, append(row, string(wave.State)))
		state.Updated += int(wave.Updated)
		state.Units += int(wave.Units)
	}
	state.Summary = fmt.Sprintf("%s: %s", status.UpdateRevision, r.Phase)
	if r.Wave != "" {
		state.Summary += ", wave " + r.Wave
	}
	if r.Message != "" {
		state.Summary += ": " + r.Message
	}
	switch r.Phase {
	case v1.RolloutComplete:
		state.Done = true
	case v1.RolloutHalted, v1.RolloutRolledBack:
		state.Failed = state.Summary
	default:
	}
	return state, nil
}

// Entry is a revision of a grid's history.
type Entry struct {
	Number  int64
	Name    string
	Created metav1.Time
	// Role is "current", "update" or both.
	Role string
	data gridrevision.Revision
}

// YAML is what the revision has.
func (e Entry) YAML() (string, error) {
	text, err := yaml.JSONToYAML(e.data.Data)
	if err != nil {
		return "", fmt.Errorf("reading revision %s: %w", e.Name, err)
	}
	return string(text), nil
}

// History are the revisions of the grid, the oldest first.
func (g *Grid) History(ctx context.Context) ([]Entry, error) {
	list := &appsv1.ControllerRevisionList{}
	if err := g.api.List(ctx, list, client.InNamespace(g.Object.GetNamespace()), client.MatchingLabels{v1.LabelGridSelector: g.Object.GetName()}); err != nil {
		return nil, fmt.Errorf("asking for the ControllerRevisions: %w", err)
	}
	var objects []*appsv1.ControllerRevision
	for i := range list.Items {
		if by := metav1.GetControllerOf(&list.Items[i]); by != nil && by.UID == g.Object.GetUID() {
			objects = append(objects, &list.Items[i])
		}
	}
	gridrevision.Sort(objects)
	status := g.status()
	var entries []Entry
	for _, object := range objects {
		data, err := gridrevision.FromObject(object)
		if err != nil {
			return nil, err
		}
		var roles []string
		if object.Name == status.CurrentRevision {
			roles = append(roles, "current")
		}
		if object.Name == status.UpdateRevision {
			roles = append(roles, "update")
		}
		entries = append(entries, Entry{object.Revision, object.Name, object.CreationTimestamp, strings.Join(roles, ","), data})
	}
	return entries, nil
}

// Undo writes the templates and overrides of an earlier revision into the spec: of that number, or with 0 of the last one
// that is not the spec's. It returns the revision.
func (g *Grid) Undo(ctx context.Context, number int64, how Pace) (Entry, error) {
	entries, err := g.History(ctx)
	if err != nil {
		return Entry{}, err
	}
	present, err := gridrevision.Of(g.Kind.Kind, g.Object.GetName(), g.spec())
	if err != nil {
		return Entry{}, err
	}
	i := -1
	for n, entry := range entries {
		if (number == 0 && entry.Name != present.Name) || (number != 0 && entry.Number == number) {
			i = n
		}
	}
	switch {
	case i < 0 && number == 0:
		return Entry{}, errors.New("no rollout history found to go back to")
	case i < 0:
		return Entry{}, fmt.Errorf("unable to find revision %d; see kubectl grid rollout history", number)
	case entries[i].Name == present.Name:
		return entries[i], ErrSkipped
	}
	restored, err := entries[i].data.Restore(g.spec())
	if err != nil {
		return Entry{}, err
	}
	return entries[i], g.change(ctx, func(o v1.Object) {
		spec, _ := v1.Workload(o)
		*spec = *restored
		if how == AtOnce {
			annotate(o, v1.AnnotationAtOnce, entries[i].Name)
		}
	})
}

// ErrSkipped is that the grid has this revision already.
var ErrSkipped = errors.New("the spec has this revision already")

// Pace is how an undo reaches the units.
type Pace int

const (
	// InWaves is as any change.
	InWaves Pace = iota
	// AtOnce is all units at once.
	AtOnce
)

// Pause keeps further units from being started.
func (g *Grid) Pause(ctx context.Context) error {
	switch r := g.spec().Rollout; {
	case r == nil:
		return errNoRollout
	case r.Paused:
		return errors.New("the rollout is already paused")
	}
	return g.change(ctx, func(o v1.Object) {
		spec, _ := v1.Workload(o)
		spec.Rollout.Paused = true
	})
}

// Resume lets a rollout go on that is paused, or that has halted.
func (g *Grid) Resume(ctx context.Context) error {
	r, status := g.spec().Rollout, g.status().Rollout
	halted := status != nil && status.HaltTime != nil
	switch {
	case r == nil:
		return errNoRollout
	case !r.Paused && !halted:
		return errors.New("the rollout is neither paused nor halted")
	}
	return g.change(ctx, func(o v1.Object) {
		spec, status := v1.Workload(o)
		spec.Rollout.Paused = false
		if halted {
			annotate(o, v1.AnnotationResumed, status.Rollout.HaltTime.UTC().Format(time.RFC3339))
		}
	})
}

// Approve approves of a wave of the rollout; of the one that waits if none is named. It returns the wave.
func (g *Grid) Approve(ctx context.Context, wave string) (string, error) {
	r, status := g.spec().Rollout, g.status()
	if r == nil {
		return "", errNoRollout
	}
	if status.Rollout == nil || status.ObservedGeneration < g.Object.GetGeneration() {
		return "", errors.New("the controller has not seen the last change of the grid yet")
	}
	if wave == "" {
		if status.Rollout.Phase != v1.RolloutAwaitingApproval {
			return "", fmt.Errorf("no wave waits for an approval; the rollout is %s", status.Rollout.Phase)
		}
		wave = status.Rollout.Wave
	}
	if !slices.ContainsFunc(r.Waves, func(w v1.Wave) bool { return w.Name == wave && w.Approval == v1.ApprovalManual }) {
		return "", fmt.Errorf("no wave %q has approval: Manual", wave)
	}
	return wave, g.change(ctx, func(o v1.Object) {
		annotate(o, v1.AnnotationApproved, gridrevision.ApprovalOf(status.UpdateRevision, wave))
	})
}

// Restart makes all pods anew, wave by wave, as kubectl rollout restart does.
func (g *Grid) Restart(ctx context.Context, now time.Time) error {
	var failed error
	err := g.change(ctx, func(o v1.Object) {
		spec, _ := v1.Workload(o)
		at := now.Format(time.RFC3339)
		var err error
		if !spec.Template.IsZero() {
			spec.Template, err = restarted(spec.Template, at)
			failed = errors.Join(failed, err)
		}
		for name, template := range spec.TemplatePool {
			spec.TemplatePool[name], err = restarted(template, at)
			failed = errors.Join(failed, err)
		}
	})
	return errors.Join(failed, err)
}

// restarted is a template whose pods are others.
func restarted(template v1.Template, at string) (v1.Template, error) {
	var spec map[string]any
	if err := json.Unmarshal(template.Raw, &spec); err != nil {
		return template, fmt.Errorf("reading a template: %w", err)
	}
	if err := unstructured.SetNestedField(spec, at, "template", "metadata", "annotations", restartedAt); err != nil {
		return template, fmt.Errorf("changing a template: %w", err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return template, fmt.Errorf("changing a template: %w", err)
	}
	return v1.Template{Raw: data}, nil
}

func annotate(o v1.Object, key, value string) {
	annotations := o.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	o.SetAnnotations(annotations)
}

// change writes a change of the grid, unless somebody else has changed its spec meanwhile. The controller, which writes its
// status, is nobody.
func (g *Grid) change(ctx context.Context, change func(v1.Object)) error {
	generation := g.Object.GetGeneration()
	for range changeAttempts {
		changed, ok := g.Object.DeepCopyObject().(v1.Object)
		if !ok {
			return fmt.Errorf("%T is no grid", g.Object)
		}
		change(changed)
		err := g.api.Patch(ctx, changed, client.MergeFromWithOptions(g.Object, client.MergeFromWithOptimisticLock{}))
		if err == nil {
			g.Object = changed
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		if err := g.Refresh(ctx); err != nil {
			return err
		}
		if g.Object.GetGeneration() != generation {
			break
		}
	}
	return errors.New("the grid was changed by someone else at the same time; try again")
}

// Child is the name of the workload of a unit.
func (g *Grid) Child(ctx context.Context, unit string) (string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(g.Kind.Child.GroupVersion().WithKind(g.Kind.Child.Kind + "List"))
	err := g.api.List(ctx, list, client.InNamespace(g.Object.GetNamespace()), client.MatchingLabels{v1.LabelGridSelector: g.Object.GetName()})
	if err != nil {
		return "", fmt.Errorf("asking for the %ss: %w", g.Kind.Child.Kind, err)
	}
	var units []string
	for i := range list.Items {
		item := &list.Items[i]
		if by := metav1.GetControllerOf(item); by == nil || by.UID != g.Object.GetUID() {
			continue
		}
		of := v1.UnitOf(item, g.Object.GetName())
		if of == unit {
			return item.Name, nil
		}
		units = append(units, of)
	}
	slices.Sort(units)
	if len(units) > 10 {
		units = append(units[:10], "…")
	}
	return "", fmt.Errorf("%s has no unit %q; it has %s", g, unit, strings.Join(units, ", "))
}
