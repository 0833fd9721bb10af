package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// watchPause is the time between the end of a watch and the next one.
const watchPause = time.Second

// ErrTimeout is the cause with which a context ends whose time for Follow is over.
var ErrTimeout = errors.New("timed out waiting for the rollout")

// errDeleted is that the grid was deleted while it was followed.
var errDeleted = errors.New("the grid was deleted")

// Patience is how long Follow waits.
type Patience int

const (
	// UntilPerson is until the rollout is complete, has failed, or waits for a person.
	UntilPerson Patience = iota
	// UntilDone is until the rollout is complete, or has gone back, whatever people do meanwhile.
	UntilDone
)

// Follow calls show with the state of the rollout, and again whenever it has changed, until the rollout is complete. It
// returns an error if the rollout does not go on by itself, and the cause of ctx if that ends before. An API server
// that is away for a time is asked again.
func (g *Grid) Follow(ctx context.Context, patience Patience, show func(State) error) error {
	shown := func(state State) (done bool, err error) {
		if err := show(state); err != nil {
			return false, err
		}
		if state.Waits && patience == UntilDone {
			return false, nil
		}
		return state.Done, state.Err(g)
	}
	return g.follow(ctx, shown)
}

// follow is Follow with a function that reports whether a state is the last one.
func (g *Grid) follow(ctx context.Context, show func(State) (bool, error)) error {
	for {
		if done, err := g.show(show); done || err != nil {
			return err
		}
		done, err := g.watch(ctx, show)
		switch {
		case ctx.Err() != nil && !done:
			return context.Cause(ctx)
		case done || err != nil:
			return err
		}
		for {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(watchPause):
			}
			uid := g.Object.GetUID()
			err := g.Refresh(ctx)
			if err == nil && g.Object.GetUID() != uid {
				return fmt.Errorf("%s: %w", g, errDeleted)
			}
			if err == nil {
				break
			}
			if final(err) {
				return cluster.Explain(err)
			}
		}
	}
}

// show shows the state of the rollout, and reports whether it is the last one.
func (g *Grid) show(show func(State) (bool, error)) (done bool, err error) {
	state, err := g.State()
	if err != nil {
		return false, fmt.Errorf("%s: %w", g, err)
	}
	return show(state)
}

// watch shows every change of the grid until the last one, or until the watch ends.
func (g *Grid) watch(ctx context.Context, show func(State) (bool, error)) (done bool, err error) {
	events, err := g.cluster.Watcher.Watch(ctx, g.Kind.NewList(),
		client.InNamespace(g.Object.GetNamespace()),
		client.MatchingFields{metav1.ObjectNameField: g.Object.GetName()},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: g.Object.GetResourceVersion()}})
	if err != nil {
		if final(err) {
			return false, err
		}
		return false, nil
	}
	defer events.Stop()
	for {
		var event watch.Event
		var open bool
		select {
		case <-ctx.Done():
			return false, nil
		case event, open = <-events.ResultChan():
		}
		object, ok := event.Object.(v1.Object)
		switch {
		case !open, event.Type == watch.Error, !ok: // it is read again
			return false, nil
		case object.GetUID() != g.Object.GetUID(), event.Type == watch.Deleted:
			return false, fmt.Errorf("%s: %w", g, errDeleted)
		}
		g.Object = object
		if done, err := g.show(show); done || err != nil {
			return done, err
		}
	}
}

// final reports whether asking again would not help.
func final(err error) bool {
	return cluster.IsNotServed(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsBadRequest(err)
}
