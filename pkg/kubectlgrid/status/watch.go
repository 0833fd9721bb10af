package status

import (
	"context"
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
)

const (
	// gridsEvery is the time between two reads of the grids. A change of a grid changes many objects meanwhile.
	gridsEvery = time.Second
	// podsEvery is the time between two reads of pods that are not ready, and elseEvery that of children and nodes,
	// unless a grid changes. There may be very many of them.
	podsEvery = 5 * time.Second
	elseEvery = 15 * time.Second
)

// Follow reads the grids and calls show. It calls show again whenever one of the grids has changed, and from time to
// time for changes of the objects with which they are compared. When the user ends it, it returns nil. While the API
// server is away, it tries again.
func Follow(ctx context.Context, c cluster.Cluster, q Query, show func([]gridview.Grid) error) error {
	// Now is not set: a row with a relative time would differ with every change.
	reader := &Reader{API: c.API, Warn: c.Warn}
	grids, err := reader.Read(ctx, q)
	reader.Warn = func(string, ...any) {} // the warnings were printed once
	late := false
	for before := []foundGrid(nil); err == nil; {
		if err = show(grids); err != nil {
			break
		}
		again, read, found := elseEvery, time.Now(), before
		if slices.ContainsFunc(grids, AskForPods) {
			again = podsEvery
		}
		err = wait.PollUntilContextCancel(ctx, gridsEvery, false, func(ctx context.Context) (bool, error) {
			var err error
			found, err = reader.find(ctx, q)
			switch {
			case cluster.IsFinal(err):
				return false, err
			case err != nil && !late:
				late = true
				c.Warn("changes may be late: %v", err)
			}
			return err == nil && (!reflect.DeepEqual(found, before) || time.Since(read) > again), nil
		})
		if err == nil {
			before, grids = found, reader.states(ctx, q.Namespace, found)
		}
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the error of a request that was interrupted
	}
	return err
}

// AskForPods reports whether pods may show why a site of a grid is not ready.
func AskForPods(g gridview.Grid) bool {
	return slices.ContainsFunc(g.Sites, func(u gridview.Site) bool {
		return u.Phase == v1.SiteProgressing || u.Phase == v1.SiteStalled
	})
}
