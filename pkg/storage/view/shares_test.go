package view_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/storage/view"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

// shareFeed follows one resource of a node's share into an input, as a wrapper does with LIST and WATCH.
type shareFeed struct {
	node     string
	resource *history.Resource
	// open is what the node is served from, with what ends the request.
	open func(s *view.Shares, left func()) (*history.History, func(), error)
	into *facts.Input
	// revision is the client's; 0 before the first list.
	revision uint64
	lists    int
	cursor   *history.Cursor
	release  func()
	// left is set when the node has left the class that the cursor is of.
	left *bool
}

// disconnect ends the watch.
func (f *shareFeed) disconnect() {
	if f.cursor != nil {
		f.release()
	}
	f.cursor = nil
}

// follow takes everything that there is.
func (f *shareFeed) follow(s *view.Shares) error {
	for {
		if f.cursor != nil && *f.left {
			f.disconnect()
		}
		if f.cursor == nil {
			if err := f.connect(s); err != nil {
				return err
			}
		}
		events, _, err := f.cursor.Next(3)
		if errors.Is(err, history.ErrExpired) {
			f.disconnect()
			continue
		}
		if err != nil || (len(events) == 0 && !*f.left) {
			return err
		}
		for _, e := range events {
			f.revision = e.Object.Revision
			if e.Type == watch.Deleted {
				f.into.Remove(e.Object.Namespace, e.Object.Name)
			} else {
				f.into.Apply(upstreamOf(e.Object))
			}
		}
	}
}

// connect begins a watch, and lists before if it must.
func (f *shareFeed) connect(s *view.Shares) error {
	left := new(bool)
	h, release, err := f.open(s, func() { *left = true })
	if err != nil {
		return err
	}
	if f.revision != 0 {
		f.cursor, err = h.Watch(f.resource, f.revision)
		if errors.Is(err, history.ErrExpired) || errors.Is(err, history.ErrFuture) {
			f.revision = 0
		} else if err != nil {
			release()
			return err
		}
	}
	if f.revision == 0 {
		var objects []*history.Object
		if objects, f.revision, err = h.List(f.resource, "", 0); err != nil {
			release()
			return err
		}
		f.lists++
		listed := make([]*wire.Object, len(objects))
		for i, o := range objects {
			listed[i] = upstreamOf(o)
		}
		f.into.Replace(listed)
		if f.cursor, err = h.Watch(f.resource, f.revision); err != nil {
			release()
			return err
		}
	}
	f.release, f.left = release, left
	return nil
}

func upstreamOf(o *history.Object) *wire.Object {
	parsed, err := wire.ParseObject(o.AppendProtobuf(nil))
	if err != nil {
		panic(err)
	}
	return parsed
}

// sharedNode is a wrapper behind a hub.
type sharedNode struct {
	*storagetest.Node

	feeds []*shareFeed
}

func newSharedNode(name string) *sharedNode {
	n := &sharedNode{Node: storagetest.New(storagetest.Options{NodeName: name, KeepKubernetesEndpoint: true})}
	class := func(s *view.Shares, left func()) (*history.History, func(), error) { return s.Class(name, left) }
	own := func(s *view.Shares, _ func()) (*history.History, func(), error) { return s.Own(name) }
	services := func(s *view.Shares, _ func()) (*history.History, func(), error) {
		return s.Services(), func() {}, nil
	}
	n.feeds = []*shareFeed{
		{node: name, resource: history.Services, open: services, into: n.Services()},
		{node: name, resource: history.EndpointSlices, open: class, into: n.EndpointSlices()},
		{node: name, resource: history.Nodes, open: class, into: n.NodeLabels()},
		{node: name, resource: history.Nodes, open: own, into: n.OwnNode()},
	}
	return n
}

// follow takes everything from a hub, the feeds in the order of the random numbers.
func (n *sharedNode) follow(t *testing.T, what string, random *rand.Rand, hub *storagetest.Hub) {
	t.Helper()
	for _, i := range random.Perm(len(n.feeds)) {
		if err := n.feeds[i].follow(hub.Shares); err != nil {
			t.Fatalf("%s: %s follows %s: %v", what, n.Name, n.feeds[i].resource.Resource, err)
		}
	}
}

func (n *sharedNode) disconnect() {
	for _, f := range n.feeds {
		f.disconnect()
	}
}

