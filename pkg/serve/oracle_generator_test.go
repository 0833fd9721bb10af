package serve_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// generator makes random changes to the model, and delivers them to the facts as reflectors would: in order within a
// feed, in any order between feeds, with new lists in between.
type generator struct {
	random *rand.Rand
	model  *model
	store  *storagetest.Node
	// version is the upstream's last resourceVersion.
	version int
	// holds is set while the facts hold back what they are given.
	holds bool
	feeds feeds
}

// feeds are the upstream's watches, one for each input of the facts, the health service, and what nodes say of their
// pods.
type feeds struct {
	nodes, ownNode, services, slices, endpoints, kubernetesEndpoints, deadNodes, livePods *feed
}

func (f *feeds) all() []*feed {
	return []*feed{
		f.nodes, f.services, f.slices, f.endpoints, f.ownNode, f.kubernetesEndpoints, f.deadNodes, f.livePods,
	}
}

// of is the feed that carries a resource.
func (f *feeds) of(resource *served.Resource) *feed {
	switch resource {
	case served.Services:
		return f.services
	case served.EndpointSlices:
		return f.slices
	default:
		return f.endpoints
	}
}

// feed is one source: what the upstream has sent and the facts have not taken yet.
type feed struct {
	// input is nil for the health service, and for what nodes say of their pods.
	input *facts.Input
	// queue is what the facts have not taken yet, the oldest first.
	queue []func()
	// state reads the whole state as it is now; what it returns hands it over.
	state func() (deliver func())
	begun bool
}

// inputFeed is the feed of an input whose whole state is that of list.
func inputFeed(input *facts.Input, list func() []*wire.Object) *feed {
	return &feed{input: input, state: func() func() {
		all := list()
		return func() { input.Replace(all) }
	}}
}

func (f *feed) apply(o *wire.Object) { f.queue = append(f.queue, func() { f.input.Apply(o) }) }

func (f *feed) remove(name types.NamespacedName) {
	f.queue = append(f.queue, func() { f.input.Remove(name.Namespace, name.Name) })
}

// relist replaces whatever is under way by the complete state, as after a 410.
func (f *feed) relist() {
	f.begun = true
	f.queue = []func(){f.state()}
}

// deliver lets the facts take the oldest change.
func (f *feed) deliver() {
	if !f.begun {
		f.relist()
	}
	if len(f.queue) > 0 {
		f.queue[0]()
		f.queue = f.queue[1:]
	}
}

// deliverAll lets the facts take everything.
func (f *feed) deliverAll() {
	if !f.begun {
		f.relist()
	}
	for _, take := range f.queue {
		take()
	}
	f.queue = nil
}

func newGenerator(random *rand.Rand, store *storagetest.Node) *generator {
	g := &generator{random: random, model: newModel(), store: store}
	allOf := func(resource *served.Resource) func() []*wire.Object {
		return func() (all []*wire.Object) {
			for _, o := range g.model.objects[resource] {
				all = append(all, wiretest.Object(o))
			}
			return all
		}
	}
	g.feeds = feeds{
		nodes: inputFeed(store.NodeLabels(), func() (all []*wire.Object) {
			for _, n := range g.model.nodes {
				all = append(all, metadataOf(n))
			}
			return all
		}),
		ownNode: inputFeed(store.OwnNode(), func() []*wire.Object {
			if n := g.model.nodes[viewer]; n != nil {
				return []*wire.Object{wiretest.Object(n)}
			}
			return nil
		}),
		services:  inputFeed(store.Services(), allOf(served.Services)),
		slices:    inputFeed(store.EndpointSlices(), allOf(served.EndpointSlices)),
		endpoints: inputFeed(store.Endpoints(), allOf(served.Endpoints)),
		kubernetesEndpoints: inputFeed(store.KubernetesEndpoints(), func() []*wire.Object {
			if o := g.model.objects[served.Endpoints][kubernetesName]; o != nil {
				return []*wire.Object{wiretest.Object(o)}
			}
			return nil
		}),
		deadNodes: &feed{state: g.takeDead},
		livePods:  &feed{state: g.takeAllLive},
	}
	return g
}

// metadataOf is what the upstream sends of other nodes.
func metadataOf(n *corev1.Node) *wire.Object {
	return wiretest.Object(&metav1.PartialObjectMetadata{ObjectMeta: n.ObjectMeta})
}

// takeDead reads the nodes that are dead now; what it returns hands them over.
func (g *generator) takeDead() func() {
	dead := g.model.dead
	return func() { g.store.SetDoubted(facts.Dead, dead) }
}

