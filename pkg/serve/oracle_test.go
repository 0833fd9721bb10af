package serve_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/history"
	"github.com/application-grid/application-grid/pkg/storage/storagetest"
	"github.com/application-grid/application-grid/pkg/wire"
	"github.com/application-grid/application-grid/pkg/wire/wiretest"
)

var (
	oracleSeed   = flag.Uint64("oracle.seed", 0, "seed of the first run; 0 takes the clock")
	oracleRuns   = flag.Int("oracle.runs", 6, "runs, each with a fresh cluster, fresh clients and its own seed")
	oracleRounds = flag.Int("oracle.rounds", 40,
		"times per run that the cluster comes to rest and every client is compared")
	oracleEvents = flag.Int("oracle.events", 25, "upstream changes between two comparisons")
)

// TestClientsConvergeToTheView is the heart of the suite: whatever the order of upstream changes is, and
// however clients list, watch, disconnect, resume and lag, at rest every client holds what a naive rendering
// of the rule, on Go values, says that this node may see. On the way every stream must be consistent: growing
// revisions, nothing added twice, nothing modified or deleted that is not there.
func TestClientsConvergeToTheView(t *testing.T) {
	seed := *oracleSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	for i := range *oracleRuns {
		seed := seed + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			runOracle(t, seed)
		})
	}
}