// withEndpoints are the contents of the slices that list any.
func withEndpoints(t *testing.T, h *history.History) []string {
	t.Helper()
	var shown []string
	for _, o := range listOf(t, h, history.EndpointSlices) {
		typed, err := o.Decode()
		if err != nil {
			t.Fatal(err)
		}
		if len(typed.(*discoveryv1.EndpointSlice).Endpoints) > 0 {
			shown = append(shown, content(o))
		}
	}
	return shown
}

// shareModel is a cluster as the tests change it, and what the rule makes of it.
type shareModel struct {
	nodes    map[string]*wire.Object
	services map[string]*wire.Object
	slices   map[string]*wire.Object
}

func (m *shareModel) fill(in func(string) *facts.Input, random *rand.Rand) {
	inputs := map[string]map[string]*wire.Object{
		facts.InputNodes: m.nodes, facts.InputNode: m.nodes, facts.InputServices: m.services,
		facts.InputEndpointSlices: m.slices,
	}
	order := slices.Sorted(maps.Keys(inputs))
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, name := range order {
		in(name).Replace(slices.Collect(maps.Values(inputs[name])))
	}
}

// share is what a node is to get of slices, with the nodes of their endpoints; the nodes that it is to get; and those
// that it may get besides, because they are of its class and somebody asked for them.
func (m *shareModel) share(
	t *testing.T, node string, asked map[string]bool,
) (listed []string, must, may map[string]bool) {
	t.Helper()
	labelsOf := func(name string) topology.Labels {
		if n := m.nodes[name]; n != nil {
			return n.Labels
		}
		return nil
	}
	inUse := map[string]bool{}
	keysOf := func(service string) topology.Keys {
		s := m.services[service]
		if s == nil {
			return topology.Unsatisfiable()
		}
		keys, err := topology.ParseKeys(cmp.Or(s.Annotation("topologyKeys"), "[]"))
		if err != nil {
			return topology.Unsatisfiable()
		}
		return keys
	}
	for name := range m.services {
		for _, key := range keysOf(name) {
			if key != "" && key != topology.Any {
				inUse[key] = true
			}
		}
	}
	must, may = map[string]bool{}, map[string]bool{}
	name := func(node string, in map[string]bool) {
		if n := m.nodes[node]; n != nil {
			in[fmt.Sprint(node, n.Labels)] = true
		}
	}
	name(node, must)
	for other := range asked {
		same := true
		for key := range inUse {
			ours, ok := labelsOf(node)[key]
			theirs, also := labelsOf(other)[key]
			same = same && ok == also && ours == theirs
		}
		if same {
			name(other, may)
		}
	}
	here := topology.Labels{}
	for key := range inUse {
		if value, ok := labelsOf(node)[key]; ok {
			here[key] = value
		}
	}
	for sliceName, slice := range m.slices {
		keys := keysOf(slice.Labels[discoveryv1.LabelServiceName])
		var kept []string
		if err := wire.EndpointSlice.Scan(slice.Body, func(e wire.Endpoint) {
			on := string(e.NodeName)
			switch {
			case !keys.Governed():
				kept = append(kept, on)
			case keys.Rank(here, labelsOf(on)) != topology.NoRank:
				kept = append(kept, on)
				name(on, must)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if len(kept) > 0 || !keys.Governed() {
			listed = append(listed, sliceName+":"+strings.Join(kept, ","))
		}
	}
	slices.Sort(listed)
	return listed, must, may
}

// TestSharedViewIsTheDirectView: whatever happens in the cluster, and whichever of two hubs a wrapper follows, it
// shows what a wrapper shows that follows the cluster itself, but for slices without endpoints; also when neighbours
// are dead. What it is given is its share and no more.
func TestSharedViewIsTheDirectView(t *testing.T) {
	seed := rand.Uint64()
	for run := range 40 {
		testSharedView(t, fmt.Sprintf("seed %d run %d", seed, run), rand.New(rand.NewPCG(seed, uint64(run))))
	}
}

// withAnEdit is a slice with a change of the kind that most changes are of: one endpoint is another one, or gone.
func withAnEdit(o *wire.Object, random *rand.Rand, node string) *wire.Object {
	var s discoveryv1.EndpointSlice
	if err := s.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
		panic(err)
	}
	if len(s.Endpoints) == 0 || random.IntN(8) == 0 {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Port: new(int32(random.IntN(9)))})
		return wiretest.Object(&s)
	}
	i := random.IntN(len(s.Endpoints))
	switch random.IntN(4) {
	case 0:
		s.Endpoints = slices.Delete(s.Endpoints, i, i+1)
	case 1:
		s.Endpoints[i].NodeName = &node
	case 2:
		s.Endpoints[i].Conditions.Ready = new(!*s.Endpoints[i].Conditions.Ready)
	default:
		s.Endpoints = slices.Insert(s.Endpoints, i, *s.Endpoints[i].DeepCopy())
	}
	return wiretest.Object(&s)
}