// takeLive reads which pods a node runs now; what it returns hands them over.
func (g *generator) takeLive(node string) func() {
	live := g.model.live[node]
	return func() { g.store.SetLivePods(node, live) }
}

// takeAllLive is takeLive of all nodes.
func (g *generator) takeAllLive() func() {
	all := maps.Clone(g.model.live)
	return func() {
		for n := range 7 {
			node := fmt.Sprintf("node-%d", n)
			g.store.SetLivePods(node, all[node])
		}
	}
}

// deliver lets the facts take one change of a random feed. Now and then what comes is held back for a while, as after
// an outage.
func (g *generator) deliver() {
	switch n := g.random.IntN(80); {
	case n == 0 && !g.holds:
		g.store.Hold()
		g.holds = true
	case n < 4 && g.holds:
		g.store.Release()
		g.holds = false
	}
	g.anyFeed().deliver()
}

func (g *generator) anyFeed() *feed {
	all := g.feeds.all()
	return all[g.random.IntN(len(all))]
}

// rest delivers everything.
func (g *generator) rest() {
	all := g.feeds.all()
	for _, i := range g.random.Perm(len(all)) {
		all[i].deliverAll()
	}
	if g.holds {
		g.store.Release()
		g.holds = false
	}
}

// relist lists everything again.
func (g *generator) relist() {
	for _, feed := range g.feeds.all() {
		feed.relist()
	}
}

func (g *generator) nextVersion() string {
	g.version++
	return strconv.Itoa(g.version)
}

// change makes one random change and queues it in the feeds that carry it.
func (g *generator) change() {
	switch n := g.random.IntN(24); {
	case n >= 22:
		g.changeLive()
	case n >= 20:
		g.changeDead()
	case n < 4:
		g.changeNode()
	case n < 8:
		g.changeObject(served.Services, g.randomService())
	case n < 9:
		g.changeObject(served.Endpoints, g.randomKubernetesEndpoints())
	case n < 10:
		g.changeObject(served.EndpointSlices, g.randomKubernetesSlice())
	case n < 12:
		g.changeObject(served.Endpoints, g.randomEndpoints())
	default:
		g.changeObject(served.EndpointSlices, g.randomSlice())
	}
	if g.random.IntN(60) == 0 {
		g.anyFeed().relist()
	}
}

// changeDead kills or revives some nodes, or revives all, as when the health service fails. It may name this
// node, and nodes that are not there.
func (g *generator) changeDead() {
	dead := maps.Clone(g.model.dead)
	if dead == nil || g.random.IntN(4) == 0 {
		dead = map[string]struct{}{}
	}
	for range g.random.IntN(3) {
		name := fmt.Sprintf("node-%d", g.random.IntN(7))
		if _, was := dead[name]; was {
			delete(dead, name)
		} else {
			dead[name] = struct{}{}
		}
	}
	g.model.dead = dead
	g.feeds.deadNodes.queue = append(g.feeds.deadNodes.queue, g.takeDead())
}

// changeLive has a node say which pods it runs, or say nothing any more. It may be a node that is not there.
func (g *generator) changeLive() {
	node := fmt.Sprintf("node-%d", g.random.IntN(7))
	defer func() { g.feeds.livePods.queue = append(g.feeds.livePods.queue, g.takeLive(node)) }()
	if g.random.IntN(3) == 0 {
		delete(g.model.live, node)
		return
	}
	live := &facts.LivePods{AsOf: time.Unix(int64(g.version), 0), Pods: map[facts.PodKey]facts.LivePod{}}
	for range g.random.IntN(6) {
		pod := facts.LivePod{Serving: g.random.IntN(3) > 0}
		for range g.random.IntN(3) {
			pod.Addresses = append(pod.Addresses, netip.MustParseAddr(g.pick("10.1.0.0", "10.1.0.9", "fd00::9")))
		}
		live.Pods[g.randomPod(true)] = pod
	}
	if g.random.IntN(3) == 0 {
		live.About = map[facts.PodKey]struct{}{}
		for range g.random.IntN(6) {
			live.About[g.randomPod(false)] = struct{}{}
		}
	}
	g.model.live[node] = live
}

// randomPod is one of a few pods, perhaps a static one, which has no UID.
func (g *generator) randomPod(orStatic bool) facts.PodKey {
	pod := facts.PodKey{Namespace: g.pick("a", "b"), Name: g.pick("p0", "p1"), UID: g.pick("u0", "u1")}
	if orStatic && g.random.IntN(4) == 0 {
		pod.UID = ""
	}
	return pod
}