func runOracle(t *testing.T, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, seed))
	options := storagetest.Options{NodeName: "node-0"}
	short := r.IntN(2) == 0
	if short {
		// Watchers fall off a log this short all the time, and now and then behind the retired versions too.
		options.LogEvents = 4 + r.IntN(40)
		options.RetiredBytes = 500 + r.IntN(20000)
	}
	store := storagetest.New(options)
	handler := filters.WithRequestInfo()(filters.WithServed(&serve.Server{HistoryOf: serve.Only(store.History),
		BookmarkInterval: 20 * time.Millisecond}, "node-0")(http.NotFoundHandler()))
	server := httptest.NewServer(handler)
	defer server.Close()

	cluster := newFakeCluster(r, store)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var clients []*oracleClient
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range 12 {
		c := newOracleClient(t, rand.New(rand.NewPCG(seed, uint64(i+1))), server.URL)
		c.everyEvent = !short
		clients = append(clients, c)
		wg.Go(func() { c.run(ctx) })
	}
	for round := range *oracleRounds {
		for range *oracleEvents {
			cluster.change()
			for range r.IntN(4) {
				cluster.deliver()
			}
		}
		cluster.rest()
		revision := store.History.Revision()
		for i, c := range clients {
			want := cluster.expected(c.resource, c.selector)
			if diff := c.waitFor(want, 20*time.Second); diff != "" {
				t.Errorf("round %d, revision %d: client %d (%s) differs from the view (-want +got):\n%s",
					round, revision, i, c, diff)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// ---- the cluster and the rule, on Go values

// fakeCluster makes random changes and delivers them to the facts as reflectors would: in order within a
// source, in any order between sources, with relists in between.
type fakeCluster struct {
	r       *rand.Rand
	nodes   map[string]*corev1.Node
	objects map[*history.Resource]map[types.NamespacedName]history.Typed
	// dead are the nodes that the health service calls dead.
	dead    map[string]struct{}
	store   *storagetest.Node
	version int
	feeds   []*feed
	// holds is set while the facts hold back what they are told.
	holds bool
}

// feed is one source: what the upstream has sent and the facts have not taken yet.
type feed struct {
	input *facts.Input
	queue []func()
	all   func() []*wire.Object
	// whole, if set, hands over the complete state in place of input and all.
	whole func() func()
	begun bool
}

// healthService is the index of the feed of dead nodes.
const healthService = 6

func newFakeCluster(r *rand.Rand, store *storagetest.Node) *fakeCluster {
	c := &fakeCluster{
		r: r, store: store, nodes: map[string]*corev1.Node{},
		objects: map[*history.Resource]map[types.NamespacedName]history.Typed{},
	}
	c.feeds = []*feed{
		{input: store.NodeLabels(), all: c.allNodes}, {input: store.Services()}, {input: store.EndpointSlices()},
		{input: store.Endpoints()}, {input: store.OwnNode(), all: c.thisNode},
		{input: store.KubernetesEndpoints(), all: c.kubernetesEndpoints}, {whole: c.takeDead},
	}
	for i, resource := range []*history.Resource{history.Services, history.EndpointSlices, history.Endpoints} {
		c.objects[resource] = map[types.NamespacedName]history.Typed{}
		c.feeds[i+1].all = func() []*wire.Object {
			var all []*wire.Object
			for _, o := range c.objects[resource] {
				all = append(all, wiretest.Object(o))
			}
			return all
		}
	}
	return c
}

func (c *fakeCluster) allNodes() []*wire.Object {
	var all []*wire.Object
	for _, n := range c.nodes {
		all = append(all, wiretest.Object(&metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}))
	}
	return all
}

func (c *fakeCluster) thisNode() []*wire.Object {
	if n := c.nodes["node-0"]; n != nil {
		return []*wire.Object{wiretest.Object(n)}
	}
	return nil
}

func (c *fakeCluster) kubernetesEndpoints() []*wire.Object {
	if o := c.objects[history.Endpoints][kubernetesName]; o != nil {
		return []*wire.Object{wiretest.Object(o)}
	}
	return nil
}

var kubernetesName = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// takeDead makes the facts take the nodes that are dead now.
func (c *fakeCluster) takeDead() func() {
	dead := c.dead
	return func() { c.store.SetDeadNodes(dead) }
}

// changeDead kills or revives some nodes, or revives all, as when the health service fails. It may name this
// node, and nodes that are not there.
func (c *fakeCluster) changeDead() {
	dead := maps.Clone(c.dead)
	if dead == nil || c.r.IntN(4) == 0 {
		dead = map[string]struct{}{}
	}
	for range c.r.IntN(3) {
		name := fmt.Sprintf("node-%d", c.r.IntN(7))
		if _, was := dead[name]; was {
			delete(dead, name)
		} else {
			dead[name] = struct{}{}
		}
	}
	c.dead = dead
	c.feeds[healthService].queue = append(c.feeds[healthService].queue, c.takeDead())
}

// change makes one random change and queues it for the sources that carry it.
func (c *fakeCluster) change() {
	switch n := c.r.IntN(22); {
	case n >= 20:
		c.changeDead()
	case n < 4:
		c.changeNode()
	case n < 8:
		c.changeObject(history.Services, c.randomService())
	case n < 9:
		c.changeObject(history.Endpoints, c.randomKubernetesEndpoints())
	case n < 10:
		c.changeObject(history.EndpointSlices, c.randomKubernetesSlice())
	case n < 12:
		c.changeObject(history.Endpoints, c.randomEndpoints())
	default:
		c.changeObject(history.EndpointSlices, c.randomSlice())
	}
	if c.r.IntN(60) == 0 {
		f := c.feeds[c.r.IntN(len(c.feeds))]
		f.relist()
	}
}

// relist replaces whatever is under way by the complete state, as after a 410.
func (f *feed) relist() {
	f.begun = true
	if f.whole != nil {
		f.queue = []func(){f.whole()}
		return
	}
	all := f.all()
	f.queue = []func(){func() { f.input.Replace(all) }}
}

// deliver lets the facts take one change of a random source. Now and then what comes is held back for a while, as after
// an outage.
func (c *fakeCluster) deliver() {
	switch n := c.r.IntN(80); {
	case n == 0 && !c.holds:
		c.store.Hold()
		c.holds = true
	case n < 4 && c.holds:
		c.store.Release()
		c.holds = false
	}
	f := c.feeds[c.r.IntN(len(c.feeds))]
	if !f.begun {
		f.relist()
	}
	if len(f.queue) > 0 {
		f.queue[0]()
		f.queue = f.queue[1:]
	}
}

// rest delivers everything.
func (c *fakeCluster) rest() {
	for _, i := range c.r.Perm(len(c.feeds)) {
		f := c.feeds[i]
		if !f.begun {
			f.relist()
		}
		for _, take := range f.queue {
			take()
		}
		f.queue = nil
	}
	if c.holds {
		c.store.Release()
		c.holds = false
	}
}

func (c *fakeCluster) send(feed int, o *wire.Object) {
	f := c.feeds[feed]
	f.queue = append(f.queue, func() { f.input.Apply(o) })
}

func (c *fakeCluster) sendGone(feed int, name types.NamespacedName) {
	f := c.feeds[feed]
	f.queue = append(f.queue, func() { f.input.Remove(name.Namespace, name.Name) })
}

func (c *fakeCluster) nextVersion() string {
	c.version++
	return strconv.Itoa(c.version)
}

func (c *fakeCluster) changeNode() {
	name := fmt.Sprintf("node-%d", c.r.IntN(6))
	if c.r.IntN(8) == 0 {
		if c.nodes[name] != nil {
			delete(c.nodes, name)
			c.sendGone(0, types.NamespacedName{Name: name})
			if name == "node-0" {
				c.sendGone(4, types.NamespacedName{Name: name})
			}
		}
		return
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, UID: types.UID(name), ResourceVersion: c.nextVersion(), Labels: map[string]string{},
		},
	}
	for _, key := range []string{"zone", "region", "rack", "topology.kubernetes.io/zone", "apps.openyurt.io/nodepool"} {
		if c.r.IntN(5) > 0 {
			n.Labels[key] = fmt.Sprintf("v%d", c.r.IntN(2))
		}
	}
	n.Labels["kubernetes.io/hostname"] = name
	n.Spec.Unschedulable = c.r.IntN(2) == 0
	c.nodes[name] = n
	c.send(0, wiretest.Object(&metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta}))
	if name == "node-0" {
		c.send(4, wiretest.Object(n))
	}
}

