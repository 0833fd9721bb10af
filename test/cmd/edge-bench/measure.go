package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	slicesPath = "/apis/discovery.k8s.io/v1/endpointslices"
	// likeKubeProxy is kube-proxy's selector.
	likeKubeProxy = "labelSelector=%21service.kubernetes.io%2Fheadless"
	// quiet is how long nothing must arrive for a burst of events to count as over.
	quiet = 500 * time.Millisecond
)

// nodeBench measures one node's wrapper, beside direct access.
type nodeBench struct {
	options
	table
	cluster *cluster.Cluster
	node    *cluster.Node
}

// measure takes all figures, and prints them.
func measure(ctx context.Context, c *cluster.Cluster, o options) error {
	node, err := c.Node(viewer)
	if err != nil {
		return err
	}
	other, err := c.Node(direct)
	if err != nil {
		return err
	}
	b := &nodeBench{options: o, cluster: c, node: node}
	// Restarted, so that what it holds is what a start with this fleet leaves.
	started, err := restart(ctx, node.Wrapper)
	if err != nil {
		return err
	}
	b.add("wrapper: start to ready", "", milliseconds(started), "")
	var sync [2]time.Duration
	for i, n := range []*cluster.Node{other, node} {
		if _, err := restart(ctx, n.KubeProxy); err != nil {
			return err
		}
		if sync[i], err = firstSync(ctx, n); err != nil {
			return err
		}
	}
	b.add("kube-proxy: first nftables sync", milliseconds(sync[0]), milliseconds(sync[1]), ratio(sync[0], sync[1]))
	afterSync, err := memory(node.Wrapper.PID())
	if err != nil {
		return err
	}
	b.add("resident memory after sync", "", afterSync, "")

	if err := b.measureElsewhere(ctx, other); err != nil {
		return err
	}
	// From here on only the wrapper and the bench's own clients matter.
	for _, n := range []*cluster.Node{other, node} {
		n.KubeProxy.Kill()
	}
	for _, as := range []encoding{plain, compressed} {
		if err := b.measureLists(ctx, as); err != nil {
			return err
		}
	}
	if err := b.measureEvents(ctx); err != nil {
		return err
	}
	if err := b.measureRelabels(ctx); err != nil {
		return err
	}
	afterLoad, err := memory(node.Wrapper.PID())
	if err != nil {
		return err
	}
	b.add("resident memory after the load", "", afterLoad, "")
	if err := measureOffline(ctx, node, &b.table); err != nil {
		return err
	}
	fmt.Printf("\n%d nodes in %d sites, %d Services of %d endpoints; one wrapper; both sides in this run\n\n",
		o.fleet.nodes, o.fleet.sites, o.fleet.services, o.fleet.endpoints)
	b.print(os.Stdout)
	return nil
}

// measureLarge takes the figures of a cluster that is larger than a node should follow without a hub.
func measureLarge(ctx context.Context, c *cluster.Cluster, o options) error {
	node, err := c.Node(viewer)
	if err != nil {
		return err
	}
	b := &nodeBench{options: o, cluster: c, node: node}
	started, err := restart(ctx, node.Wrapper)
	if err != nil {
		return err
	}
	b.add("wrapper: start to ready", "", milliseconds(started), "")
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"after sync", func() error { return nil }},
		{"after lists", func() error { return b.measureLists(ctx, plain) }},
		{"after events", func() error { return b.measureEvents(ctx) }},
		{"after relabels", func() error { return b.measureRelabels(ctx) }},
	} {
		if err := step.do(); err != nil {
			return err
		}
		used, err := memory(node.Wrapper.PID())
		if err != nil {
			return err
		}
		b.add("resident memory "+step.name, "", used, "")
	}
	fmt.Printf("\n%d nodes in %d sites, %d Services of %d endpoints; one wrapper, no kube-proxy\n\n", o.fleet.nodes,
		o.fleet.sites, o.fleet.services, o.fleet.endpoints)
	b.print(os.Stdout)
	return nil
}

// restart ends a component, and times its start until it is ready.
func restart(ctx context.Context, component *cluster.Component) (time.Duration, error) {
	if err := component.Stop(); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := component.Start(ctx)
	return time.Since(begin), err
}

// encoding is how lists are sent.
type encoding int

const (
	plain encoding = iota
	compressed
)

// sides are the two ways to the data.
func sides(c *cluster.Cluster, node *cluster.Node, as encoding) (viaDirect, viaWrapper side, err error) {
	viaDirect, err = newSide("direct", c.RESTConfig(), as)
	if err != nil {
		return side{}, side{}, err
	}
	viaWrapper, err = newSide("wrapper", node.WrapperConfig(cluster.RoleKubeProxy), as)
	return viaDirect, viaWrapper, err
}

