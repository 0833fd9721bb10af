package gridcontroller

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
)

// ensureRevision makes the ControllerRevision of the spec, if it does not exist, and returns its name. The grid's
// ControllerRevisions are read once for each generation of the grid, because only this controller writes them.
func (p *pass) ensureRevision(ctx context.Context) (string, error) {
	m := p.memory
	update, err := gridrevision.Of(p.Kind, p.grid)
	if err != nil {
		return "", err
	}
	if m.revisions != nil {
		return update.Name, nil
	}
	objects, err := p.claimRevisions(ctx)
	if err != nil {
		return "", err
	}
	var own *appsv1.ControllerRevision
	highest := int64(0)
	for _, object := range objects {
		highest = max(highest, object.Revision)
		if object.Name == update.Name {
			own = object
		}
	}
	switch {
	case own != nil && !gridrevision.Same(own, update):
		return "", gridchild.Errorf(v1.ReasonNameConflict,
			"ControllerRevision %s is not what this grid has written; delete it", own.Name)
	case own == nil:
		own = update
		own.Revision = highest + 1
		if p.spec.Rollout == nil {
			own.Annotations = map[string]string{v1.AnnotationCompleted: p.clock.Now().UTC().Format(time.RFC3339)}
		}
		err := p.writer.Create(ctx, own)
		switch {
		case apierrors.IsAlreadyExists(err):
			return "", gridchild.Errorf(v1.ReasonNameConflict,
				"ControllerRevision %s belongs to somebody else; delete it", own.Name)
		case err != nil:
			return "", fmt.Errorf("making ControllerRevision %s: %w", own.Name, err)
		}
		objects = append(objects, own)
	case own.Revision < highest: // an undo
		before := own.DeepCopy()
		own.Revision = highest + 1
		if err := p.writer.Patch(ctx, own, client.MergeFrom(before)); err != nil {
			return "", fmt.Errorf("changing ControllerRevision %s: %w", own.Name, err)
		}
	}
	m.revisions = objects
	return update.Name, nil
}

// markCompleted marks the ControllerRevision that the status shows to run in all sites. An undo goes back to such ones.
func (p *assigned) markCompleted(ctx context.Context) {
	written := p.status.Rollout
	if written == nil || written.Phase != v1.RolloutComplete || p.status.CurrentRevision != p.update.Revision {
		return
	}
	for _, object := range p.memory.revisions {
		if object.Name != p.update.Revision || object.Annotations[v1.AnnotationCompleted] != "" {
			continue
		}
		marked, now := object.DeepCopy(), p.clock.Now().UTC().Format(time.RFC3339)
		metav1.SetMetaDataAnnotation(&marked.ObjectMeta, v1.AnnotationCompleted, now)
		if err := p.writer.Patch(ctx, marked, client.MergeFrom(object)); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot note that a revision is complete", "revision", object.Name)
		} else {
			*object = *marked
		}
	}
}

// claimRevisions reads the grid's ControllerRevisions from the API server. It adopts orphans of a deleted grid of the
// same name. Grids of other kinds may have the same name, but their revisions have other names.
func (p *pass) claimRevisions(ctx context.Context) ([]*appsv1.ControllerRevision, error) {
	list := &appsv1.ControllerRevisionList{}
	err := p.apiReader.List(ctx, list, client.InNamespace(p.grid.GetNamespace()),
		client.MatchingLabels{v1.LabelGridSelector: p.grid.GetName()})
	if err != nil {
		return nil, fmt.Errorf("listing the ControllerRevisions: %w", err)
	}
	var own []*appsv1.ControllerRevision
	for i := range list.Items {
		object := &list.Items[i]
		switch by := metav1.GetControllerOf(object); {
		case by == nil:
			if !gridrevision.IsOf(p.Kind, p.grid.GetName(), object) {
				continue
			}
			before := object.DeepCopy()
			object.OwnerReferences = append(object.OwnerReferences,
				*metav1.NewControllerRef(p.grid, v1.GroupVersion.WithKind(p.Kind)))
			patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
			if err := p.writer.Patch(ctx, object, patch); err != nil {
				return nil, fmt.Errorf("adopting ControllerRevision %s: %w", object.Name, err)
			}
			own = append(own, object)
		case by.UID == p.grid.GetUID():
			own = append(own, object)
		case by.Kind == p.Kind && by.Name == p.grid.GetName():
			// A former grid of this name has left it, and the garbage collector will remove it.
			if err := p.deleteObject(ctx, object); err != nil {
				return nil, fmt.Errorf("removing ControllerRevision %s of a former grid: %w", object.Name, err)
			}
		}
	}
	return own, nil
}

func (p *planned) deleteOldRevisions(ctx context.Context) {
	m := p.memory
	inUse := map[string]bool{
		p.rollout.Current: true, p.update.Revision: true, p.status.CurrentRevision: true, p.status.UpdateRevision: true,
	}
	if p.status.Rollout != nil {
		for _, site := range p.status.Rollout.Sites {
			inUse[site.From] = true
		}
	}
	for _, live := range p.children {
		inUse[live.revision] = true
	}
	for _, object := range gridrevision.Superfluous(m.revisions, inUse, p.spec.RevisionHistoryLimit) {
		if err := p.deleteObject(ctx, object); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot delete an old ControllerRevision", "revision", object.Name)
			return
		}
		m.revisions = slices.DeleteFunc(m.revisions, func(of *appsv1.ControllerRevision) bool { return of == object })
	}
}