func (c *fakeCluster) changeObject(resource *history.Resource, o history.Typed) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	index := map[*history.Resource]int{history.Services: 1, history.EndpointSlices: 2, history.Endpoints: 3}[resource]
	name := types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	before := c.objects[resource][name]
	deletes := before != nil && c.r.IntN(6) == 0
	if deletes {
		delete(c.objects[resource], name)
		c.sendGone(index, name)
	} else {
		accessor.SetResourceVersion(c.nextVersion())
		accessor.SetUID(types.UID(accessor.GetResourceVersion()))
		if before != nil {
			was, err := meta.Accessor(before)
			if err != nil {
				panic(err)
			}
			accessor.SetUID(was.GetUID())
		}
		accessor.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update"}})
		if before != nil && c.r.IntN(5) == 0 {
			// A change of something that no client needs.
			o = before.DeepCopyObject().(history.Typed)
			accessor, _ = meta.Accessor(o)
			accessor.SetResourceVersion(c.nextVersion())
		}
		accessor.SetGeneration(int64(c.version))
		if resource != history.Services {
			annotations := maps.Clone(accessor.GetAnnotations())
			if annotations == nil {
				annotations = map[string]string{}
			}
			annotations[corev1.EndpointsLastChangeTriggerTime] = time.Unix(int64(c.version), 0).Format(time.RFC3339)
			accessor.SetAnnotations(annotations)
		}
		c.objects[resource][name] = o
		c.send(index, wiretest.Object(o))
	}
	if resource == history.Endpoints && name == kubernetesName {
		if deletes {
			c.sendGone(5, name)
		} else {
			c.send(5, wiretest.Object(o))
		}
	}
}

func (c *fakeCluster) pick(values ...string) string { return values[c.r.IntN(len(values))] }

func (c *fakeCluster) randomService() *corev1.Service {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.pick("a", "b"), Name: fmt.Sprintf("svc-%d", c.r.IntN(3))},
	}
	if c.r.IntN(8) == 0 {
		svc.Namespace, svc.Name = kubernetesName.Namespace, kubernetesName.Name
	}
	svc.Spec.ClusterIP = c.pick("None", "10.0.0.1", "10.0.0.2")
	svc.Spec.Type = corev1.ServiceTypeClusterIP
	if c.r.IntN(3) == 0 {
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	if c.r.IntN(5) > 0 {
		svc.Annotations = map[string]string{"topologyKeys": c.pick(
			`["zone"]`, `["zone"]`, `["zone","region"]`, `["rack","zone"]`, `["rack","zone","*"]`,
			`["kubernetes.io/hostname","region"]`,
			`[]`, `["*"]`, `not json`, `["*","zone"]`, `["missing"]`, `null`)}
	}
	if c.r.IntN(4) == 0 { // alone on one Service in twenty, with the other on more
		if svc.Annotations == nil || c.r.IntN(2) == 0 {
			svc.Annotations = map[string]string{}
		}
		svc.Annotations["openyurt.io/topologyKeys"] = c.pick("kubernetes.io/hostname", "kubernetes.io/zone",
			"openyurt.io/nodepool", "", "zone")
	}
	return svc
}

func (c *fakeCluster) nodeName() *string {
	if c.r.IntN(10) == 0 {
		return nil
	}
	return ptr.To(fmt.Sprintf("node-%d", c.r.IntN(7)))
}