func (b *nodeBench) measureLists(ctx context.Context, as encoding) error {
	viaDirect, viaWrapper, err := sides(b.cluster, b.node, as)
	if err != nil {
		return err
	}
	for _, accept := range []string{"application/vnd.kubernetes.protobuf", "application/json"} {
		name := "list slices, " + map[string]string{"application/json": "JSON",
			"application/vnd.kubernetes.protobuf": "protobuf"}[accept]
		if as == compressed {
			name += ", gzip"
		}
		var took [2]samples
		var size [2]int64
		for i, s := range []side{viaDirect, viaWrapper} {
			for range b.lists {
				d, n, err := s.list(ctx, accept)
				if err != nil {
					return err
				}
				took[i], size[i] = append(took[i], d), n
			}
		}
		b.add(name+", p50", milliseconds(took[0].quantile(.5)), milliseconds(took[1].quantile(.5)),
			ratio(took[0].quantile(.5), took[1].quantile(.5)))
		b.add(name+", max", milliseconds(took[0].quantile(1)), milliseconds(took[1].quantile(1)),
			ratio(took[0].quantile(1), took[1].quantile(1)))
		if as == plain {
			b.add(name+", size", megabytes(size[0]), megabytes(size[1]),
				fmt.Sprintf("%.1f", float64(size[0])/float64(size[1])))
		}
	}
	return nil
}

func (s side) get(ctx context.Context, query, accept string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+slicesPath+"?"+likeKubeProxy+"&"+query, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	response, err := s.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.name, err)
	}
	if response.StatusCode != http.StatusOK {
		body, err := io.ReadAll(response.Body)
		return nil, errors.Join(fmt.Errorf("%s: %s: %s", s.name, response.Status, body), err, response.Body.Close())
	}
	return response.Body, nil
}

func (s side) list(ctx context.Context, accept string) (took time.Duration, size int64, err error) {
	begin := time.Now()
	body, err := s.get(ctx, "resourceVersion=0", accept)
	if err != nil {
		return 0, 0, err
	}
	size, err = io.Copy(io.Discard, body)
	return time.Since(begin), size, errors.Join(err, body.Close())
}

// arrivals are the times at which lines of a watch came, by what they are recognised by.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	last time.Time
	// sequence are all times since the last reset.
	sequence []time.Time
}

func (a *arrivals) noteArrival(key string, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if key != "" {
		if _, ok := a.at[key]; !ok {
			a.at[key] = now
		}
	}
	a.last = now
	a.sequence = append(a.sequence, now)
}

func (a *arrivals) take() []time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	taken := a.sequence
	a.sequence = nil
	return taken
}

// settle waits until nothing has come for a while.
func (a *arrivals) settle(ctx context.Context) error {
	begin := time.Now()
	tick := time.NewTicker(quiet / 10)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			a.mu.Lock()
			last := a.last
			a.mu.Unlock()
			if now.Sub(last) > quiet && now.Sub(begin) > quiet {
				return nil
			}
		}
	}
}

// watch notes every line of a JSON watch. (Decoding whole objects would make the measuring client the
// bottleneck.)
func watch(ctx context.Context, body io.ReadCloser, key func(line []byte) string, a *arrivals) error {
	reader := bufio.NewReaderSize(body, 1<<20)
	for {
		line, err := reader.ReadBytes('\n')
		if err != nil {
			if ctx.Err() != nil {
				return body.Close()
			}
			return errors.Join(fmt.Errorf("a watch ended: %w", err), body.Close())
		}
		a.noteArrival(key(line), time.Now())
	}
}

// watches are JSON watches of slices, each with what came of it.
type watches struct {
	stop  context.CancelFunc
	group *errgroup.Group
	seen  []*arrivals
}

// watchSlices watches the slices on these sides, and returns when the first events have come. key is what lines are
// recognised by.
func watchSlices(ctx context.Context, key func(line []byte) string, on ...side) (*watches, error) {
	ctx, stop := context.WithCancel(ctx)
	group, watching := errgroup.WithContext(ctx)
	w := &watches{stop: stop, group: group}
	for _, s := range on {
		seen := &arrivals{at: map[string]time.Time{}}
		w.seen = append(w.seen, seen)
		body, err := s.get(watching, "watch=true&timeoutSeconds=3000", "application/json")
		if err != nil {
			return nil, errors.Join(err, w.end())
		}
		group.Go(func() error { return watch(watching, body, key, seen) })
	}
	if err := w.settle(ctx); err != nil {
		return nil, errors.Join(err, w.end())
	}
	return w, nil
}

// settle waits until nothing has come to any watch for a while.
func (w *watches) settle(ctx context.Context) error {
	for _, seen := range w.seen {
		if err := seen.settle(ctx); err != nil {
			return err
		}
	}
	return nil
}

// end ends the watches. It is an error if one has ended before.
func (w *watches) end() error {
	w.stop()
	return w.group.Wait()
}

// nothing recognises no line.
func nothing([]byte) string { return "" }

// field is the string that follows a key in a line of JSON.
func field(line []byte, key string) string {
	_, rest, found := bytes.Cut(line, []byte(`"`+key+`":"`))
	if !found {
		return ""
	}
	value, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(value)
}

func stampOf(line []byte) string { return field(line, "bench/stamp") }

