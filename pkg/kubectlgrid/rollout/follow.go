package rollout

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// followPause is the time between two reads of a grid.
const followPause = time.Second

var errDeleted = errors.New("the grid was deleted")

// Follower follows a rollout.
type Follower struct {
	// Show is called with the state, and again when it has changed.
	Show func(State) error
	// Once ends at the first state. Wait also waits while a person is needed.
	Once, Wait bool
}

// Follow follows the rollout of a grid until it is complete. It returns an error if the rollout does not continue by
// itself, and the cause of ctx if that ends first. It retries while the API server is away.
func (f Follower) Follow(ctx context.Context, g *Grid) error {
	uid, shown := g.Object.GetUID(), ""
	for {
		if version := g.Object.GetResourceVersion(); version != shown {
			shown = version
			state, err := g.State()
			if err == nil {
				err = f.Show(state)
			}
			if err != nil {
				return err
			}
			err = state.Err()
			if f.Once || (!state.Waits || !f.Wait) && (state.Done || err != nil) {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(followPause):
		}
		switch err := g.Refresh(ctx); {
		case err == nil && g.Object.GetUID() != uid, apierrors.IsNotFound(err) && !cluster.IsNotServed(err):
			return errDeleted
		case cluster.IsFinal(err):
			return cluster.Explain(err)
		}
	}
}