// target is what an endpoint is of: a pod mostly, which may lack what identifies it.
func (g *generator) target(namespace string) *corev1.ObjectReference {
	pod := g.randomPod(true)
	ref := &corev1.ObjectReference{
		Kind: "Pod", Namespace: g.pick(namespace, namespace, ""), Name: pod.Name, UID: types.UID(pod.UID),
	}
	switch g.random.IntN(8) {
	case 0:
		ref.Kind = "Node"
	case 1, 2:
		return nil
	}
	return ref
}

// changeNode makes, relabels or deletes a node.
func (g *generator) changeNode() {
	name := types.NamespacedName{Name: fmt.Sprintf("node-%d", g.random.IntN(6))}
	if g.random.IntN(8) == 0 {
		if g.model.nodes[name.Name] == nil {
			return
		}
		delete(g.model.nodes, name.Name)
		g.feeds.nodes.remove(name)
		if name.Name == viewer {
			g.feeds.ownNode.remove(name)
		}
		return
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name.Name, UID: types.UID(name.Name), ResourceVersion: g.nextVersion(), Labels: map[string]string{},
	}}
	for _, key := range []string{"zone", "region", "rack", "topology.kubernetes.io/zone", "apps.openyurt.io/nodepool"} {
		if g.random.IntN(5) > 0 {
			n.Labels[key] = fmt.Sprintf("v%d", g.random.IntN(2))
		}
	}
	n.Labels["kubernetes.io/hostname"] = name.Name
	n.Spec.Unschedulable = g.random.IntN(2) == 0
	g.model.nodes[name.Name] = n
	g.feeds.nodes.apply(metadataOf(n))
	if name.Name == viewer {
		g.feeds.ownNode.apply(wiretest.Object(n))
	}
}

// changeObject makes an object what it is now, changes what is there of the same name, or deletes it.
func (g *generator) changeObject(resource *served.Resource, o served.Typed) {
	name := nameOf(o)
	carriers := []*feed{g.feeds.of(resource)}
	if resource == served.Endpoints && name == kubernetesName {
		carriers = append(carriers, g.feeds.kubernetesEndpoints)
	}
	before := g.model.objects[resource][name]
	if before != nil && g.random.IntN(6) == 0 {
		delete(g.model.objects[resource], name)
		for _, f := range carriers {
			f.remove(name)
		}
		return
	}
	if before != nil && g.random.IntN(5) == 0 {
		o = before.DeepCopyObject().(served.Typed) // what no client has a use for changes, and nothing else
	}
	g.stamp(resource, o, before)
	g.model.objects[resource][name] = o
	for _, f := range carriers {
		f.apply(wiretest.Object(o))
	}
}

// stamp gives an object what the API server and controllers add to it at every write.
func (g *generator) stamp(resource *served.Resource, o, before served.Typed) {
	m := metaOf(o)
	m.SetResourceVersion(g.nextVersion())
	m.SetGeneration(int64(g.version))
	m.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "m", Operation: "Update"}})
	m.SetUID(types.UID(m.GetResourceVersion()))
	if before != nil {
		m.SetUID(metaOf(before).GetUID())
	}
	if resource != served.Services {
		annotations := maps.Clone(m.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[corev1.EndpointsLastChangeTriggerTime] = time.Unix(int64(g.version), 0).Format(time.RFC3339)
		m.SetAnnotations(annotations)
	}
}

func metaOf(o served.Typed) metav1.Object {
	m, err := meta.Accessor(o)
	if err != nil {
		panic(err)
	}
	return m
}

func nameOf(o served.Typed) types.NamespacedName {
	return types.NamespacedName{Namespace: metaOf(o).GetNamespace(), Name: metaOf(o).GetName()}
}

func (g *generator) pick(values ...string) string { return values[g.random.IntN(len(values))] }

func (g *generator) randomService() *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: g.pick("a", "b"), Name: fmt.Sprintf("svc-%d", g.random.IntN(3)),
	}}
	if g.random.IntN(8) == 0 {
		svc.Namespace, svc.Name = kubernetesName.Namespace, kubernetesName.Name
	}
	svc.Spec.ClusterIP = g.pick("None", "10.0.0.1", "10.0.0.2")
	svc.Spec.Type = corev1.ServiceTypeClusterIP
	svc.Spec.PublishNotReadyAddresses = g.random.IntN(4) == 0
	if g.random.IntN(3) == 0 {
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	}
	if g.random.IntN(5) > 0 {
		svc.Annotations = map[string]string{"topologyKeys": g.pick(
			`["zone"]`, `["zone"]`, `["zone","region"]`, `["rack","zone"]`, `["rack","zone","*"]`,
			`["kubernetes.io/hostname","region"]`, `[]`, `["*"]`, `not json`, `["*","zone"]`, `["missing"]`, `null`)}
	}
	if g.random.IntN(4) == 0 { // alone on one Service in twenty, with the other on more
		if svc.Annotations == nil || g.random.IntN(2) == 0 {
			svc.Annotations = map[string]string{}
		}
		svc.Annotations["openyurt.io/topologyKeys"] = g.pick(
			"kubernetes.io/hostname", "kubernetes.io/zone", "openyurt.io/nodepool", "", "zone")
	}
	return svc
}

