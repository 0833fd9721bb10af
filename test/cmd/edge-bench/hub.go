package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/gzip"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/await"
	hubv1alpha1 "github.com/application-grid/application-grid/pkg/apis/hub.superedge.io/v1alpha1"
	"github.com/application-grid/application-grid/test/cluster"
)

const (
	// protobufType and metadataType are what a wrapper accepts.
	protobufType = "application/vnd.kubernetes.protobuf"
	metadataType = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	// stillness is how long nothing must have arrived for all changes to have done so, and arriveWithin how long they
	// may take.
	stillness    = 2 * time.Second
	arriveWithin = time.Minute
)

// followed is what a wrapper follows: a path and query, and what it accepts.
type followed struct{ path, query, accept string }

func followedBy(node string) []followed {
	return []followed{
		{"/api/v1/nodes", "", metadataType},
		{"/api/v1/nodes", "fieldSelector=metadata.name%3D" + node, protobufType},
		{"/api/v1/services", "", protobufType},
		{"/apis/discovery.k8s.io/v1/endpointslices", "", protobufType},
	}
}

// follower follows what a wrapper of its node follows, and counts what its link carries.
type follower struct {
	// base is the API server.
	base   string
	client *http.Client
	node   string
	// heard is called for every event of a slice, with its name.
	heard func(slice string)

	// version and known name what followShare has, known after the first step.
	version string
	known   *hubv1alpha1.Digests

	listed, watched atomic.Int64
}

// followShare follows the node's share at the hub, and calls ready when it is complete.
func (f *follower) followShare(ctx context.Context, ready func()) error {
	response, err := f.get(ctx, followed{"/apis/hub.superedge.io/v1alpha1/shares",
		"fieldSelector=metadata.name%3D" + f.node, protobufType}, "watch=true&timeoutSeconds=3000&resourceVersion="+f.version, true)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	counted := &countingReader{from: response.Body, n: &f.listed}
	zip, err := gzip.NewReader(counted)
	if err != nil {
		return err
	}
	frames := bufio.NewReaderSize(zip, 4<<10)
	complete := false
	digests := &hubv1alpha1.Digests{}
	if f.known != nil {
		digests = f.known
	}
	err = eachFrame(frames, func(frame []byte) error {
		if !bytes.Contains(frame[:min(len(frame), 32)], []byte("BOOKMARK")) {
			if complete {
				f.hear(frame)
			}
			return nil
		}
		mark, err := parseMark(frame)
		if err != nil {
			return fmt.Errorf("reading a mark: %w", err)
		}
		mark.AddTo(digests, &[hubv1alpha1.Buckets]bool{})
		if !mark.Ends {
			return nil
		}
		f.version, f.known = mark.Version.String(), digests
		if !complete {
			complete = true
			counted.n = &f.watched
			ready()
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil // the measurement is over
	}
	return fmt.Errorf("%s: the stream of its share ended: %w", f.node, err)
}

// eachFrame calls do for each frame of a watch, until the watch ends or do has an error.
func eachFrame(watch io.Reader, do func(frame []byte) error) error {
	var head [4]byte
	var frame []byte
	for {
		if _, err := io.ReadFull(watch, head[:]); err != nil {
			return err
		}
		frame = slices.Grow(frame[:0], int(binary.BigEndian.Uint32(head[:])))[:binary.BigEndian.Uint32(head[:])]
		if _, err := io.ReadFull(watch, frame); err != nil {
			return err
		}
		if err := do(frame); err != nil {
			return err
		}
	}
}

// hear calls heard with the name of the slice in a frame, if there is one.
func (f *follower) hear(frame []byte) {
	if at := bytes.Index(frame, []byte("svc-")); at >= 0 {
		f.heard(string(frame[at:min(len(frame), at+len(sliceName(0)))]))
	}
}

// countingReader counts what is read.
type countingReader struct {
	from io.Reader
	n    *atomic.Int64
}

// Read implements io.Reader.
func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.from.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// follow lists everything, calls ready, and watches until ctx is done.
func (f *follower) follow(ctx context.Context, ready func()) error {
	all := followedBy(f.node)
	revisions := make([]string, len(all))
	for i, what := range all {
		var err error
		if revisions[i], err = f.list(ctx, what); err != nil {
			return err
		}
	}
	ready()
	group, ctx := errgroup.WithContext(ctx)
	for i, what := range all {
		group.Go(func() error { return f.watch(ctx, what, revisions[i]) })
	}
	return group.Wait()
}

func (f *follower) get(ctx context.Context, what followed, query string, gzip bool) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.base+what.path+"?"+what.query+"&"+query, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", what.accept)
	if gzip { // asked for here, it is not undone by the transport
		request.Header.Set("Accept-Encoding", "gzip")
	}
	if f.known != nil {
		request.Header.Set(hubv1alpha1.DigestsHeader, f.known.String())
	}
	response, err := f.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 400))
		return nil, errors.Join(fmt.Errorf("%s: %s: %s", request.URL, response.Status, body), response.Body.Close())
	}
	return response, nil
}

