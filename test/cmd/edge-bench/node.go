package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
)

const (
	viewer = "viewer"
	direct = "direct"
	// elsewhereFor is how long endpoints of other sites change.
	elsewhereFor = time.Minute
	// lists is how often all slices are listed on each side.
	lists = 20
)

// nodeBench measures one node's wrapper, beside direct access.
type nodeBench struct {
	options
	table
	cluster *cluster.Cluster
	// direct is a node whose kube-proxy asks the API server, node the one with the wrapper.
	direct, node *cluster.Node
}

// measureWrapper starts the cluster, measures, and prints the table.
func measureWrapper(ctx context.Context, o options) (err error) {
	if o.fleet.nodes < 3 || o.fleet.sites < 2 || o.fleet.services < 1 || o.rate < 1 {
		return errors.New("at least 3 nodes, 2 sites, 1 service and 1 change per second are needed")
	}
	labels := map[string]string{siteLabel: o.fleet.site(0)}
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, Wrapper: o.wrapper, NoKwok: true, NoScheduler: true, Progress: os.Stderr,
		Nodes: []cluster.NodeSpec{
			{Name: viewer, Labels: labels},
			{Name: direct, Labels: labels, Direct: true},
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	b := &nodeBench{options: o, cluster: c}
	if b.node, err = c.Node(viewer); err != nil {
		return err
	}
	if b.direct, err = c.Node(direct); err != nil {
		return err
	}
	// Nobody keeps the fleet's nodes alive; without this it would mark them all dead in the midst of it.
	c.ControllerManager.Kill()
	steps := []func(context.Context) error{b.start, b.firstSyncs, b.elsewhere, b.listSlices}
	if o.part == "large" {
		// A kube-proxy that asks the API server directly would write the rules of a million endpoints for minutes.
		b.killProxies()
		steps = []func(context.Context) error{b.start, b.listSlices}
	}
	fmt.Fprintf(os.Stderr, "loading %s\n", o.fleet)
	if err := o.fleet.store(ctx, c); err != nil {
		return err
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	if err := b.addMemory("resident memory after the load", b.node.Wrapper.PID(), ""); err != nil {
		return err
	}
	return b.print(o.fleet.String()+"; one wrapper; both sides in this run", "direct", "wrapper")
}

func (b *nodeBench) killProxies() {
	for _, n := range b.cluster.Nodes() {
		n.KubeProxy.Kill()
	}
}

// start restarts the wrapper, so that what it holds is what a start with this fleet leaves.
func (b *nodeBench) start(ctx context.Context) error {
	took, err := restart(ctx, b.node.Wrapper)
	if err != nil {
		return err
	}
	b.add("wrapper: start to ready", "", milliseconds(took))
	return b.addMemory("resident memory when it is ready", b.node.Wrapper.PID(), "")
}

// firstSyncs is how long the first write of its rules takes a kube-proxy, by its own metrics, which come a moment after
// the rules.
func (b *nodeBench) firstSyncs(ctx context.Context) error {
	var took [2]string
	for i, n := range []*cluster.Node{b.direct, b.node} {
		if _, err := restart(ctx, n.KubeProxy); err != nil {
			return err
		}
		within, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		err := await.NoError(within, 20*time.Millisecond, func(ctx context.Context) error {
			reply, err := n.Get(ctx, "http://127.0.0.1:10249/metrics")
			if err != nil {
				return err
			}
			seconds, _ := cluster.Metric(reply.Body,
				`kubeproxy_sync_full_proxy_rules_duration_seconds_sum{ip_family="IPv4"}`)
			if seconds == 0 {
				return errors.New("kube-proxy's metrics tell no time of a full sync")
			}
			took[i] = milliseconds(time.Duration(seconds * float64(time.Second)))
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.add("kube-proxy: first nftables sync", took[:]...)
	return b.addMemory("resident memory after the sync", b.node.Wrapper.PID(), "")
}

// sides are the two ways to the data.
func (b *nodeBench) sides() [2]*rest.Config {
	return [2]*rest.Config{b.cluster.RESTConfig(), b.node.WrapperConfig(cluster.RoleKubeProxy)}
}

// elsewhere changes endpoints of other sites for a while, and compares what a watcher and a kube-proxy have to do on
// each side.
func (b *nodeBench) elsewhere(ctx context.Context) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	proxies := []*cluster.Component{b.direct.KubeProxy, b.node.KubeProxy}
	var seen [2]*arrivals
	var before [2]time.Duration
	var events, used [2]string
	for i, config := range b.sides() {
		var err error
		if seen[i], err = watchSlices(watching, config); err != nil {
			return err
		}
		if before[i], err = cluster.ProcessorTime(proxies[i].PID()); err != nil {
			return err
		}
	}
	changes, err := b.changeElsewhere(ctx)
	if err != nil {
		return err
	}
	for i := range seen {
		at, err := seen[i].settle(ctx)
		if err != nil {
			return err
		}
		after, err := cluster.ProcessorTime(proxies[i].PID())
		if err != nil {
			return err
		}
		events[i], used[i] = strconv.Itoa(len(at)), milliseconds(after-before[i])
	}
	of := fmt.Sprintf("%d changes elsewhere in %s", changes, elsewhereFor)
	b.add(of+": events at a watcher", events[:]...)
	b.add(of+": kube-proxy's processor time", used[:]...)
	b.killProxies() // from here on only the wrapper and the bench's own clients matter
	return nil
}

// changeElsewhere makes changes at the rate that is asked for, which no node of the first site may see: another address
// of an endpoint in another site. It returns how many.
func (b *nodeBench) changeElsewhere(ctx context.Context) (changes int, err error) {
	changing, stop := context.WithTimeout(ctx, elsewhereFor)
	defer stop()
	patches, patching := errgroup.WithContext(ctx)
	for i := range paced(changing, b.rate, math.MaxInt) {
		n := i % b.fleet.services
		for at, endpoint := range b.fleet.slice(n).Endpoints {
			on, err := strconv.Atoi(strings.TrimPrefix(*endpoint.NodeName, "node-"))
			if err != nil || on%b.fleet.sites == 0 {
				continue
			}
			patch := fmt.Appendf(nil, `[{"op":"replace","path":"/endpoints/%d/addresses/0","value":"10.255.%d.%d"}]`, at,
				i>>8&255, 1+i&127)
			changes++
			patches.Go(func() error {
				_, err := b.cluster.Client().DiscoveryV1().EndpointSlices(namespace).Patch(patching, sliceName(n),
					types.JSONPatchType, patch, metav1.PatchOptions{})
				return err
			})
			break
		}
	}
	return changes, errors.Join(ctx.Err(), patches.Wait())
}

// listSlices times lists of all slices, in protobuf.
func (b *nodeBench) listSlices(ctx context.Context) error {
	var took, size [2]string
	for i, config := range b.sides() {
		config.DisableCompression = true
		config.AcceptContentTypes = protobufType
		request, err := slicesClient(config)
		if err != nil {
			return err
		}
		var all samples
		for range lists {
			begin := time.Now()
			body, err := request().Param("resourceVersion", "0").Stream(ctx)
			if err != nil {
				return fmt.Errorf("listing slices: %w", err)
			}
			n, err := io.Copy(io.Discard, body)
			if err := errors.Join(err, body.Close()); err != nil {
				return err
			}
			all, size[i] = append(all, time.Since(begin)), megabytes(float64(n))
		}
		took[i] = all.quantile(.5)
	}
	b.add("list of all slices, protobuf, p50", took[:]...)
	b.add("the same: size", size[:]...)
	return nil
}
