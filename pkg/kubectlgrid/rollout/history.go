package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// Entry is a revision of a grid's history.
type Entry struct {
	Number  int64
	Name    string
	Created metav1.Time
	// Role is "current", "update" or both.
	Role string
	// Completed is set if a rollout of the revision has been complete.
	Completed bool
	data      gridrevision.Revision
}

// YAML returns the content of the revision.
func (e Entry) YAML() (string, error) {
	text, err := yaml.JSONToYAML(e.data.Data)
	if err != nil {
		return "", fmt.Errorf("reading revision %s: %w", e.Name, err)
	}
	return string(text), nil
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
		_, completed := object.Annotations[v1.AnnotationCompleted]
		entries = append(entries, Entry{
			object.Revision, object.Name, object.CreationTimestamp, strings.Join(roles, ","), completed, data,
		})
	}
	return entries, nil
}

// Undo writes the templates and overrides of an earlier revision into the spec: the one with that number, or for 0 the
// one that last ran everywhere. It returns the revision.
func (g *Grid) Undo(ctx context.Context, number int64, how Pace) (Entry, error) {
	entries, err := g.History(ctx)
	if err != nil {
		return Entry{}, err
	}
	present, err := gridrevision.Of(g.Kind.Kind, g.Object.GetName(), g.spec())
	if err != nil {
		return Entry{}, err
	}
	i := slices.IndexFunc(entries, func(e Entry) bool { return e.Number == number })
	if number == 0 {
		i = earlier(entries, present, g.status().CurrentRevision)
	}
	switch {
	case i < 0 && number == 0:
		return Entry{}, errors.New("no rollout history found to go back to")
	case i < 0:
		return Entry{}, fmt.Errorf("unable to find revision %d; see kubectl grid rollout history %s", number, g.Ref())
	case entries[i].data.Same(present):
		return entries[i], ErrSkipped
	}
	var user string
	if how == AtOnce {
		if user, err = g.user(ctx); err != nil {
			return Entry{}, err
		}
	}
	restored, err := entries[i].data.Restore(g.spec())
	if err != nil {
		return Entry{}, err
	}
	return entries[i], g.change(ctx, func(o v1.Object) error {
		spec, _ := v1.Workload(o)
		*spec = *restored
		if how == AtOnce {
			// The change makes the next generation. If someone else is faster, it fails.
			annotate(o, v1.AnnotationAtOnce, gridrevision.AtOnce(entries[i].Name, o.GetGeneration()+1))
			sign(o, user)
		}
		return nil
	})
}

// earlier returns the index of the revision to go back to, with another content than present: the current one, which
// last ran everywhere, else the newest one whose rollout was complete, else the newest one; -1 if no other exists.
func earlier(entries []Entry, present gridrevision.Revision, current string) int {
	i, best := -1, -1
	for n, entry := range entries {
		rank := 0
		switch {
		case entry.data.Same(present):
			continue
		case entry.Name == current:
			rank = 2
		case entry.Completed:
			rank = 1
		}
		if rank >= best {
			i, best = n, rank
		}
	}
	return i
}

// ErrSkipped means that the grid has this revision already.
var ErrSkipped = errors.New("the spec has this revision already")

// Pace is how an undo reaches the sites.
type Pace int

const (
	// InWaves is in waves, like any change.
	InWaves Pace = iota
	// AtOnce is all sites at once.
	AtOnce
)