func testSharedView(t *testing.T, what string, random *rand.Rand) {
	t.Helper()
	zones, racks := []string{"a", "b", "c", ""}, []string{"r1", "r2", ""}
	names := []string{"n1", "n2", "n3", "n4", "n5", "n6"}
	services := []string{"s1", "s2", "s3", "s4", "s5"}
	keys := []string{
		"", "[]", `["zone"]`, `["zone"]`, `["rack"]`, `["rack","zone"]`, `["zone","*"]`, `["*"]`, `nonsense`,
	}
	pick := func(from []string) string { return from[random.IntN(len(from))] }
	model := &shareModel{
		nodes: map[string]*wire.Object{}, services: map[string]*wire.Object{}, slices: map[string]*wire.Object{},
	}
	node := func(name string) *wire.Object {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{}}}
		for key, value := range map[string]string{"zone": pick(zones), "rack": pick(racks)} {
			if value != "" {
				n.Labels[key] = value
			}
		}
		n.Status.Addresses = []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2." + strings.TrimPrefix(name, "n")},
		}
		n.Status.NodeInfo.KernelVersion = fmt.Sprint(random.IntN(3)) // a report that changes no share
		return wiretest.Object(n)
	}
	slice := func(name string) *wire.Object {
		var on []string
		for range random.IntN(5) {
			on = append(on, pick(append([]string{"unknown"}, names...)))
		}
		return testSlice(t, name, pick(services), on...)
	}
	for _, name := range names {
		model.nodes[name] = node(name)
	}
	for _, name := range services {
		model.services[name] = testService(t, name, pick(keys))
	}

	// so that the hubs' revisions differ by their marks alone
	clock := func() time.Time { return time.Unix(1_800_000_000, 0) }
	hubs := []*storagetest.Hub{storagetest.NewHub(clock), storagetest.NewHub(clock)}
	var direct []*storagetest.Node
	var shared []*sharedNode
	asked := []map[string]bool{{}, {}}
	at := map[string]int{}
	for _, name := range names[:4] {
		direct = append(direct, storagetest.New(storagetest.Options{NodeName: name, KeepKubernetesEndpoint: true}))
		shared = append(shared, newSharedNode(name))
		at[name] = random.IntN(len(hubs))
	}
	everybody := func(change func(in func(string) *facts.Input, self string)) {
		for _, h := range hubs {
			change(h.Input, "")
		}
		for _, d := range direct {
			change(d.Input, d.Name)
		}
	}
	apply := func(input string, o *wire.Object) {
		everybody(func(in func(string) *facts.Input, self string) {
			if input == facts.InputNodes && (self == "" || self == o.Name) {
				in(facts.InputNode).Apply(o)
			}
			in(input).Apply(o)
		})
	}
	remove := func(input string, o *wire.Object) {
		everybody(func(in func(string) *facts.Input, self string) {
			if input == facts.InputNodes && (self == "" || self == o.Name) {
				in(facts.InputNode).Remove(o.Namespace, o.Name)
			}
			in(input).Remove(o.Namespace, o.Name)
		})
	}
	fill := func() {
		for _, h := range hubs {
			model.fill(h.Input, random)
		}
		for _, d := range direct {
			own := *model
			model.fill(d.Input, random)
			d.OwnNode().Replace(nil)
			if o := own.nodes[d.Name]; o != nil {
				d.OwnNode().Replace([]*wire.Object{o})
			}
		}
	}
	if err := shared[0].feeds[1].follow(hubs[0].Shares); !errors.Is(err, history.ErrNotReady) {
		t.Fatalf("a hub that knows nothing answers %v", err)
	}
	fill()
	change := func() {
		switch random.IntN(12) {
		case 0, 1:
			name := pick(names)
			model.nodes[name] = node(name)
			apply(facts.InputNodes, model.nodes[name])
		case 2:
			if o := model.nodes[pick(names)]; o != nil && random.IntN(2) == 0 {
				delete(model.nodes, o.Name)
				remove(facts.InputNodes, o)
			}
		case 3, 4:
			name := pick(services)
			model.services[name] = testService(t, name, pick(keys))
			apply(facts.InputServices, model.services[name])
		case 5:
			if o := model.services[pick(services)]; o != nil {
				delete(model.services, o.Name)
				remove(facts.InputServices, o)
			}
		case 6:
			if o := model.slices[fmt.Sprint("x", random.IntN(8))]; o != nil {
				delete(model.slices, o.Name)
				remove(facts.InputEndpointSlices, o)
			}
		case 7:
			if random.IntN(4) == 0 {
				fill() // as after an outage
			}
		default:
			name := fmt.Sprint("x", random.IntN(8))
			if before := model.slices[name]; before != nil && random.IntN(3) > 0 {
				model.slices[name] = withAnEdit(before, random, pick(names))
			} else {
				model.slices[name] = slice(name)
			}
			apply(facts.InputEndpointSlices, model.slices[name])
		}
	}
	for round := range 60 {
		what := fmt.Sprintf("%s round %d", what, round)
		for range random.IntN(6) {
			change()
		}
		if random.IntN(3) == 0 {
			dead := map[string]struct{}{}
			for range random.IntN(3) {
				dead[pick(names)] = struct{}{}
			}
			for i := range shared {
				direct[i].SetDeadNodes(dead)
				shared[i].SetDeadNodes(dead)
			}
		}
		for i, s := range shared {
			switch random.IntN(4) {
			case 0:
				s.disconnect()
			case 1:
				s.disconnect()
				at[s.Name] = random.IntN(len(hubs))
			case 2:
				continue // it is slow
			}
			hub := at[s.Name]
			asked[hub][s.Name] = true
			s.follow(t, what, random, hubs[hub])
			for _, r := range []*history.Resource{history.Services, history.Nodes} {
				if got, want := shownTable(t, s.History, r), shownTable(t, direct[i].History,
					r); !slices.Equal(got, want) {
					t.Fatalf("%s: %s shows %s\ngot  %q\nwant %q", what, s.Name, r.Resource, got, want)
				}
			}
			if got, want := withEndpoints(t, s.History), withEndpoints(t, direct[i].History); !slices.Equal(got, want) {
				t.Fatalf("%s: %s shows slices\ngot  %q\nwant %q", what, s.Name, got, want)
			}
			expectShare(t, what, model, hubs[hub], s.Name, asked[hub])
		}
	}
}

