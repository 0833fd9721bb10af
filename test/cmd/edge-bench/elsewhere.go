package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/cluster"
)

// elsewhere is a change of the n-th endpoint list that no node of the first site may see: another address of an
// endpoint in another site. ok is false if it has none.
func (f fleet) elsewhere(n int, stamp int) (patch []byte, ok bool) {
	for i, e := range f.slice(n).Endpoints {
		node, err := strconv.Atoi(strings.TrimPrefix(*e.NodeName, "node-"))
		if err == nil && node%f.sites != 0 {
			return fmt.Appendf(nil, `[{"op":"replace","path":"/endpoints/%d/addresses/0","value":"10.255.%d.%d"}]`, i,
				stamp>>8&255, 1+stamp&127), true
		}
	}
	return nil, false
}

// cost is what a kube-proxy has spent.
type cost struct {
	cpu   time.Duration
	syncs float64
}

func spent(ctx context.Context, n *cluster.Node) (cost, error) {
	cpu, err := cluster.ProcessorTime(n.KubeProxy.PID())
	if err != nil {
		return cost{}, err
	}
	syncs, err := scrape(ctx, n, "http://127.0.0.1:10249/metrics",
		`kubeproxy_sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`)
	return cost{cpu, syncs}, err
}

// measureElsewhere changes endpoints of other sites for a while, and compares what a watcher and a kube-proxy have
// to do on each side: on this node, and on the other one, which asks the API server.
func (b *nodeBench) measureElsewhere(ctx context.Context, other *cluster.Node) error {
	sideDirect, sideWrapper, err := sides(b.cluster, b.node, compressed)
	if err != nil {
		return err
	}
	w, err := watchSlices(ctx, nothing, sideDirect, sideWrapper)
	if err != nil {
		return err
	}
	defer w.stop()
	for _, a := range w.seen {
		a.take()
	}
	nodes := []*cluster.Node{other, b.node}
	var before, after [2]cost
	for i, n := range nodes {
		if before[i], err = spent(ctx, n); err != nil {
			return err
		}
	}
	changes, err := changeElsewhere(ctx, b.cluster, b.options)
	if err != nil {
		return err
	}
	if err := w.settle(ctx); err != nil {
		return err
	}
	for i, n := range nodes {
		if after[i], err = spent(ctx, n); err != nil {
			return err
		}
	}
	if err := w.end(); err != nil {
		return err
	}
	of := fmt.Sprintf("%d changes elsewhere in %s", changes, b.elsewhere)
	b.add(of+": events at a watcher", strconv.Itoa(len(w.seen[0].take())), strconv.Itoa(len(w.seen[1].take())), "")
	b.add(of+": kube-proxy's syncs", fmt.Sprint(after[0].syncs-before[0].syncs),
		fmt.Sprint(after[1].syncs-before[1].syncs), "")
	cpu := [2]time.Duration{after[0].cpu - before[0].cpu, after[1].cpu - before[1].cpu}
	b.add(of+": kube-proxy's processor time", milliseconds(cpu[0]), milliseconds(cpu[1]), ratio(cpu[0], cpu[1]))
	return nil
}

// changeElsewhere makes changes at the rate that is asked for, and returns how many.
func changeElsewhere(ctx context.Context, c *cluster.Cluster, o options) (int, error) {
	changing, stop := context.WithTimeout(ctx, o.elsewhere)
	defer stop()
	patches, patching := errgroup.WithContext(ctx)
	changes := 0
	for i := range paced(changing, o.rate, math.MaxInt) {
		patch, ok := o.fleet.elsewhere(i%o.fleet.services, i)
		if !ok {
			continue
		}
		changes++
		patches.Go(func() error {
			_, err := c.Client().DiscoveryV1().EndpointSlices(namespace).Patch(patching, sliceName(i%o.fleet.services),
				types.JSONPatchType, patch, metav1.PatchOptions{})
			return err
		})
	}
	return changes, errors.Join(ctx.Err(), patches.Wait())
}
