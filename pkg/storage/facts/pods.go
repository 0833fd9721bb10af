package facts

import (
	"bytes"
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// PodKey identifies a pod.
type PodKey struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID is "" for a static pod, because its UID on the node differs from that of its mirror pod in the API.
	UID string `json:"uid,omitempty"`
}

// Compare orders keys.
func (k PodKey) Compare(other PodKey) int {
	return cmp.Or(cmp.Compare(k.Namespace, other.Namespace), cmp.Compare(k.Name, other.Name),
		cmp.Compare(k.UID, other.UID))
}

// LivePod is a pod as its node reports it.
type LivePod struct {
	// Addresses are the pod's addresses. A pod without any has the address of its node.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Former are the known former addresses of the pod in the network of Addresses: endpoints with these are moved. An
	// endpoint with an address of another network is kept. If Former is empty, all endpoints are moved.
	Former []netip.Addr `json:"former,omitempty"`
	// Serving says that the pod is expected to answer.
	Serving bool `json:"serving,omitempty"`
	// Suspected says that the pod may not answer although it is Serving: its endpoints are hidden like those on silent
	// nodes.
	Suspected bool `json:"suspected,omitempty"`
	// Idle names the Services, in the pod's namespace, whose endpoint was not ready while the pod was. Such an endpoint
	// keeps its conditions while the pod is Serving.
	Idle []string `json:"idle,omitempty"`
	// Why is a clause with the reason for this state. It does not affect what is shown.
	Why string `json:"why,omitempty"`
}