func (c *fakeCluster) randomSlice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.pick("a", "b"), Name: fmt.Sprintf("slice-%d", c.r.IntN(8))},
	}
	s.Labels = map[string]string{}
	if c.r.IntN(8) > 0 {
		s.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("svc-%d", c.r.IntN(4))
	}
	if c.r.IntN(3) == 0 {
		s.Labels["service.kubernetes.io/headless"] = ""
	}
	s.AddressType = discoveryv1.AddressType(c.pick("IPv4", "IPv6"))
	for i := range c.r.IntN(5) {
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.0.%d", i)}, NodeName: c.nodeName(), Zone: ptr.To("z"),
		}
		switch c.r.IntN(4) {
		case 0:
			e.Conditions.Ready = ptr.To(false)
			e.Conditions.Terminating = ptr.To(true)
		case 1:
		default:
			e.Conditions.Ready = ptr.To(true)
		}
		if c.r.IntN(2) == 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
		}
		if c.r.IntN(2) == 0 {
			e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "p"}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(c.r.IntN(65535)))}}
	return s
}

func (c *fakeCluster) randomEndpoints() *corev1.Endpoints {
	e := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.pick("a", "b"), Name: fmt.Sprintf("svc-%d", c.r.IntN(4))},
	}
	for range c.r.IntN(3) {
		var subset corev1.EndpointSubset
		for i := range c.r.IntN(3) {
			subset.Addresses = append(subset.Addresses, corev1.EndpointAddress{
				IP: fmt.Sprintf("10.1.0.%d", i), NodeName: c.nodeName(),
			})
		}
		for i := range c.r.IntN(3) {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, corev1.EndpointAddress{
				IP: fmt.Sprintf("10.2.0.%d", i), NodeName: c.nodeName(),
			})
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			continue
		}
		subset.Ports = []corev1.EndpointPort{{Name: "http", Port: int32(c.r.IntN(65535))}}
		e.Subsets = append(e.Subsets, subset)
	}
	return e
}

func (c *fakeCluster) kubernetesAnnotations() map[string]string {
	switch c.r.IntN(5) {
	case 0:
		return nil
	case 1:
		return map[string]string{"superedge.io/local-endpoint": "not an address", "superedge.io/local-port": "51003"}
	case 2:
		return map[string]string{"superedge.io/local-endpoint": "fd00::1", "superedge.io/local-port": "51003"}
	default:
		return map[string]string{
			"superedge.io/local-endpoint": "169.254.20.11",
			"superedge.io/local-port":     strconv.Itoa(51000 + c.r.IntN(5)),
		}
	}
}

func (c *fakeCluster) randomKubernetesEndpoints() *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: c.kubernetesAnnotations()},
		Subsets: []corev1.EndpointSubset{
			{
				Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1", NodeName: c.nodeName()}},
				Ports:     []corev1.EndpointPort{{Name: "https", Port: 6443}},
			},
		},
	}
}

func (c *fakeCluster) randomKubernetesSlice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "kubernetes",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
	}
	if c.r.IntN(4) == 0 {
		s.Annotations = c.kubernetesAnnotations()
	}
	s.AddressType = discoveryv1.AddressTypeIPv4
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, NodeName: c.nodeName()}}
	s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(6443))}}
	return s
}

// expected is what a client with this selector must hold, with resourceVersions left out.
func (c *fakeCluster) expected(
	resource *history.Resource, selector oracleSelector,
) map[types.NamespacedName]runtime.Object {
	view := map[types.NamespacedName]runtime.Object{}
	add := func(o runtime.Object, values fields.Set) {
		o = o.DeepCopyObject()
		accessor, err := meta.Accessor(o)
		if err != nil {
			panic(err)
		}
		values["metadata.name"], values["metadata.namespace"] = accessor.GetName(), accessor.GetNamespace()
		if !selector.labels.Matches(labels.Set(accessor.GetLabels())) || !selector.fields.Matches(values) ||
			(selector.namespace != "" && selector.namespace != accessor.GetNamespace()) {
			return
		}
		accessor.SetManagedFields(nil)
		strip(o)
		view[types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}] = o
	}
	switch resource {
	case history.Nodes:
		if n := c.nodes["node-0"]; n != nil {
			add(n, fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)})
		}
	case history.Services:
		for _, o := range c.objects[resource] {
			svc := o.(*corev1.Service)
			add(svc, fields.Set{"spec.clusterIP": svc.Spec.ClusterIP, "spec.type": string(svc.Spec.Type)})
		}
	case history.EndpointSlices:
		for _, o := range c.objects[resource] {
			add(c.prunedSlice(o.(*discoveryv1.EndpointSlice).DeepCopy()), fields.Set{})
		}
	case history.Endpoints:
		for _, o := range c.objects[resource] {
			add(c.prunedEndpoints(o.(*corev1.Endpoints).DeepCopy()), fields.Set{})
		}
	}
	return view
}