// expectShare checks what a hub gives a node, however the node came by it.
func expectShare(
	t *testing.T, what string, model *shareModel, hub *storagetest.Hub, node string, asked map[string]bool,
) {
	t.Helper()
	h, release, err := hub.Shares.Class(node, func() {})
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	var listed []string
	for _, o := range listOf(t, h, history.EndpointSlices) {
		var on []string
		if err := wire.EndpointSlice.Scan(o.Body,
			func(e wire.Endpoint) { on = append(on, string(e.NodeName)) }); err != nil {
			t.Fatal(err)
		}
		listed = append(listed, o.Name+":"+strings.Join(on, ","))
	}
	slices.Sort(listed)
	want, must, may := model.share(t, node, asked)
	if !slices.Equal(listed, want) {
		t.Fatalf("%s: the share of %s has\n%q\nwant\n%q", what, node, listed, want)
	}
	for _, o := range listOf(t, h, history.Nodes) {
		name := fmt.Sprint(o.Name, o.Labels)
		if !must[name] && !may[name] {
			t.Fatalf("%s: the share of %s has the node %s; %v %v", what, node, name, must, may)
		}
		delete(must, name)
	}
	if len(must) > 0 {
		t.Fatalf("%s: the share of %s has no nodes %v", what, node, must)
	}
}

// smallHub has the nodes a1, a2 and b1 in zones of that letter, and the Services free and strict.
func smallHub(t *testing.T) *storagetest.Hub {
	t.Helper()
	hub := storagetest.NewHub(nil)
	smallCloud(t).fill(&storagetest.Node{Facts: hub.Facts}, inputsOf)
	nodes := smallCloud(t)[facts.InputNodes]
	hub.Input(facts.InputNode).Replace(nodes)
	return hub
}

