package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridrevision"
)

// restartedAt is the annotation of a pod template that kubectl rollout restart writes.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

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
	waits := status.Rollout.Phase == v1.RolloutAwaitingApproval && status.Rollout.Wave == wave
	if !waits && !slices.ContainsFunc(r.Waves, func(w v1.Wave) bool {
		return w.Name == wave && w.Approval == v1.ApprovalManual
	}) {
		return "", fmt.Errorf("no wave %q has approval: Manual", wave)
	}
	return wave, g.change(ctx, func(o v1.Object) {
		annotate(o, v1.AnnotationApproved,
			gridrevision.AddApproval(o.GetAnnotations()[v1.AnnotationApproved], status.UpdateRevision, wave))
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
	if err := utiljson.Unmarshal(template.Raw, &spec); err != nil {
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