// list counts a list as it is on the wire, and asks once more, for nothing, at which revision the watch begins.
func (f *follower) list(ctx context.Context, what followed) (revision string, err error) {
	response, err := f.get(ctx, what, "resourceVersion=0", true)
	if err != nil {
		return "", err
	}
	n, err := io.Copy(io.Discard, response.Body)
	f.listed.Add(n)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return "", err
	}
	what.accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	what.query += "&labelSelector=no%2Fsuch"
	if response, err = f.get(ctx, what, "resourceVersion=0", false); err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	_, rest, _ := bytes.Cut(body, []byte(`"resourceVersion":"`))
	number, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(number), errors.Join(err, response.Body.Close())
}

func (f *follower) watch(ctx context.Context, what followed, revision string) error {
	what.accept = strings.Replace(what.accept, "PartialObjectMetadataList", "PartialObjectMetadata", 1)
	response, err := f.get(ctx, what, "watch=true&timeoutSeconds=3000&resourceVersion="+revision, false)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	err = eachFrame(response.Body, func(frame []byte) error {
		f.watched.Add(int64(4 + len(frame))) // with its length
		if strings.HasSuffix(what.path, "slices") {
			f.hear(frame)
		}
		return nil
	})
	if ctx.Err() != nil {
		return nil // the measurement is over
	}
	return fmt.Errorf("%s: a watch of %s ended: %w", f.node, what.path, err)
}

// latencies are the times from changes to their arrivals.
type latencies struct {
	mu      sync.Mutex
	changed map[string]time.Time
	took    samples
	last    time.Time
}

func (l *latencies) change(slice string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed[slice] = time.Now()
}

func (l *latencies) heard(slice string) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.changed[slice]; ok {
		l.took = append(l.took, now.Sub(at))
		l.last = now
	}
}

func (l *latencies) quiet() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.last) > stillness
}

// measureFleets measures a fleet, and draws how it came to that if a chart is asked for.
func measureFleets(ctx context.Context, o options) error {
	if o.hubChart == "" {
		_, err := measureHub(ctx, o)
		return err
	}
	whole := o.fleet
	ready := panel{title: "Bytes to become ready", unit: "kB a node"}
	change := panel{title: "Bytes a change of an endpoint", unit: "kB a node"}
	watches := panel{title: "Watches of all nodes", unit: "at the API server's watch caches"}
	wrapper := panel{title: "Memory of a wrapper", unit: "MB resident"}
	for _, part := range []int{8, 4, 2, 1} {
		o.fleet = fleet{nodes: whole.nodes / part, sites: max(whole.sites/part, 1), services: whole.services / part}
		figures, err := measureHub(ctx, o)
		if err != nil {
			return err
		}
		for _, drawn := range []struct {
			into *panel
			figure
			per float64
		}{{&ready, figures.ready, 1e3}, {&change, figures.change, 1e3}, {&watches, figures.watches, 1}, {&wrapper,
			figures.memory, 1e6}} {
			drawn.into.points = append(drawn.into.points,
				point{float64(o.fleet.nodes), drawn.directly / drawn.per, drawn.hub / drawn.per})
		}
	}
	drawn := chart{title: fmt.Sprint("A fleet that grows to ", whole), panels: []panel{ready, change, watches, wrapper}}.svg()
	if err := os.WriteFile(o.hubChart, []byte(drawn), 0o644); err != nil { //nolint:gosec // a page shows it to everybody
		return fmt.Errorf("writing the chart: %w", err)
	}
	return nil
}

// figure is the same figure of both ways.
type figure struct{ directly, hub float64 }

// fleetFigures are those of a fleet that a chart has: bytes to become ready and bytes a change, a node; watches of what
// is followed, of all nodes, at the API server; and resident memory of a wrapper.
type fleetFigures struct{ ready, change, watches, memory figure }

const (
	// watchesOfAWrapper is how many a wrapper has, watchesOfAReplica how many a replica of the hub.
	watchesOfAWrapper, watchesOfAReplica = 4, 3
	// changes is how many endpoints change at most, of a Service each.
	changes = 1000
)