// classOf is what a node is served from, until the test ends. left counts how often it was sent away.
func classOf(t *testing.T, hub *storagetest.Hub, node string) (h *history.History, left *int) {
	t.Helper()
	left = new(int)
	h, release, err := hub.Shares.Class(node, func() { *left++ })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return h, left
}

// TestNodesOfOneClassShareAHistory, and what happens elsewhere is no event in it.
func TestNodesOfOneClassShareAHistory(t *testing.T) {
	hub := smallHub(t)
	a1, _ := classOf(t, hub, "node-a1")
	a2, leftA2 := classOf(t, hub, "node-a2")
	b1, leftB1 := classOf(t, hub, "node-b1")
	if a1 != a2 || a1 == b1 {
		t.Fatal("the classes are others than the zones")
	}
	if stats := hub.Shares.Stats(); stats.Nodes != 3 || stats.Classes != 2 {
		t.Errorf("got %+v", stats)
	}
	before := a1.Revision()
	hub.Input(facts.InputEndpointSlices).Apply(testSlice(t, "strict-2", "strict", "node-b1", "node-b1"))
	hub.Input(facts.InputServices).Apply(testService(t, "another", ""))
	if a1.Revision() != before {
		t.Error("zone a hears of what happens in zone b")
	}
	if got := nodesShown(t, b1, "strict-2"); got != "node-b1,node-b1" {
		t.Errorf("zone b has %s", got)
	}
	// Its neighbour leaves the zone: node-a1 stays where it is, node-a2 has to list again.
	node := testNode(t, "node-a2", "b")
	hub.Input(facts.InputNode).Apply(node)
	hub.Input(facts.InputNodes).Apply(node)
	if *leftA2 != 1 || *leftB1 != 0 {
		t.Errorf("node-a2 was sent away %d times, node-b1 %d times", *leftA2, *leftB1)
	}
	if again, _ := classOf(t, hub, "node-a2"); again != b1 {
		t.Error("node-a2 is not served what zone b is")
	}
	if _, err := b1.Watch(history.EndpointSlices, a1.Revision()); !errors.Is(err, history.ErrExpired) {
		t.Errorf("a watch that goes on from the share of zone a: %v", err)
	}
	if _, _, err := b1.List(history.EndpointSlices, "", a1.Revision()); !errors.Is(err, history.ErrExpired) {
		t.Errorf("a list that is not to be older than the share of zone a: %v", err)
	}
}

// TestANewKeyDividesOnlyWhatItTellsApart: when a key comes into use, a class whose nodes have the same value of it
// goes on.
func TestANewKeyDividesOnlyWhatItTellsApart(t *testing.T) {
	hub := smallHub(t)
	label := func(name, zone, rack string) {
		node := wiretest.Object(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone, "rack": rack}},
		})
		hub.Input(facts.InputNode).Apply(node)
		hub.Input(facts.InputNodes).Apply(node)
	}
	label("node-a1", "a", "1")
	label("node-a2", "a", "1")
	label("node-b1", "b", "1")
	label("node-b2", "b", "2")
	left := map[string]*int{}
	for _, name := range []string{"node-a1", "node-a2", "node-b1", "node-b2"} {
		_, left[name] = classOf(t, hub, name)
	}
	hub.Input(facts.InputEndpointSlices).Apply(testSlice(t, "racks-1", "racks", "node-a1", "node-b2"))
	hub.Input(facts.InputServices).Apply(testService(t, "racks", `["rack"]`))
	if *left["node-a1"]+*left["node-a2"] != 0 || *left["node-b1"]+*left["node-b2"] != 1 {
		t.Errorf("sent away: a1 %d, a2 %d, b1 %d, b2 %d times",
			*left["node-a1"], *left["node-a2"], *left["node-b1"], *left["node-b2"])
	}
	for node, want := range map[string]string{"node-a2": "node-a1", "node-b1": "node-a1", "node-b2": "node-b2"} {
		h, _ := classOf(t, hub, node)
		if got := nodesShown(t, h, "racks-1"); got != want {
			t.Errorf("%s has %s, want %s", node, got, want)
		}
	}
}