// naiveEndpoint is an endpoint as the rule sees it.
type naiveEndpoint struct {
	node  *string
	ready bool
}

// alive reports whether an endpoint of the Service is not hidden as one on a dead node.
func (c *fakeCluster) alive(service types.NamespacedName, e naiveEndpoint) bool {
	if service == kubernetesName || e.node == nil || *e.node == "node-0" {
		return true
	}
	_, dead := c.dead[*e.node]
	return !dead
}

// governs is the rule of DESIGN.md, written as it reads. governed is false where everything passes untouched.
func (c *fakeCluster) governs(
	service types.NamespacedName, all []naiveEndpoint,
) (governed bool, keep func(naiveEndpoint) bool) {
	nothing := func(naiveEndpoint) bool { return false }
	o := c.objects[history.Services][service]
	if o == nil {
		return true, nothing
	}
	var keys []string
	annotations := o.(*corev1.Service).Annotations
	annotation, ok := annotations["topologyKeys"]
	openYurt, theirs := annotations["openyurt.io/topologyKeys"]
	switch {
	case ok:
		if err := json.Unmarshal([]byte(annotation), &keys); err != nil || keys == nil {
			return true, nothing
		}
	case !theirs || openYurt == "":
		return false, nil
	case openYurt == "kubernetes.io/hostname":
		keys = []string{"kubernetes.io/hostname"}
	case openYurt == "kubernetes.io/zone":
		keys = []string{"topology.kubernetes.io/zone"}
	case openYurt == "openyurt.io/nodepool":
		keys = []string{"apps.openyurt.io/nodepool"}
	default:
		return true, nothing
	}
	if i := slices.Index(keys, "*"); i >= 0 && i != len(keys)-1 {
		return true, nothing
	}
	if len(keys) == 0 {
		return false, nil
	}
	matcher := func(key string) func(naiveEndpoint) bool {
		return func(e naiveEndpoint) bool {
			if key == "*" {
				return true
			}
			here, there := c.nodes["node-0"], (*corev1.Node)(nil)
			if e.node != nil {
				there = c.nodes[*e.node]
			}
			if here == nil || there == nil {
				return false
			}
			a, ok1 := here.Labels[key]
			b, ok2 := there.Labels[key]
			return ok1 && ok2 && a == b
		}
	}
	if len(keys) == 1 {
		return true, matcher(keys[0])
	}
	for _, key := range keys {
		for _, e := range all {
			if e.ready && c.alive(service, e) && matcher(key)(e) {
				return true, matcher(key)
			}
		}
	}
	if keys[len(keys)-1] == "*" {
		return true, matcher("*")
	}
	return true, nothing
}

func sliceEndpoint(e discoveryv1.Endpoint) naiveEndpoint {
	return naiveEndpoint{node: e.NodeName, ready: e.Conditions.Ready == nil || *e.Conditions.Ready}
}

func (c *fakeCluster) local(own map[string]string) (ip, port string, ok bool) {
	annotations := []map[string]string{own}
	if o := c.objects[history.Endpoints][kubernetesName]; o != nil {
		annotations = append(annotations, o.(*corev1.Endpoints).Annotations)
	}
	for _, a := range annotations {
		if ip := a["superedge.io/local-endpoint"]; ip != "" && ip != "not an address" {
			return ip, a["superedge.io/local-port"], true
		}
	}
	return "", "", false
}

func (c *fakeCluster) prunedSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if service == kubernetesName {
		if ip, port, ok := c.local(s.Annotations); ok {
			number, _ := strconv.Atoi(port)
			s.AddressType = discoveryv1.AddressTypeIPv4
			if strings.Contains(ip, ":") {
				s.AddressType = discoveryv1.AddressTypeIPv6
			}
			s.Endpoints = []discoveryv1.Endpoint{
				{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}},
			}
			s.Ports = []discoveryv1.EndpointPort{
				{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(int32(number))},
			}
			return s
		}
	}
	if service.Name == "" {
		return s
	}
	var all []naiveEndpoint
	for _, o := range c.objects[history.EndpointSlices] {
		if other := o.(*discoveryv1.EndpointSlice); other.Namespace == service.Namespace &&
			other.Labels[discoveryv1.LabelServiceName] == service.Name {
			for _, e := range other.Endpoints {
				all = append(all, sliceEndpoint(e))
			}
		}
	}
	governed, keep := c.governs(service, all)
	kept := []discoveryv1.Endpoint(nil)
	for _, e := range s.Endpoints {
		if !c.alive(service, sliceEndpoint(e)) {
			continue
		}
		if governed {
			if !keep(sliceEndpoint(e)) {
				continue
			}
			e.Hints = nil
		}
		kept = append(kept, e)
	}
	s.Endpoints = kept
	return s
}

