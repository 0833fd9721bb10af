package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// restartedAt is the annotation of a pod template that kubectl rollout restart writes.
const restartedAt = "kubectl.kubernetes.io/restartedAt"

// Pause prevents the rollout from starting more sites.
func (g *Grid) Pause(ctx context.Context) error {
	return g.change(ctx, func(o v1.Object) error {
		switch spec, _ := v1.SpecAndStatus(o); {
		case spec.Rollout == nil:
			return errNoRollout
		case spec.Rollout.Paused:
			return errors.New("the rollout is already paused")
		default:
			spec.Rollout.Paused = true
			return nil
		}
	})
}

// Resume continues a rollout that is paused or has halted. If it is both, Resume only ends the pause, because the
// person was not shown that it has halted. It returns what still stops the rollout; empty if nothing does.
func (g *Grid) Resume(ctx context.Context) (still string, err error) {
	err = g.change(ctx, func(o v1.Object) error {
		spec, status := v1.SpecAndStatus(o)
		halted := status.Rollout != nil && status.Rollout.HaltTime != nil
		switch {
		case spec.Rollout == nil:
			return errNoRollout
		case spec.Rollout.Paused:
			spec.Rollout.Paused = false
			if halted && !isResumed(o) {
				still = status.Rollout.Message
			}
			return nil
		case !halted:
			return errors.New("the rollout is neither paused nor halted")
		case isResumed(o):
			return errors.New("the rollout is resumed already, and the controller has not seen it yet")
		}
		return g.sign(ctx, o, v1.AnnotationResumed, resumeOf(status.Rollout))
	})
	return still, err
}

// resumeOf returns the value of the annotation that resumes a halted rollout.
func resumeOf(r *v1.RolloutStatus) string { return r.HaltTime.UTC().Format(time.RFC3339) }

// isResumed reports whether a grid that has halted has the annotation that resumes it.
func isResumed(o v1.Object) bool {
	_, status := v1.SpecAndStatus(o)
	return status.Rollout != nil && status.Rollout.HaltTime != nil &&
		o.GetAnnotations()[v1.AnnotationResumed] == resumeOf(status.Rollout)
}

// isApproved reports whether a grid that awaits an approval has it.
func isApproved(o v1.Object) bool {
	_, status := v1.SpecAndStatus(o)
	return status.Rollout != nil && status.Rollout.Awaits != "" &&
		o.GetAnnotations()[v1.AnnotationApproved] == status.Rollout.Awaits
}

// Approve gives the approval that the rollout awaits. wave, if not empty, must be the wave of the approval. Approve
// returns the wave.
func (g *Grid) Approve(ctx context.Context, wave string) (string, error) {
	awaits := ""
	err := g.change(ctx, func(o v1.Object) error {
		spec, status := v1.SpecAndStatus(o)
		r := status.Rollout
		switch {
		case spec.Rollout == nil:
			return errNoRollout
		case r == nil || status.ObservedGeneration < o.GetGeneration():
			return errors.New("the controller has not seen the last change of the grid yet")
		case r.Awaits == "":
			return fmt.Errorf("no wave waits for an approval; the rollout is %s", r.Phase)
		case wave != "" && wave != r.Wave:
			return fmt.Errorf("wave %q does not wait for an approval; %q does", wave, r.Wave)
		case awaits != "" && awaits != r.Awaits:
			return fmt.Errorf("the rollout has gone on meanwhile; see kubectl grid rollout status %s", g.Ref())
		case isApproved(o):
			return errors.New("the approval is there already, and the controller has not seen it yet")
		}
		wave, awaits = r.Wave, r.Awaits
		return g.sign(ctx, o, v1.AnnotationApproved, awaits)
	})
	return wave, err
}

// restart changes the templates so that the controller replaces all pods, in the rollout's waves.
func (g *Grid) restart(ctx context.Context, at string) error {
	return g.change(ctx, func(o v1.Object) error {
		spec, _ := v1.SpecAndStatus(o)
		err := restartTemplate(&spec.Template, at)
		for name, template := range spec.TemplatePool {
			err = errors.Join(err, restartTemplate(&template, at))
			spec.TemplatePool[name] = template
		}
		return err
	})
}

// restartTemplate changes a template, so that its pods are replaced.
func restartTemplate(template *v1.Template, at string) error {
	if template.IsZero() {
		return nil
	}
	var spec map[string]any
	err := utiljson.Unmarshal(template.Raw, &spec)
	if err == nil {
		err = unstructured.SetNestedField(spec, at, "template", "metadata", "annotations", restartedAt)
	}
	if err == nil {
		template.Raw, err = json.Marshal(spec)
	}
	if err != nil {
		return fmt.Errorf("changing a template: %w", err)
	}
	return nil
}