// measureHub lets simulated wrappers of a whole fleet follow their shares, through kube-apiserver, and one follow
// everything, and changes endpoints.
func measureHub(ctx context.Context, o options) (figures *fleetFigures, err error) {
	c, err := cluster.Start(ctx, cluster.Options{
		Components: o.components, Wrapper: o.wrapper, Hub: o.hub, NoKwok: true, NoScheduler: true, APIViewOnly: true,
		Progress: os.Stderr,
		Nodes:    []cluster.NodeSpec{o.fleet.viewer(hubOff), o.fleet.viewer(hubOn)},
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	c.ControllerManager.Kill()
	if err := loadHub(ctx, c, o.fleet); err != nil {
		return nil, err
	}
	config := c.RESTConfig()
	config.DisableCompression = true
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	b := &hubBench{
		cluster: c, fleet: o.fleet, changes: min(changes, o.fleet.services),
		direct:  latencies{changed: map[string]time.Time{}},
		through: latencies{changed: map[string]time.Time{}},
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	group, following := errgroup.WithContext(following)
	group.Go(func() error {
		select {
		case err := <-c.Failed(): // nobody need wait for what follows from that
			return err
		case <-following.Done():
			return nil
		}
	})
	everything := &follower{base: config.Host, client: client, node: nodeName(0), heard: b.direct.heard}
	ready := make(chan struct{})
	group.Go(func() error { return everything.follow(following, func() { close(ready) }) })
	select {
	case <-ready:
	case <-following.Done():
		return nil, group.Wait()
	}
	begin := time.Now()
	b.startFollowers(following, group, config.Host, client)
	if err := b.awaitComplete(following, o.fleet.nodes); err != nil {
		stop() // those that follow would go on until their watches end, for 50 minutes
		return nil, errors.Join(err, group.Wait())
	}
	b.figures.ready = figure{float64(everything.listed.Load()),
		float64(b.sum(func(f *follower) int64 { return f.listed.Load() })) / float64(o.fleet.nodes)}
	b.figures.watches = figure{float64(watchesOfAWrapper * o.fleet.nodes), float64(watchesOfAReplica * len(c.Hubs))}
	b.add("bytes to become ready, a node", kilobytes(b.figures.ready.directly), kilobytes(b.figures.ready.hub))
	b.add("all nodes ready within", "", time.Since(begin).Round(10*time.Millisecond).String())
	measured := b.measureChanges(following, o, everything)
	if measured == nil {
		measured = b.measureReturn(following)
	}
	stop()
	if err := errors.Join(measured, group.Wait()); err != nil {
		return nil, fmt.Errorf("after %v: %w", b.rows, err)
	}
	if err := b.measureWrappers(ctx); err != nil {
		return nil, err
	}
	if err := b.measureRelabels(ctx); err != nil {
		return nil, err
	}
	title := fmt.Sprintf("%s; %d changes of one endpoint, %d a second", o.fleet, b.changes, o.rate)
	if err := b.print(title, "directly", "through the hub"); err != nil {
		return nil, err
	}
	if saved := b.figures.change.directly / b.figures.change.hub; saved < float64(o.hubSaving) {
		return nil, fmt.Errorf("a change costs a node %.0f times as many bytes directly as through the hub, not %d times",
			saved, o.hubSaving)
	}
	return &b.figures, nil
}

// startFollowers starts a wrapper's stand-in for each node, in the group.
func (b *hubBench) startFollowers(following context.Context, group *errgroup.Group, base string, client *http.Client) {
	places := make(chan struct{}, 64) // wrappers that list at the same time
	for i := range b.fleet.nodes {
		f := &follower{base: base, client: client, node: nodeName(i), heard: b.through.heard}
		b.followers = append(b.followers, f)
		group.Go(func() error {
			select {
			case places <- struct{}{}:
			case <-following.Done():
				return nil
			}
			return b.keepShare(following, f, sync.OnceFunc(func() { <-places }))
		})
	}
}

// loadHub creates the fleet, and restarts the hubs.
func loadHub(ctx context.Context, c *cluster.Cluster, f fleet) error {
	fmt.Fprintf(os.Stderr, "loading %s\n", f)
	if err := f.store(ctx, c); err != nil {
		return err
	}
	for _, hub := range c.Hubs {
		// It would be behind the load for a while, and send that to wrappers as changes.
		if _, err := restart(ctx, hub.Component); err != nil {
			return err
		}
	}
	// If the aggregator has noticed that, it asks again at its own pace.
	return errors.Join(pause(ctx, 5*time.Second), c.AwaitHub(ctx))
}

// hubBench is a measurement.
type hubBench struct {
	table
	cluster         *cluster.Cluster
	fleet           fleet
	followers       []*follower
	direct, through latencies
	changes         int
	figures         fleetFigures
	// complete counts the shares that are followed and complete, away is set while streams may end.
	complete atomic.Int64
	away     atomic.Bool
}

func (b *hubBench) sum(of func(*follower) int64) int64 {
	var sum int64
	for _, f := range b.followers {
		sum += of(f)
	}
	return sum
}

// measureChanges changes an endpoint of every Service, one after the other.
func (b *hubBench) measureChanges(ctx context.Context, o options, everything *follower) error {
	config := b.cluster.RESTConfig()
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := b.addHubMemory(ctx, "when all are ready"); err != nil {
		return err
	}
	watched, direct := b.sum(func(f *follower) int64 { return f.watched.Load() }), everything.watched.Load()
	group, patching := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := range paced(patching, o.rate, b.changes) {
		group.Go(func() error {
			b.direct.change(sliceName(i))
			b.through.change(sliceName(i))
			patch := []byte(`[{"op":"replace","path":"/endpoints/` + strconv.Itoa(i%endpoints) +
				`/conditions/ready","value":false}]`)
			_, err := client.DiscoveryV1().EndpointSlices(namespace).Patch(patching, sliceName(i), types.JSONPatchType,
				patch, metav1.PatchOptions{})
			return err
		})
	}
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return err
	}
	arriving, cancel := context.WithTimeout(ctx, arriveWithin)
	defer cancel()
	if err := await.NoError(arriving, 100*time.Millisecond, b.checkShares); err != nil {
		return err
	}
	perNode := (b.sum(func(f *follower) int64 { return f.watched.Load() }) - watched) / int64(len(b.followers))
	b.figures.change = figure{float64(everything.watched.Load()-direct) / float64(b.changes),
		float64(perNode) / float64(b.changes)}
	b.add("bytes a change, a node", kilobytes(b.figures.change.directly), kilobytes(b.figures.change.hub))
	for _, q := range []float64{0.5, 0.99} {
		b.add(fmt.Sprintf("from the patch to the wrapper, p%.0f", 100*q), b.direct.took.quantile(q), b.through.took.quantile(q))
	}
	return nil
}

// addHubMemory adds what memory the hub has.
func (b *hubBench) addHubMemory(ctx context.Context, when string) error {
	hub := b.cluster.Hubs[0]
	if err := b.addMemory("memory of the hub "+when, hub.PID(), ""); err != nil {
		return err
	}
	live, err := hub.Metric(ctx, "go_gc_heap_live_bytes")
	b.add("heap that is live", "", megabytes(live))
	return err
}

// The ways of the real wrappers: without --hub, and with it.
const hubOff, hubOn = "off", "on"

// viewer is a node of the first site with a real wrapper.
func (f fleet) viewer(mode string) cluster.NodeSpec {
	spec := cluster.NodeSpec{Name: "hub-" + mode, Labels: map[string]string{siteLabel: f.site(0)}}
	if mode == hubOn {
		spec.WrapperArgs = []string{"--hub"}
	}
	return spec
}

// measureWrappers takes the memory of two real wrappers of the first site, one behind the hub and one without it.
func (b *hubBench) measureWrappers(ctx context.Context) error {
	for _, way := range []struct {
		mode   string
		memory *float64
	}{{hubOff, &b.figures.memory.directly}, {hubOn, &b.figures.memory.hub}} {
		node, err := b.cluster.Node("hub-" + way.mode)
		if err != nil {
			return err
		}
		if _, err := restart(ctx, node.Wrapper); err != nil {
			return err
		}
		resident, _, err := cluster.ResidentMemory(node.Wrapper.PID())
		if err != nil {
			return err
		}
		*way.memory = resident
	}
	b.add("resident memory of a wrapper", megabytes(b.figures.memory.directly), megabytes(b.figures.memory.hub))
	return nil
}

// checkShares checks that all events have arrived, and that these are those of the nodes' own sites: that the figures
// are of shares.
func (b *hubBench) checkShares(context.Context) error {
	if !b.direct.quiet() || !b.through.quiet() {
		return errors.New("events go on arriving")
	}
	var want int
	perSite := map[string]int{}
	for i := range b.fleet.nodes {
		perSite[b.fleet.site(i)]++
	}
	for i := range b.changes {
		on, err := strconv.Atoi(strings.TrimPrefix(*b.fleet.slice(i).Endpoints[i%endpoints].NodeName, "node-"))
		if err != nil {
			return err
		}
		want += perSite[b.fleet.site(on)]
	}
	if got := len(b.through.took); got != want {
		return fmt.Errorf("%d events arrived of %d", got, want)
	}
	return nil
}