func (c *fakeCluster) prunedEndpoints(e *corev1.Endpoints) *corev1.Endpoints {
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	if name == kubernetesName {
		if ip, port, ok := c.local(e.Annotations); ok {
			number, _ := strconv.Atoi(port)
			e.Subsets = []corev1.EndpointSubset{
				{
					Addresses: []corev1.EndpointAddress{{IP: ip}},
					Ports: []corev1.EndpointPort{
						{Name: "https", Port: int32(number), Protocol: corev1.ProtocolTCP},
					},
				},
			}
			return e
		}
	}
	var all []naiveEndpoint
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			all = append(all, naiveEndpoint{a.NodeName, true})
		}
		for _, a := range s.NotReadyAddresses {
			all = append(all, naiveEndpoint{a.NodeName, false})
		}
	}
	governed, keep := c.governs(name, all)
	var subsets []corev1.EndpointSubset
	for _, s := range e.Subsets {
		filter := func(addresses []corev1.EndpointAddress, ready bool) (kept []corev1.EndpointAddress) {
			for _, a := range addresses {
				endpoint := naiveEndpoint{a.NodeName, ready}
				if c.alive(name, endpoint) && (!governed || keep(endpoint)) {
					kept = append(kept, a)
				}
			}
			return kept
		}
		s.Addresses, s.NotReadyAddresses = filter(s.Addresses, true), filter(s.NotReadyAddresses, false)
		if len(s.Addresses)+len(s.NotReadyAddresses) > 0 {
			subsets = append(subsets, s)
		}
	}
	e.Subsets = subsets
	return e
}

// ---- the clients

type oracleSelector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// oracleClient lists and watches one resource until the end, in the way that its random numbers say, and holds what
// it was told.
type oracleClient struct {
	t        *testing.T
	r        *rand.Rand
	url      string
	resource *history.Resource
	selector oracleSelector
	protobuf bool
	// watchList starts watches with sendInitialEvents instead of listing.
	watchList bool
	// everyEvent is set where the log has every event, so that each must differ from the one before.
	everyEvent bool

	mu   sync.Mutex
	held map[types.NamespacedName]runtime.Object
	rv   string
}

func newOracleClient(t *testing.T, r *rand.Rand, base string) *oracleClient {
	t.Helper()
	c := &oracleClient{t: t, r: r, protobuf: r.IntN(2) == 0, watchList: r.IntN(2) == 0}
	parse := func(l, f string) oracleSelector {
		parsed, err := labels.Parse(l)
		if err != nil {
			panic(err)
		}
		return oracleSelector{labels: parsed, fields: fields.ParseSelectorOrDie(f)}
	}
	switch r.IntN(8) {
	case 0:
		c.resource, c.selector = history.Nodes, parse("", "metadata.name=node-0")
	case 1:
		c.resource, c.selector = history.Services, parse("!service.kubernetes.io/service-proxy-name",
			"spec.clusterIP!=None")
	case 2:
		c.resource, c.selector = history.Services, parse("", "")
	case 3:
		c.resource, c.selector = history.Endpoints, parse("", "")
	case 4:
		c.resource, c.selector = history.EndpointSlices, parse("", "")
		c.selector.namespace = "a"
	case 5:
		c.resource, c.selector = history.EndpointSlices, parse("kubernetes.io/service-name=svc-1", "")
	default:
		c.resource, c.selector = history.EndpointSlices, parse("!service.kubernetes.io/headless", "")
	}
	prefix := "/apis/" + c.resource.GroupVersion().String()
	if c.resource.Group == "" {
		prefix = "/api/v1"
	}
	if c.selector.namespace != "" {
		prefix += "/namespaces/" + c.selector.namespace
	}
	c.url = base + prefix + "/" + c.resource.Resource
	return c
}

func (c *oracleClient) String() string {
	return fmt.Sprintf("%s labels=%q fields=%q namespace=%q protobuf=%v watchList=%v",
		c.resource.Resource, c.selector.labels, c.selector.fields, c.selector.namespace, c.protobuf, c.watchList)
}

// errRelist: the client was answered 410 or 504, and has to list again.
var errRelist = errors.New("list again")

