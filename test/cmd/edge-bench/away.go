package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
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
func parseMark(frame []byte) (*hubv1alpha1.Mark, error) {
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
	return hubv1alpha1.ParseMark(meta.ResourceVersion, meta.Annotations)
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
	if err := b.addMemory(ctx, "after the changes"); err != nil {
		return err
	}
	b.away.Store(true)
	hub.Kill()
	if err := pause(ctx, awayFor); err != nil {
		return err
	}
	if still := b.complete.Load(); still > 0 {
		return fmt.Errorf("%d shares are still followed %s after the hub was killed", still, awayFor)
	}
	before, nodes := b.sum(func(f *follower) int64 { return f.listed.Load() }), len(b.followers)
	if err := hub.Start(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := b.awaitComplete(ctx, nodes/2); err != nil {
		return err
	}
	half := time.Since(begin)
	if err := b.awaitComplete(ctx, nodes); err != nil {
		return err
	}
	used, err := cluster.ProcessorTime(hub.PID())
	if err != nil {
		return err
	}
	b.add("after a minute away: half, and all follow", "", fmt.Sprintf("%s, %s", half.Round(time.Second/10),
		time.Since(begin).Round(time.Second/10)))
	received := b.sum(func(f *follower) int64 { return f.listed.Load() }) - before
	request := len((&hubv1alpha1.Digests{}).String())
	b.add("bytes then, a node: sent, and received", "", fmt.Sprintf("%s, %s", kilobytes(float64(request)),
		kilobytes(float64(received)/float64(nodes))))
	b.add("CPU of the hub for that, with its own start", "", used.String())
	return b.addMemory(ctx, "after that")
}

// measureRelabels moves the nodes of the real wrappers between two sites, and times what their wrappers show.
func (b *hubBench) measureRelabels(ctx context.Context) error {
	var took [2][2]samples
	for way, mode := range []string{hubOff, hubOn} {
		node, err := b.cluster.Node("hub-" + mode)
		if err != nil {
			return err
		}
		_, viaWrapper, err := sides(b.cluster, node, compressed)
		if err != nil {
			return err
		}
		w, err := watchSlices(ctx, nothing, viaWrapper)
		if err != nil {
			return err
		}
		for i := range viewerMoves {
			w.seen[0].take()
			begin := time.Now()
			if err = b.cluster.RelabelNode(ctx, node.Name(), siteLabel, b.fleet.site(i+1)); err != nil {
				break
			}
			if err = w.settle(ctx); err != nil {
				break
			}
			if at := w.seen[0].take(); len(at) > 0 {
				took[way][0] = append(took[way][0], at[0].Sub(begin))
				took[way][1] = append(took[way][1], at[len(at)-1].Sub(begin))
			}
		}
		if err := errors.Join(err, w.end()); err != nil {
			return err
		}
	}
	for i, what := range []string{"first", "last"} {
		b.add("relabel of a node: its "+what+" slice, p50 of "+strconv.Itoa(len(took[1][i])),
			milliseconds(took[0][i].quantile(.5)), milliseconds(took[1][i].quantile(.5)))
	}
	return nil
}