// TestTheSliceOfKubernetesIsInEveryShare, also when keys govern it that match nothing: a wrapper replaces its endpoint.
func TestTheSliceOfKubernetesIsInEveryShare(t *testing.T) {
	hub := smallHub(t)
	hub.Input(facts.InputServices).Apply(wiretest.Object(&corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "kubernetes", Annotations: map[string]string{"topologyKeys": `["zone"]`},
	}}))
	slice := wiretest.Object(kubernetesSlice())
	hub.Input(facts.InputEndpointSlices).Apply(slice)
	h, _ := classOf(t, hub, "node-a1")
	o, err := h.Get(history.EndpointSlices, types.NamespacedName{Namespace: "default", Name: slice.Name}, 0)
	if err != nil || o == nil || !slices.Equal(o.Body, slice.Body) {
		t.Errorf("got %v, %v", o, err)
	}
}

// TestIdleNodesAreForgotten, with their classes; those with a request under way are not.
func TestIdleNodesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := smallHub(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			hub.Shares.Run(ctx)
		}()
		defer func() {
			cancel()
			<-done
		}()
		hub.Input(facts.InputNodes).Apply(testNode(t, "node-a3", "a"))
		a, _ := classOf(t, hub, "node-a1")
		for _, node := range []string{"node-a3", "node-b1"} {
			h, release, err := hub.Shares.Class(node, func() { t.Errorf("%s was sent away", node) })
			if err != nil {
				t.Fatal(err)
			}
			_, releaseOwn, err := hub.Shares.Own(node)
			if err != nil {
				t.Fatal(err)
			}
			release()
			releaseOwn()
			defer func() {
				if _, err := h.Readable(history.EndpointSlices); (err == nil) != (h == a) {
					t.Errorf("the class of %s: %v", node, err)
				}
			}()
		}
		if n := len(listOf(t, a, history.Nodes)); n != 4 {
			t.Errorf("zone a has %d nodes", n)
		}
		time.Sleep(view.DefaultShareIdle / 2)
		if stats := hub.Shares.Stats(); stats.Nodes != 3 || stats.Classes != 2 {
			t.Errorf("too early: %+v", stats)
		}
		time.Sleep(view.DefaultShareIdle)
		if stats := hub.Shares.Stats(); stats.Nodes != 1 || stats.Classes != 1 {
			t.Errorf("got %+v", stats)
		}
		// Nobody but itself named node-a3. The others have endpoints that zone a may see.
		if n := len(listOf(t, a, history.Nodes)); n != 3 {
			t.Errorf("zone a has %d nodes", n)
		}
		if n := view.HeldByShares(hub.Shares); n != 3 { // ordered-1, strict-1 and the zone
			t.Errorf("%d entries are kept of governed slices and their classes", n)
		}
	})
}

// TestReportsOfANodesStatusAreNoEvents, but for the node itself.
func TestReportsOfANodesStatusAreNoEvents(t *testing.T) {
	hub := smallHub(t)
	class, _ := classOf(t, hub, "node-a1")
	own, release, err := hub.Shares.Own("node-a1")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	other, releaseOther, err := hub.Shares.Own("node-a2")
	if err != nil {
		t.Fatal(err)
	}
	defer releaseOther()
	before, ownBefore, otherBefore := class.Revision(), own.Revision(), other.Revision()
	report := func(status corev1.NodeStatus) {
		node := wiretest.Object(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a1", Labels: map[string]string{"zone": "a"}}, Status: status,
		})
		hub.Input(facts.InputNode).Apply(node)
		hub.Input(facts.InputNodes).Apply(node)
	}
	status := corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KernelVersion: "6.1"}}
	report(status)
	if class.Revision() != before || other.Revision() != otherBefore || own.Revision() == ownBefore {
		t.Error("the report is an event elsewhere, or none for the node itself")
	}
	status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	report(status)
	o, err := class.Get(history.Nodes, types.NamespacedName{Name: "node-a1"}, 0)
	if err != nil || class.Revision() == before {
		t.Fatalf("its new address is no event: %v", err)
	}
	typed, err := o.Decode()
	if err != nil {
		t.Fatal(err)
	}
	node := typed.(*corev1.Node)
	if !reflect.DeepEqual(node.Status.Addresses, status.Addresses) || node.Status.NodeInfo.KernelVersion != "" ||
		node.Labels["zone"] != "a" {
		t.Errorf("the share has %+v", node)
	}
}