// measureEvents changes slices at a fixed rate, and compares when a watcher on each side receives them. A second
// watcher on the direct side is the control: how much later it is than the first is what the machine adds.
func (b *nodeBench) measureEvents(ctx context.Context) error {
	viaDirect, viaWrapper, err := sides(b.cluster, b.node, compressed)
	if err != nil {
		return err
	}
	control, _, err := sides(b.cluster, b.node, compressed)
	if err != nil {
		return err
	}
	w, err := watchSlices(ctx, stampOf, viaDirect, control, viaWrapper)
	if err != nil {
		return err
	}
	defer w.stop()
	begin := time.Now()
	patches, patching := errgroup.WithContext(ctx)
	for i := range paced(ctx, b.rate, b.events) {
		patches.Go(func() error {
			slices := b.cluster.Client().DiscoveryV1().EndpointSlices(namespace)
			_, err := slices.Patch(patching, sliceName(i%b.fleet.services),
				types.StrategicMergePatchType, stampPatch(fmt.Sprint("event-", i), 8000+i%1000), metav1.PatchOptions{})
			return err
		})
	}
	if err := patches.Wait(); err != nil {
		return fmt.Errorf("changing a slice: %w", err)
	}
	reached := float64(b.events) / time.Since(begin).Seconds()
	if err := errors.Join(w.settle(ctx), w.end()); err != nil {
		return err
	}
	seen := w.seen
	late := func(a *arrivals) (added samples, lost int) {
		for stamp, at := range seen[0].at {
			if later, ok := a.at[stamp]; ok {
				added = append(added, later.Sub(at))
			} else {
				lost++
			}
		}
		return added, lost
	}
	noise, _ := late(seen[1])
	added, lost := late(seen[2])
	name := fmt.Sprintf("event latency added at %.0f/s", reached)
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", .5}, {"p90", .9}, {"p99", .99}, {"max", 1}} {
		b.add(name+", "+q.name, milliseconds(noise.quantile(q.q)), milliseconds(added.quantile(q.q)), "")
	}
	inside, err := metric(ctx, b.node, `application_grid_wrapper_event_delay_seconds_sum{resource="endpointslices"}`)
	if err != nil {
		return err
	}
	count, err := metric(ctx, b.node, `application_grid_wrapper_event_delay_seconds_count{resource="endpointslices"}`)
	if err != nil {
		return err
	}
	b.add("of which inside the wrapper's cache and writer, mean", "",
		milliseconds(time.Duration(inside/count*float64(time.Second))), "")
	b.add("events lost", fmt.Sprintf("%d of %d", b.events-len(seen[0].at), b.events),
		fmt.Sprintf("%d of %d", lost, len(seen[0].at)), "")
	return nil
}

// measureRelabels moves a neighbour between this node's site and another, and times the events that follow.
func (b *nodeBench) measureRelabels(ctx context.Context) error {
	viaDirect, viaWrapper, err := sides(b.cluster, b.node, compressed)
	if err != nil {
		return err
	}
	w, err := watchSlices(ctx, nothing, viaWrapper)
	if err != nil {
		return err
	}
	defer w.stop()
	slices, nodes := w.seen[0], &arrivals{at: map[string]time.Time{}}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	request, err := http.NewRequestWithContext(watching, http.MethodGet,
		viaDirect.base+"/api/v1/nodes?watch=true&timeoutSeconds=3000&fieldSelector=metadata.name%3D"+nodeName(1), nil)
	if err != nil {
		return err
	}
	response, err := viaDirect.client.Do(request)
	if err != nil {
		return err
	}
	w.group.Go(func() error { return watch(watching, response.Body, nothing, nodes) })
	if err := slices.settle(ctx); err != nil {
		return err
	}
	var first, afterNode, last samples
	events := 0
	for i := range b.relabels {
		slices.take()
		nodes.take()
		begin := time.Now()
		if err := b.cluster.RelabelNode(ctx, nodeName(1), siteLabel, b.fleet.site(i%2)); err != nil {
			return err
		}
		if err := slices.settle(ctx); err != nil {
			return err
		}
		at, nodeAt := slices.take(), nodes.take()
		if len(at) == 0 || len(nodeAt) == 0 {
			continue // the first move may be to where the node is
		}
		events += len(at)
		first = append(first, at[0].Sub(begin))
		afterNode = append(afterNode, at[0].Sub(nodeAt[0]))
		last = append(last, at[len(at)-1].Sub(begin))
	}
	stop()
	if err := w.end(); err != nil {
		return err
	}
	if len(first) == 0 {
		return errors.New("no relabel made an event")
	}
	b.add("relabel: events each", "", strconv.Itoa(events/len(first)), "")
	b.add("relabel: first event after the request was sent, p50", "", milliseconds(first.quantile(.5)), "")
	b.add("relabel: first event after the request was sent, max", "", milliseconds(first.quantile(1)), "")
	b.add("relabel: first event after a direct watch saw the node, p50", "", milliseconds(afterNode.quantile(.5)), "")
	b.add("relabel: last event after the request was sent, p50", "", milliseconds(last.quantile(.5)), "")
	return nil
}
