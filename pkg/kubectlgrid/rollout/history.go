package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// Entry is a revision of a grid's history.
type Entry struct {
	*appsv1.ControllerRevision

	// Role is "current", "update" or both.
	Role string
}

// Completed reports whether a rollout of the revision has been complete.
func (e Entry) Completed() bool {
	_, completed := e.Annotations[v1.AnnotationCompleted]
	return completed
}

// History returns the revisions of the grid, the oldest first.
func (g *Grid) History(ctx context.Context) ([]Entry, error) {
	objects, err := cluster.Revisions(ctx, g.cluster.API, g.Object)
	if err != nil {
		return nil, err
	}
	gridrevision.Sort(objects)
	status := g.status()
	var entries []Entry
	for _, object := range objects {
		var roles []string
		if object.Name == status.CurrentRevision {
			roles = append(roles, "current")
		}
		if object.Name == status.UpdateRevision {
			roles = append(roles, "update")
		}
		entries = append(entries, Entry{object, strings.Join(roles, ",")})
	}
	return entries, nil
}

// ErrSkipped means that the grid has this revision already.
var ErrSkipped = errors.New("the spec has this revision already")

// Undo describes a way back.
type Undo struct {
	// Revision is the number of the revision to restore; 0 for the one that last ran everywhere.
	Revision int64
	// AtOnce restores it on all sites at once, and not in waves, like any change.
	AtOnce bool
}

// Undo writes the templates and overrides of an earlier revision into the spec. It returns the number of the revision.
func (g *Grid) Undo(ctx context.Context, how Undo) (int64, error) {
	entries, err := g.History(ctx)
	if err != nil {
		return 0, err
	}
	present, err := gridrevision.Of(g.Kind.Kind, g.Object)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(entries, func(e Entry) bool { return e.Revision == how.Revision })
	if how.Revision == 0 {
		i = earlier(entries, present, g.status().CurrentRevision)
	}
	switch {
	case i < 0 && how.Revision == 0:
		return 0, errors.New("no rollout history found to go back to")
	case i < 0:
		return 0, fmt.Errorf("unable to find revision %d; see kubectl grid rollout history %s", how.Revision, g.Ref())
	case gridrevision.Same(entries[i].ControllerRevision, present):
		return entries[i].Revision, ErrSkipped
	}
	restored, err := gridrevision.Restore(entries[i].ControllerRevision, g.spec())
	if err != nil {
		return 0, err
	}
	return entries[i].Revision, g.change(ctx, func(o v1.Object) error {
		spec, _ := v1.SpecAndStatus(o)
		*spec = *restored
		if !how.AtOnce {
			return nil
		}
		// The change makes the next generation. If someone else is faster, it fails.
		next := gridrevision.AtOnce(entries[i].Name, o.GetGeneration()+1)
		return g.sign(ctx, o, v1.AnnotationAtOnce, next)
	})
}

// earlier returns the index of the revision to go back to, with another content than present: the current one, which
// last ran everywhere, else the newest one whose rollout was complete, else the newest one; -1 if no other exists.
func earlier(entries []Entry, present *appsv1.ControllerRevision, current string) int {
	i, best := -1, -1
	for n, entry := range entries {
		rank := 0
		switch {
		case gridrevision.Same(entry.ControllerRevision, present):
			continue
		case entry.Name == current:
			rank = 2
		case entry.Completed():
			rank = 1
		}
		if rank >= best {
			i, best = n, rank
		}
	}
	return i
}
