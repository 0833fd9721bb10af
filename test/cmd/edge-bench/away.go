package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// awayFor is how long the hub is away.
	awayFor = time.Minute
	// longestPause is the longest pause of a follower between two attempts.
	longestPause = 10 * time.Second
	// completeWithin is how long a fleet may take to follow.
	completeWithin = 15 * time.Minute
	// viewerMoves is how often a viewer is moved to another site.
	viewerMoves = 6
)

// parseMark reads the mark in a frame of a share.
func parseMark(frame []byte) (*hubv1alpha1.Bookmark, error) {
	var event metav1.WatchEvent
	if err := event.Unmarshal(frame); err != nil {
		return nil, err
	}
	_, message, err := wire.Unwrap(event.Object.Raw)
	if err != nil {
		return nil, err
	}
	var meta metav1.PartialObjectMetadata
	if err := meta.Unmarshal(message); err != nil {
		return nil, err
	}
	return hubv1alpha1.ParseBookmark(meta.ResourceVersion, meta.Annotations)
}

// keepShare follows a share until ctx is done. A stream that ends while the hub is away is followed by another one.
func (b *hubBench) keepShare(ctx context.Context, f *follower, first func()) error {
	for {
		complete := false
		err := f.followShare(ctx, func() {
			first()
			complete = true
			b.complete.Add(1)
		})
		if complete {
			b.complete.Add(-1)
		}
		if ctx.Err() != nil || !b.away.Load() {
			return err
		}
		if err := pause(ctx, rand.N(longestPause)); err != nil { //nolint:gosec // jitter
			return nil //nolint:nilerr // the measurement is over
		}
	}
}

// awaitComplete waits until so many shares are complete at the same time.
func (b *hubBench) awaitComplete(ctx context.Context, shares int) error {
	ctx, cancel := context.WithTimeout(ctx, completeWithin)
	defer cancel()
	return await.NoError(ctx, 50*time.Millisecond, func(context.Context) error {
		if complete := b.complete.Load(); complete < int64(shares) {
			return fmt.Errorf("%d shares are complete, not %d", complete, shares)
		}
		return nil
	})
}

// measureReturn has the hub be away, and measures until all streams follow again with what they know.
func (b *hubBench) measureReturn(ctx context.Context) error {
	hub := b.cluster.Hubs[0]
	b.away.Store(true)
	hub.Kill()
	if err := pause(ctx, awayFor); err != nil {
		return err
	}
	if still := b.complete.Load(); still > 0 {
		return fmt.Errorf("%d shares are still followed %s after the hub was killed", still, awayFor)
	}
	if err := hub.Start(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := b.awaitComplete(ctx, len(b.followers)); err != nil {
		return err
	}
	b.add("after a minute away: all follow within", "", time.Since(begin).Round(time.Second/10).String())
	return b.addHubMemory(ctx, "after that")
}

// measureRelabels moves the nodes of the real wrappers between sites, and times what their wrappers show.
func (b *hubBench) measureRelabels(ctx context.Context) error {
	var took [2]samples
	for way, mode := range []string{hubOff, hubOn} {
		node, err := b.cluster.Node("hub-" + mode)
		if err != nil {
			return err
		}
		watching, stop := context.WithCancel(ctx)
		defer stop()
		w, err := watchSlices(watching, node.WrapperConfig(cluster.RoleKubeProxy))
		if err != nil {
			return err
		}
		for i := range viewerMoves {
			begin := time.Now()
			if err := b.cluster.RelabelNode(ctx, node.Name(), siteLabel, b.fleet.site(i+1)); err != nil {
				return err
			}
			at, err := w.settle(ctx)
			if err != nil {
				return err
			}
			if len(at) > 0 {
				took[way] = append(took[way], at[len(at)-1].Sub(begin))
			}
		}
	}
	b.add("relabel of a node: its last slice, p50", took[0].quantile(.5), took[1].quantile(.5))
	return nil
}
