package rollout

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

// followPause is the time between two reads of a grid.
const followPause = time.Second

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

// Follow calls show with the state of the rollout, and again when it has changed, until the rollout is complete. It
// returns an error if the rollout does not continue by itself, and the cause of ctx if that ends first. It retries
// while the API server is away.
func (g *Grid) Follow(ctx context.Context, patience Patience, show func(State) error) error {
	uid, shown := g.Object.GetUID(), ""
	for {
		if version := g.Object.GetResourceVersion(); version != shown {
			shown = version
			state, err := g.State()
			if err != nil {
				return fmt.Errorf("%s: %w", g, err)
			}
			if err := show(state); err != nil {
				return err
			}
			waits := state.Waits && patience == UntilDone
			err = state.Err(g)
			if !waits && (state.Done || err != nil) {
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
			return fmt.Errorf("%s: %w", g, errDeleted)
		case cluster.IsFinal(err):
			return cluster.Explain(err)
		}
	}
}
