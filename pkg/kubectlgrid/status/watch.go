package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

const (
	// gathered is how long changes are collected before they are shown, because one change of a grid changes many
	// objects.
	gathered = 300 * time.Millisecond
	// podsEvery is the time between two reads of pods that are not ready, and elseEvery that of children and nodes.
	// They are not followed, because there may be very many.
	podsEvery = 5 * time.Second
	elseEvery = 15 * time.Second
	// watchPause is the time between the end of a watch and the next one.
	watchPause = time.Second
)

// Follow reads the grids and calls show. It calls show again whenever one of the grids has changed, and from time to
// time for changes of the objects with which they are compared. When the user ends it, it returns nil.
func Follow(user context.Context, c cluster.Cluster, q Query, show func([]gridview.Grid) error) error {
	// Now is not set: a row with a relative time would differ with every change.
	reader := &Reader{API: c.API, Warn: c.Warn}
	grids, err := reader.Read(user, q)
	reader.Warn = func(string, ...any) {} // the warnings were printed once
	ctx, stop := context.WithCancelCause(user)
	defer stop(nil)
	changed := make(chan struct{}, 1)
	for begun := false; ; begun = true {
		switch {
		case user.Err() != nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		}
		if err := show(grids); err != nil {
			return err
		}
		for _, k := range q.Kinds {
			if !begun && !reader.unread[k.Kind] {
				go func() {
					if err := watch(ctx, c, q, k, changed); err != nil {
						stop(err)
					}
				}()
			}
		}
		wait(ctx, changed, grids)
		var found []foundGrid
		if found, err = reader.find(ctx, q); err == nil {
			grids = reader.states(ctx, q.Namespace, found)
		}
	}
}

// watch signals every change of a grid of a kind until ctx is done. It returns an error if the user may not watch.
func watch(ctx context.Context, c cluster.Cluster, q Query, k v1.GridKind, changed chan<- struct{}) error {
	for late := false; ; {
		options := &client.ListOptions{Namespace: q.Namespace, LabelSelector: q.Selector}
		events, err := c.Watcher.Watch(ctx, k.NewList(), options)
		switch {
		case err == nil:
			for range events.ResultChan() { // the first events are the existing grids
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		case apierrors.IsForbidden(err):
			return fmt.Errorf("following changes takes the right to list and watch: %w", err)
		case ctx.Err() == nil && !late:
			late = true
			c.Warn("changes may be late: %v", err)
		}
		select {
		case <-time.After(watchPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// wait returns when something has changed, when the next read is due, or when ctx is done.
func wait(ctx context.Context, changed <-chan struct{}, grids []gridview.Grid) {
	again := elseEvery
	if slices.ContainsFunc(grids, AskForPods) {
		again = podsEvery
	}
	select {
	case <-changed:
		select {
		case <-time.After(gathered):
		case <-ctx.Done():
		}
		select {
		case <-changed: // the next answer has the changes
		default:
		}
	case <-time.After(again):
	case <-ctx.Done():
	}
}

// AskForPods reports whether pods may show why a site of a grid is not ready.
func AskForPods(g gridview.Grid) bool {
	return slices.ContainsFunc(g.Sites, func(u gridview.Site) bool {
		return u.Phase == v1.SiteProgressing || u.Phase == v1.SiteStalled
	})
}
