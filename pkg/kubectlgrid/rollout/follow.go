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

// ErrTimeout is the cause of a context that ends at the timeout of Follow.
var ErrTimeout = errors.New("timed out waiting for the rollout")

var errDeleted = errors.New("the grid was deleted")

// Patience is how long Follow waits.
type Patience int

const (
	// UntilPerson waits until the rollout is complete, has failed, or waits for a person.
	UntilPerson Patience = iota
	// UntilDone waits until the rollout is complete, or has been rolled back, whatever people do meanwhile.
	UntilDone
)

// Follow calls show with the state of the rollout, and again whenever it has changed, until the rollout is complete. It
// returns an error if the rollout does not continue by itself, and the cause of ctx if that ends first. It retries
// while the API server is away.
func (g *Grid) Follow(ctx context.Context, patience Patience, show func(State) error) error {
	last := func() (done bool, err error) { // shows a state, and reports whether it is the last one
		state, err := g.State()
		if err != nil {
			return false, fmt.Errorf("%s: %w", g, err)
		}
		if err := show(state); err != nil || state.Waits && patience == UntilDone {
			return false, err
		}
		return state.Done, state.Err(g)
	}
	for {
		if done, err := last(); done || err != nil {
			return err
		}
		if done, err := g.watch(ctx, last); done || err != nil && ctx.Err() == nil {
			return err
		}
		if err := g.readAgain(ctx); err != nil {
			return err
		}
	}
}

// readAgain reads the grid after a pause, and again while the API server is away. It returns the cause of ctx if that
// ends.
func (g *Grid) readAgain(ctx context.Context) error {
	uid := g.Object.GetUID()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchPause):
		}
		switch err := g.Refresh(ctx); {
		case err == nil && g.Object.GetUID() != uid:
			return fmt.Errorf("%s: %w", g, errDeleted)
		case err == nil || final(err):
			return cluster.Explain(err)
		}
	}
}

// watch calls last with every change of the grid until that reports the last one, or until the watch ends.
func (g *Grid) watch(ctx context.Context, last func() (bool, error)) (done bool, err error) {
	events, err := g.cluster.Watcher.Watch(ctx, g.Kind.NewList(),
		client.InNamespace(g.Object.GetNamespace()),
		client.MatchingFields{metav1.ObjectNameField: g.Object.GetName()},
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: g.Object.GetResourceVersion()}})
	switch {
	case final(err):
		return false, err
	case err != nil:
		return false, nil
	}
	defer events.Stop()
	defer context.AfterFunc(ctx, events.Stop)()
	for event := range events.ResultChan() {
		object, ok := event.Object.(v1.Object)
		switch {
		case event.Type == watch.Error, !ok: // it is read again
			return false, nil
		case object.GetUID() != g.Object.GetUID(), event.Type == watch.Deleted:
			return false, fmt.Errorf("%s: %w", g, errDeleted)
		}
		g.Object = object
		if done, err := last(); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// final reports whether a retry would not help.
func final(err error) bool {
	return cluster.IsNotServed(err) || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) ||
		apierrors.IsUnauthorized(err) || apierrors.IsMethodNotSupported(err) || apierrors.IsBadRequest(err)
}