// nodeName is the name of a node, perhaps of one that is not there, or of none.
func (g *generator) nodeName() *string {
	if g.random.IntN(10) == 0 {
		return nil
	}
	return ptr.To(fmt.Sprintf("node-%d", g.random.IntN(7)))
}

func (g *generator) randomSlice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: g.pick("a", "b"), Name: fmt.Sprintf("slice-%d", g.random.IntN(8)), Labels: map[string]string{},
	}}
	if g.random.IntN(8) > 0 {
		s.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("svc-%d", g.random.IntN(4))
	}
	if g.random.IntN(3) == 0 {
		s.Labels["service.kubernetes.io/headless"] = ""
	}
	s.AddressType = discoveryv1.AddressType(g.pick("IPv4", "IPv6"))
	for i := range g.random.IntN(5) {
		e := discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.0.%d", i)}, NodeName: g.nodeName(), Zone: ptr.To("z"),
			TargetRef: g.target(s.Namespace),
		}
		if s.AddressType == discoveryv1.AddressTypeIPv6 {
			e.Addresses = []string{fmt.Sprintf("fd00::%d", i)}
		}
		switch g.random.IntN(6) {
		case 0:
			e.Conditions.Ready = ptr.To(false)
			e.Conditions.Terminating = ptr.To(true)
		case 1:
		case 2:
			e.Conditions.Ready = ptr.To(g.random.IntN(2) == 0)
			e.Conditions.Serving = ptr.To(g.random.IntN(2) == 0)
			e.Conditions.Terminating = ptr.To(g.random.IntN(2) == 0)
		default:
			e.Conditions.Ready = ptr.To(true)
		}
		if g.random.IntN(2) == 0 {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z"}}}
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(g.random.IntN(65535)))}}
	return s
}

func (g *generator) randomEndpoints() *corev1.Endpoints {
	e := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: g.pick("a", "b"), Name: fmt.Sprintf("svc-%d", g.random.IntN(4)),
	}}
	for range g.random.IntN(3) {
		var subset corev1.EndpointSubset
		for i := range g.random.IntN(3) {
			address := corev1.EndpointAddress{
				IP: fmt.Sprintf("10.1.0.%d", i), NodeName: g.nodeName(), TargetRef: g.target(e.Namespace),
			}
			subset.Addresses = append(subset.Addresses, address)
		}
		for i := range g.random.IntN(3) {
			address := corev1.EndpointAddress{
				IP: fmt.Sprintf("10.2.0.%d", i), NodeName: g.nodeName(), TargetRef: g.target(e.Namespace),
			}
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			continue
		}
		subset.Ports = []corev1.EndpointPort{{Name: "http", Port: int32(g.random.IntN(65535))}}
		e.Subsets = append(e.Subsets, subset)
	}
	return e
}

// kubernetesAnnotations are those by which default/kubernetes is rewritten, good and bad ones.
func (g *generator) kubernetesAnnotations() map[string]string {
	switch g.random.IntN(5) {
	case 0:
		return nil
	case 1:
		return map[string]string{"superedge.io/local-endpoint": "not an address", "superedge.io/local-port": "51003"}
	case 2:
		return map[string]string{"superedge.io/local-endpoint": "fd00::1", "superedge.io/local-port": "51003"}
	default:
		port := strconv.Itoa(51000 + g.random.IntN(5))
		return map[string]string{"superedge.io/local-endpoint": "169.254.20.11", "superedge.io/local-port": port}
	}
}

func (g *generator) randomKubernetesEndpoints() *corev1.Endpoints {
	return &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", Annotations: g.kubernetesAnnotations()},
		Subsets: []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: "192.0.2.1", NodeName: g.nodeName()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: 6443}},
		}},
	}
}

func (g *generator) randomKubernetesSlice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
	}}
	if g.random.IntN(4) == 0 {
		s.Annotations = g.kubernetesAnnotations()
	}
	s.AddressType = discoveryv1.AddressTypeIPv4
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}, NodeName: g.nodeName()}}
	s.Ports = []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(6443))}}
	return s
}