// CanBePods reports whether a pod can have an address: Kubernetes allows no others in endpoints.
func CanBePods(address netip.Addr) bool {
	return address.IsValid() && address.Zone() == "" && !address.IsUnspecified() && !address.IsLoopback() &&
		!address.IsMulticast() && !address.IsLinkLocalUnicast() &&
		address != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// LivePods are the pods of one node, as the node itself reports them. They must not be changed after they were passed
// to SetLivePods.
type LivePods struct {
	// AsOf is when the node ran these pods.
	AsOf time.Time
	// Pods are all pods that the node runs.
	Pods map[PodKey]LivePod
	// About has the pods whose endpoints are corrected; nil for all pods that endpoints on the node name.
	About map[PodKey]struct{}
}

// FindPod returns the pod of an endpoint, and its key. A static pod is known without its UID.
func FindPod[T any](pods map[PodKey]T, pod PodKey) (key PodKey, found T, ok bool) {
	if found, ok = pods[pod]; !ok {
		pod.UID = ""
		found, ok = pods[pod]
	}
	return pod, found, ok
}

// equal reports whether both, which may be nil, correct endpoints in the same way.
func (l *LivePods) equal(other *LivePods) bool {
	if l == nil || other == nil {
		return l == other
	}
	return (l.About == nil) == (other.About == nil) && maps.Equal(l.About, other.About) &&
		maps.EqualFunc(l.Pods, other.Pods, func(a, b LivePod) bool {
			return a.Serving == b.Serving && a.Suspected == b.Suspected && slices.Equal(a.Addresses, b.Addresses) &&
				slices.Equal(a.Former, b.Former) && slices.Equal(a.Idle, b.Idle)
		})
}

// suspicious reports whether any pod is suspected whose endpoints are corrected.
func (l *LivePods) suspicious() bool {
	if l != nil {
		for _, pod := range l.Pods {
			if pod.Suspected {
				return true
			}
		}
	}
	return false
}

// report returns the report of an endpoint's node on the endpoint's pod, and whether the node runs it. about is false
// if the upstream's state applies.
func (f *Facts) report(namespace string, e wire.Endpoint) (pod LivePod, runs, about bool) {
	live := f.livePods[string(e.NodeName)]
	key, ok := podOf(namespace, e)
	if live == nil || !ok {
		return LivePod{}, false, false
	}
	if live.About != nil {
		if _, about = live.About[key]; !about {
			return LivePod{}, false, false
		}
	}
	_, pod, runs = FindPod(live.Pods, key)
	return pod, runs, true
}

// correction returns the correction of a pod's endpoint in an object of a Service; nil if its address is a name, which
// no pod's endpoint has.
func (live LivePod) correction(service string, endpoint wire.Endpoint) *wire.Correction {
	corrected := &wire.Correction{Serving: live.Serving, Kept: live.Serving && slices.Contains(live.Idle, service)}
	current, err := netip.ParseAddr(string(endpoint.Address))
	switch current = current.Unmap(); {
	case err != nil:
		return nil
	case len(live.Addresses) == 0, slices.Contains(live.Addresses, current),
		len(live.Former) > 0 && !slices.Contains(live.Former, current):
		return corrected
	}
	for _, address := range live.Addresses {
		if address.Is4() == current.Is4() {
			corrected.Address = address.String()
			return corrected
		}
	}
	return &wire.Correction{Gone: true, Taken: true}
}

// hasAddress reports whether any of the node's pods has the address.
func (l *LivePods) hasAddress(text []byte) bool {
	address, err := netip.ParseAddr(string(text))
	if err != nil {
		return false
	}
	for _, pod := range l.Pods {
		if slices.Contains(pod.Addresses, address.Unmap()) {
			return true
		}
	}
	return false
}

// SetLivePods takes the pods of a node, as the node itself reports them; nil if nothing is known, or if the upstream's
// state applies. The endpoints of pods on that node get the addresses and the readiness of the pods. Those of pods that
// the node does not run are gone.
func (f *Facts) SetLivePods(node string, pods *LivePods) {
	f.update(func() {
		before := f.livePods[node]
		if pods == nil {
			delete(f.livePods, node)
		} else {
			f.livePods[node] = pods
		}
		if before.equal(pods) {
			return
		}
		suspected := before.suspicious() || pods.suspicious()
		delete(f.suspected, node)
		if pods.suspicious() {
			add(&f.suspected, node)
		}
		for _, o := range f.reader().NodeObjectsOf(node) {
			if suspected {
				f.services.markForRecount(o.Service)
				add(&f.step.Objects, o)
			}
			o.collection.correct(o)
		}
	})
}

// Tier returns the tier that an endpoint of a Service, which may be nil, in an object of this namespace has for this
// node.
func (in Reader) Tier(s *Service, namespace string, e wire.Endpoint) topology.Tier {
	return in.TierFrom(in.f.options.NodeName, s, namespace, e)
}

// TierFrom is Tier for another node. A node is neither silent nor suspected to itself.
func (in Reader) TierFrom(viewer string, s *Service, namespace string, e wire.Endpoint) topology.Tier {
	tier := topology.TierOf(e.Ready, true, e.Terminates())
	own := viewer != "" && string(e.NodeName) == viewer
	switch {
	case tier != topology.Ready || !in.AnySuspicions() || s == nil || s.Name == KubernetesService:
		return tier
	case s.traits.PublishesNotReady:
		return tier // as Kubernetes asks, all agents disregard what is said of the readiness of such endpoints
	case own && s.traits.Local:
		return tier // traffic with the policy Local has no better endpoints
	case !own && in.Doubts(s, e.NodeName, Dead, Silent):
		return topology.Silent
	case !own && in.Doubts(s, e.NodeName, Unanswering), in.suspects(namespace, e):
		return topology.Suspected
	default:
		return tier
	}
}

// suspects reports whether the node of an endpoint suspects that its pod does not answer.
func (in Reader) suspects(namespace string, e wire.Endpoint) bool {
	if _, suspected := in.f.suspected[string(e.NodeName)]; !suspected {
		return false
	}
	pod, _, _ := in.f.report(namespace, e)
	return pod.Suspected
}

// AnySuspicions reports whether any node is in doubt, or any pod suspected.
func (in Reader) AnySuspicions() bool {
	d := &in.f.doubted
	return len(d[Dead])+len(d[Silent])+len(d[Unanswering])+len(in.f.suspected) > 0
}

// Why returns the clause LivePod.Why for the endpoint of a pod; "" if the endpoint is not corrected, or if none is
// known.
func (in Reader) Why(namespace string, e wire.Endpoint) string {
	pod, _, _ := in.f.report(namespace, e)
	return pod.Why
}

// Correction returns the correction of an endpoint of the object, and the time of the report behind it; nil if the
// upstream's state applies.
func (o *Object) Correction(endpoint wire.Endpoint) (correction *wire.Correction, asOf time.Time) {
	f := o.collection.f
	pod, runs, about := f.report(o.Upstream.Namespace, endpoint)
	if !about {
		return nil, time.Time{}
	}
	live := f.livePods[string(endpoint.NodeName)]
	if !runs {
		return &wire.Correction{Gone: true, Taken: endpoint.Named && live.hasAddress(endpoint.Address)}, live.AsOf
	}
	service := o.collection.serviceOf(o.Upstream)
	if correction = pod.correction(service, endpoint); correction != nil {
		s := f.services.byName[types.NamespacedName{Namespace: o.Upstream.Namespace, Name: service}]
		correction.Published = s != nil && s.traits.PublishesNotReady
	}
	return correction, live.AsOf
}

// podOf returns the pod of an endpoint. ok is false if the endpoint names no pod, or has no UID.
func podOf(namespace string, endpoint wire.Endpoint) (pod PodKey, ok bool) {
	in, name, uid, ok := endpoint.Pod()
	if !ok || len(uid) == 0 {
		return PodKey{}, false
	}
	if len(in) > 0 {
		namespace = string(in)
	}
	return PodKey{Namespace: namespace, Name: string(name), UID: string(uid)}, true
}

// Body returns the upstream's body with the corrections that follow from SetLivePods.
func (o *Object) Body() []byte {
	if o.corrected != nil {
		return o.corrected
	}
	return o.Upstream.Body
}

// Corrected reports whether Body is not the upstream's.
func (o *Object) Corrected() bool { return o.corrected != nil }

// correctedBody returns the body of an object with corrected endpoints, and the number of those that are left out. It
// returns nil if no endpoint is corrected.
func (c *collection) correctedBody(o *Object) (body []byte, lost int) {
	if len(c.f.livePods) == 0 {
		return nil, 0
	}
	body, err := o.Codec().Correct(o.Upstream.Body, func(e wire.Endpoint) *wire.Correction {
		correction, _ := o.Correction(e)
		if correction.LeavesOut(e) {
			lost++
		}
		return correction
	})
	if err != nil {
		o.Unreadable(err)
	}
	if err != nil || bytes.Equal(body, o.Upstream.Body) {
		return nil, 0
	}
	return append([]byte{}, body...), lost // not nil, even if all endpoints are left out
}

func (c *collection) correct(o *Object) {
	body, lost := c.correctedBody(o)
	if (body != nil) == o.Corrected() && bytes.Equal(body, o.corrected) && lost == o.Lost {
		return
	}
	c.leaveService(o)
	o.corrected, o.Lost = body, lost
	c.joinService(o)
	add(&c.f.step.Objects, o)
}

// KnownPod is the upstream's state of a pod, from the pod's endpoints.
type KnownPod struct {
	// Serving is set if any endpoint of the pod is serving. Endpoints of other Services may be drained.
	Serving bool
	// Idle names the Services whose endpoint of the pod is not ready, sorted.
	Idle []string
	// Governed is set if any endpoint of the pod belongs to a Service with topologyKeys.
	Governed bool
	// Disputed is set if SetLivePods has corrected any endpoint of the pod.
	Disputed bool
}

// PodsOn returns, for each of the nodes, the pods that endpoints on it name. It reads every object once, however many
// of the nodes it names.
func (f *Facts) PodsOn(nodes ...string) map[string]map[PodKey]KnownPod {
	pods, objects := make(map[string]map[PodKey]KnownPod), sets.New[*Object]()
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, node := range nodes {
		pods[node] = make(map[PodKey]KnownPod)
		objects.Insert(f.reader().NodeObjectsOf(node)...)
	}
	for o := range objects {
		f.addPods(pods, o)
	}
	return pods
}

// addPods adds the pods that an object's endpoints name to the pods of their nodes.
func (f *Facts) addPods(pods map[string]map[PodKey]KnownPod, o *Object) {
	governed := o.Service != nil && o.Service.Keys.Governed()
	o.scan(o.Upstream.Body, func(e wire.Endpoint) {
		of := pods[string(e.NodeName)]
		if of == nil {
			return
		}
		key, ok := podOf(o.Upstream.Namespace, e)
		if !ok {
			return
		}
		known := of[key]
		// Endpoints do not say which endpoints are serving. Those of a Service that publishes addresses of pods that
		// are not ready are all ready there.
		if o.collection == &f.slices {
			known.Serving = known.Serving || e.Serving()
			if service := o.collection.serviceOf(o.Upstream); !e.Ready && !slices.Contains(known.Idle, service) {
				known.Idle = append(known.Idle, strings.Clone(service))
				slices.Sort(known.Idle)
			}
		}
		known.Governed = known.Governed || governed
		if correction, _ := o.Correction(e); correction != nil && !e.Is(correction) {
			known.Disputed = true
		}
		of[key] = known
	})
}

// NodeReady reports whether the upstream calls this node ready. If the kubelet has not reported for a while, it does
// not, and then its state of the node's pods is not the kubelet's. heartbeat changes with every report of the kubelet.
func (f *Facts) NodeReady() (ready bool, heartbeat string) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	o := f.node.objects[types.NamespacedName{Name: f.options.NodeName}]
	if o == nil {
		return false, ""
	}
	ready, heartbeat, err := wire.NodeReady(o.Body)
	return err == nil && ready, strings.Clone(heartbeat)
}

// Applied reports whether everything that has arrived from the upstream is applied: nothing is held back, and the facts
// are not those of a State.
func (f *Facts) Applied() bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.IsLive() && f.hold.pending == nil
}
