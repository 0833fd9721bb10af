package facts

import (
	"bytes"
	"cmp"
	"net/netip"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
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

// equal reports whether both, which may be nil, say the same of the same pods.
func (l *LivePods) equal(other *LivePods) bool {
	if l == nil || other == nil {
		return l == other
	}
	return reflect.DeepEqual(l.About, other.About) && reflect.DeepEqual(l.Pods, other.Pods)
}

func (l *LivePods) has(address netip.Addr) bool {
	for _, pod := range l.Pods {
		if slices.Contains(pod.Addresses, address) {
			return true
		}
	}
	return false
}

// Report returns the report of an endpoint's node that has the endpoint's pod, and the pod, if the node runs it. It
// returns nil if the upstream's state applies.
func (o *EndpointSet) Report(e wire.Endpoint) (report *LivePods, pod LivePod, runs bool) {
	report = o.store.f.livePods[string(e.NodeName)]
	if report == nil {
		return nil, LivePod{}, false
	}
	key, ok := o.podOf(e)
	if _, about := report.About[key]; !ok || !about && report.About != nil {
		return nil, LivePod{}, false
	}
	_, pod, runs = FindPod(report.Pods, key)
	return report, pod, runs
}

// Correction returns the correction of an endpoint of the object; nil if the upstream's state applies.
func (o *EndpointSet) Correction(e wire.Endpoint) *wire.Correction {
	report, pod, runs := o.Report(e)
	if report == nil {
		return nil
	}
	current, err := netip.ParseAddr(string(e.Address))
	current = current.Unmap()
	if !runs {
		return &wire.Correction{Unusable: true, Taken: report.has(current)}
	}
	corrected := &wire.Correction{Serving: pod.Serving}
	if s := o.Service; s != nil {
		corrected.KeepConditions = pod.Serving && slices.Contains(pod.Idle, s.Name.Name)
		corrected.Published = s.traits.PublishesNotReady
	}
	if err != nil || len(pod.Addresses) == 0 || slices.Contains(pod.Addresses, current) ||
		len(pod.Former) > 0 && !slices.Contains(pod.Former, current) {
		return corrected
	}
	i := slices.IndexFunc(pod.Addresses, func(a netip.Addr) bool { return a.Is4() == current.Is4() })
	if i < 0 {
		return &wire.Correction{Unusable: true, Taken: true}
	}
	corrected.Address = pod.Addresses[i].String()
	return corrected
}

// SetLivePods takes the pods of a node, as the node itself reports them; nil if nothing is known, or if the upstream's
// state applies. The endpoints of pods on that node get the addresses and the readiness of the pods. Those of pods that
// the node does not run are gone.
func (f *Facts) SetLivePods(node string, pods *LivePods) {
	f.runStep(func() {
		before := f.livePods[node]
		if f.livePods[node] = pods; pods == nil {
			delete(f.livePods, node)
		}
		if before.equal(pods) {
			return
		}
		for _, o := range f.reader().NodeObjectsOf(node) {
			f.services.markForRecount(o.Service) // other pods may be suspected
			add(&f.step.EndpointSets, o)
			o.store.correct(o)
		}
	})
}

// Tier returns the tier that an endpoint of the object has for this node.
func (o *EndpointSet) Tier(e wire.Endpoint) topology.Tier {
	return o.TierFrom(o.store.f.options.NodeName, e)
}

// TierFrom is Tier for another node. A node is neither silent nor suspected to itself.
func (o *EndpointSet) TierFrom(viewer string, e wire.Endpoint) topology.Tier {
	tier, in, s := topology.TierOf(e.Ready, true, e.Terminates()), o.store.f.reader(), o.Service
	own := viewer != "" && string(e.NodeName) == viewer
	switch {
	case tier != topology.Ready || !in.AnySuspicions() || s == nil || s.Name == KubernetesService:
		return tier
	case s.traits.PublishesNotReady:
		return tier // as Kubernetes asks, all agents disregard what is said of the readiness of such endpoints
	case own && s.traits.Local:
		return tier // traffic with the policy Local has no better endpoints
	}
	_, pod, _ := o.Report(e)
	switch doubt := in.DoubtOf(s, e.NodeName); {
	case !own && (doubt == Dead || doubt == Silent):
		return topology.Silent
	case !own && doubt == Unanswering, pod.Suspected:
		return topology.Suspected
	default:
		return tier
	}
}

// AnySuspicions reports whether any node is in doubt, or any node's report, which may suspect pods, is used.
func (in Reader) AnySuspicions() bool {
	d := &in.f.doubted
	return len(d[Dead])+len(d[Silent])+len(d[Unanswering])+len(in.f.livePods) > 0
}

// podOf returns the pod of an endpoint. ok is false if the endpoint names no pod, or has no UID.
func (o *EndpointSet) podOf(e wire.Endpoint) (pod PodKey, ok bool) {
	namespace, name, uid, ok := e.Pod()
	if !ok || len(uid) == 0 {
		return PodKey{}, false
	}
	return PodKey{cmp.Or(string(namespace), o.Upstream.Namespace), string(name), string(uid)}, true
}

// Body returns the upstream's body with the corrections that follow from SetLivePods.
func (o *EndpointSet) Body() []byte {
	if o.corrected != nil {
		return o.corrected
	}
	return o.Upstream.Body
}

// Corrected reports whether Body is not the upstream's.
func (o *EndpointSet) Corrected() bool { return o.corrected != nil }

func (c *endpointStore) correct(o *EndpointSet) {
	if len(c.f.livePods) == 0 && !o.Corrected() {
		return
	}
	lost := 0
	body, err := o.Codec().Rewrite(o.Upstream.Body, func(e wire.Endpoint) *wire.Correction {
		correction := o.Correction(e)
		if correction.LeavesOut(e) {
			lost++
		}
		return correction
	})
	if err != nil {
		o.LogUnreadable(err)
		body, lost = o.Upstream.Body, 0
	}
	if bytes.Equal(body, o.Body()) {
		return
	}
	c.leaveService(o)
	if o.corrected, o.Lost = nil, lost; !bytes.Equal(body, o.Upstream.Body) {
		o.corrected = append([]byte{}, body...) // not nil, even if all endpoints are left out
	}
	c.joinService(o)
	add(&c.f.step.EndpointSets, o)
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
	pods, objects := make(map[string]map[PodKey]KnownPod), sets.New[*EndpointSet]()
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
func (f *Facts) addPods(pods map[string]map[PodKey]KnownPod, o *EndpointSet) {
	s := o.Service
	o.scan(o.Upstream.Body, func(e wire.Endpoint) {
		of := pods[string(e.NodeName)]
		if of == nil {
			return
		}
		key, ok := o.podOf(e)
		if !ok {
			return
		}
		known := of[key]
		// Endpoints do not say which endpoints are serving. Those of a Service that publishes addresses of pods that
		// are not ready are all ready there.
		if o.store == &f.slices {
			known.Serving = known.Serving || e.Serving()
			if s != nil && !e.Ready && !slices.Contains(known.Idle, s.Name.Name) {
				known.Idle = append(known.Idle, s.Name.Name)
				slices.Sort(known.Idle)
			}
		}
		known.Governed = known.Governed || s != nil && s.Keys.Governed()
		correction := o.Correction(e)
		known.Disputed = known.Disputed || correction != nil && !e.Matches(correction)
		of[key] = known
	})
}

// NodeReady reports whether the upstream calls this node ready. If the kubelet has not reported for a while, it does
// not, and then its state of the node's pods is not the kubelet's. heartbeat changes with every report of the kubelet.
func (f *Facts) NodeReady() (ready bool, heartbeat string) {
	f.Read(func(Reader) {
		for _, c := range f.ownStatus().Conditions {
			if c.Type == corev1.NodeReady {
				ready, heartbeat = c.Status == corev1.ConditionTrue, c.LastHeartbeatTime.String()
			}
		}
	})
	return ready, heartbeat
}

// Applied reports whether everything that has arrived from the upstream is applied: nothing is held back, and the facts
// are not those of a Snapshot.
func (f *Facts) Applied() bool {
	return get(f, func(in Reader) bool { return f.IsLive() && !in.Held() })
}