func (c *oracleClient) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.follow(ctx)
		if errors.Is(err, errRelist) {
			c.mu.Lock()
			c.rv = ""
			c.mu.Unlock()
		} else if err != nil && ctx.Err() == nil {
			c.t.Errorf("client %s: %v", c, err)
			return
		}
		if c.r.IntN(4) == 0 {
			// Away for a while: more happens than the log may hold.
			select {
			case <-ctx.Done():
			case <-time.After(time.Duration(c.r.IntN(30)) * time.Millisecond):
			}
		}
	}
}

// follow lists if it must, then watches until the stream ends or the client feels like ending it.
func (c *oracleClient) follow(ctx context.Context) error {
	query := url.Values{"watch": {"true"}, "timeoutSeconds": {"1"}}
	if c.r.IntN(2) == 0 {
		query.Set("allowWatchBookmarks", "true")
	}
	c.mu.Lock()
	rv := c.rv
	c.mu.Unlock()
	initial := false
	switch {
	case rv != "":
		query.Set("resourceVersion", rv)
	case c.watchList:
		query.Set("sendInitialEvents", "true")
		query.Set("resourceVersionMatch", "NotOlderThan")
		query.Set("allowWatchBookmarks", "true")
		initial = true
	default:
		listed, err := c.list(ctx)
		if err != nil {
			return err
		}
		query.Set("resourceVersion", listed)
	}
	patience := time.Duration(1+c.r.IntN(200)) * time.Millisecond
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	response, err := c.get(ctx, query)
	if err != nil || response == nil {
		return c.unlessDone(ctx, err)
	}
	defer response.Body.Close()
	return c.unlessDone(ctx, c.read(response.Body, initial))
}

func (c *oracleClient) unlessDone(ctx context.Context, err error) error {
	if errors.Is(err, errRelist) || ctx.Err() == nil {
		return err
	}
	return nil
}

// get returns nil for a server that is not ready yet.
func (c *oracleClient) get(ctx context.Context, query url.Values) (*http.Response, error) {
	query.Set("labelSelector", c.selector.labels.String())
	query.Set("fieldSelector", c.selector.fields.String())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	if c.protobuf {
		request.Header.Set("Accept", "application/vnd.kubernetes.protobuf, */*")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	switch response.StatusCode {
	case http.StatusOK:
		return response, nil
	case http.StatusServiceUnavailable:
		err = nil
	case http.StatusGone, http.StatusGatewayTimeout:
		err = errRelist
	default:
		body, _ := io.ReadAll(response.Body)
		err = fmt.Errorf("%s: %s: %s", request.URL, response.Status, body)
	}
	response.Body.Close()
	return nil, err
}

// list takes the state, in pages if it feels like it, and returns its revision.
func (c *oracleClient) list(ctx context.Context) (string, error) {
	query := url.Values{}
	if c.r.IntN(2) == 0 {
		query.Set("resourceVersion", "0")
	}
	if c.r.IntN(2) == 0 {
		query.Set("limit", strconv.Itoa(1+c.r.IntN(4)))
	}
	listed := map[types.NamespacedName]runtime.Object{}
	first := ""
	for {
		response, err := c.get(ctx, query)
		if err != nil {
			return "", err
		}
		if response == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return "", err
		}
		decoded := decode(body)
		page, err := meta.ListAccessor(decoded)
		if err != nil {
			return "", err
		}
		if first == "" {
			first = page.GetResourceVersion()
		} else if first != page.GetResourceVersion() {
			return "", fmt.Errorf("a page of the list at %s has resourceVersion %s", first, page.GetResourceVersion())
		}
		if err := meta.EachListItem(decoded, func(o runtime.Object) error {
			name, _, stripped := strip(o)
			if listed[name] != nil {
				return fmt.Errorf("%s is in the list twice", name)
			}
			listed[name] = stripped
			return nil
		}); err != nil {
			return "", err
		}
		if page.GetContinue() == "" {
			break
		}
		query.Del("resourceVersion")
		query.Set("continue", page.GetContinue())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.rv = listed, first
	return first, nil
}

// read takes events until the stream ends.
func (c *oracleClient) read(body io.Reader, initial bool) error {
	fresh := map[types.NamespacedName]runtime.Object{}
	last := uint64(0)
	reader := bufio.NewReader(body)
	for {
		var event metav1.WatchEvent
		if c.protobuf {
			var length [4]byte
			if _, err := io.ReadFull(reader, length[:]); err != nil {
				return ignoreEOF(err)
			}
			frame := make([]byte, binary.BigEndian.Uint32(length[:]))
			if _, err := io.ReadFull(reader, frame); err != nil {
				return err
			}
			if err := event.Unmarshal(frame); err != nil {
				return err
			}
		} else {
			line, err := reader.ReadBytes('\n')
			if err != nil {
				return ignoreEOF(err)
			}
			if err := json.Unmarshal(line, &event); err != nil {
				return err
			}
		}
		decoded := decode(event.Object.Raw)
		if event.Type == "ERROR" {
			if status := decoded.(*metav1.Status); status.Code != http.StatusGone {
				return fmt.Errorf("error event %+v", status)
			}
			return errRelist
		}
		name, rv, o := strip(decoded)
		number, err := strconv.ParseUint(rv, 10, 64)
		if err != nil {
			return err
		}
		if event.Type == "BOOKMARK" {
			if got, want := fmt.Sprintf("%T", o), fmt.Sprintf("%T", c.resource.New()); got != want {
				return fmt.Errorf("a bookmark of type %s, want %s", got, want)
			}
			accessor, err := meta.Accessor(o)
			if err != nil {
				return err
			}
			if ends := accessor.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"; ends != initial {
				return fmt.Errorf("a bookmark that ends the initial events: %v, while they are being sent: %v",
					ends, initial)
			}
		}
		c.mu.Lock()
		err = c.take(event.Type, name, o, number, &last, initial, fresh)
		if event.Type == "BOOKMARK" && initial {
			c.held, initial = fresh, false
		}
		if !initial && err == nil {
			c.rv = rv
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// take checks one event against what came before, and applies it.
func (c *oracleClient) take(
	eventType string, name types.NamespacedName, o runtime.Object, rv uint64, last *uint64, initial bool,
	fresh map[types.NamespacedName]runtime.Object,
) error {
	if initial && eventType != "BOOKMARK" {
		if eventType != "ADDED" || fresh[name] != nil {
			return fmt.Errorf("%s of %s among the initial events", eventType, name)
		}
		fresh[name] = o
		return nil
	}
	if rv < *last || (rv == *last && eventType != "BOOKMARK") {
		return fmt.Errorf("%s of %s has revision %d after %d", eventType, name, rv, *last)
	}
	*last = rv
	_, there := c.held[name]
	switch eventType {
	case "BOOKMARK":
	case "ADDED":
		if there {
			return fmt.Errorf("ADDED %s, which is there (revision %d)", name, rv)
		}
		c.held[name] = o
	case "MODIFIED":
		if !there {
			return fmt.Errorf("MODIFIED %s, which is not there (revision %d)", name, rv)
		}
		if c.everyEvent && apiequality.Semantic.DeepEqual(c.held[name], o) {
			return fmt.Errorf("MODIFIED %s, and nothing that this viewer has a use for is different (revision %d)",
				name, rv)
		}
		c.held[name] = o
	case "DELETED":
		if !there {
			return fmt.Errorf("DELETED %s, which is not there (revision %d)", name, rv)
		}
		delete(c.held, name)
	default:
		return fmt.Errorf("event type %q", eventType)
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// waitFor waits until the client holds what it should, and returns the difference if it never does.
func (c *oracleClient) waitFor(want map[types.NamespacedName]runtime.Object, patience time.Duration) string {
	deadline := time.Now().Add(patience)
	for {
		c.mu.Lock()
		got := maps.Clone(c.held)
		c.mu.Unlock()
		if got != nil && apiequality.Semantic.DeepEqual(want, got) {
			return ""
		}
		if time.Now().After(deadline) {
			return cmp.Diff(want, got)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var oracleDecoder = func() runtime.Decoder {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(s).UniversalDeserializer()
}()

func decode(body []byte) runtime.Object {
	o, _, err := oracleDecoder.Decode(body, nil, nil)
	if err != nil {
		panic(fmt.Sprintf("%v: %q", err, body))
	}
	return o
}

// strip takes off what differs between the wrapper and the upstream, and what alone is no event.
func strip(o runtime.Object) (types.NamespacedName, string, runtime.Object) {
	accessor, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	rv := accessor.GetResourceVersion()
	accessor.SetResourceVersion("")
	accessor.SetGeneration(0)
	if annotations := accessor.GetAnnotations(); annotations != nil {
		delete(annotations, corev1.EndpointsLastChangeTriggerTime)
		if len(annotations) == 0 {
			accessor.SetAnnotations(nil)
		}
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}, rv, o
}
