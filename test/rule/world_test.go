package rule

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/internal/testkit/storagetest"
	"github.com/application-grid/application-grid/internal/testkit/wiretest"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// viewer is the node whose wrapper is judged.
const viewer = "node0"

// world is a cluster with one Service, and what the viewer's wrapper was told of it.
type world struct {
	random *rand.Rand
	store  *storagetest.Node

	nodes   map[string]map[string]string
	service *corev1.Service
	slices  map[string]*discoveryv1.EndpointSlice
	// dead, silent and doubted are names of nodes, suspected the UIDs of pods. A doubted node's wrapper does not
	// answer.
	dead, silent, doubted map[string]struct{}
	suspected             map[string]bool
	addresses             int
}

func newWorld(random *rand.Rand) *world {
	w := &world{
		random: random, nodes: map[string]map[string]string{}, slices: map[string]*discoveryv1.EndpointSlice{},
		suspected: map[string]bool{},
		store:     storagetest.New(storagetest.Options{NodeName: viewer, KeepKubernetesEndpoint: true}),
	}
	w.store.OwnNode().Replace(nil)
	w.store.NodeLabels().Replace(nil)
	w.store.Services().Replace(nil)
	w.store.EndpointSlices().Replace(nil)
	return w
}

func (w *world) chance(percent int) bool { return w.random.IntN(100) < percent }

func pick[T any](w *world, from ...T) T { return from[w.random.IntN(len(from))] }

var nodeNames = []string{viewer, "node1", "node2", "node3", "node4"}

// change is one event of the world.
func (w *world) change() {
	switch w.random.IntN(13) {
	case 0, 1:
		w.changeNode(pick(w, nodeNames...))
	case 2:
		w.changeService()
	case 3:
		w.dead = w.some(15)
		w.store.SetDoubted(facts.Dead, w.dead)
		delete(w.dead, viewer)
	case 4:
		w.silent = w.some(pick(w, 0, 30, 80))
		w.store.SetDoubted(facts.Silent, w.silent)
		delete(w.silent, viewer)
	case 5:
		w.suspect(pick(w, nodeNames...))
	case 6:
		if names := slices.Sorted(maps.Keys(w.slices)); len(names) > 0 {
			name := pick(w, names...)
			delete(w.slices, name)
			w.store.EndpointSlices().Remove("ns", name)
		}
	case 7:
		w.doubted = w.some(pick(w, 0, 30))
		w.store.SetDoubted(facts.Unanswering, w.doubted)
		delete(w.doubted, viewer)
	default:
		w.changeSlice(fmt.Sprint("svc-", w.random.IntN(4)))
	}
}

func (w *world) some(percent int) map[string]struct{} {
	names := map[string]struct{}{}
	for _, name := range nodeNames {
		if w.chance(percent) {
			names[name] = struct{}{}
		}
	}
	return names
}

func (w *world) changeNode(name string) {
	if w.chance(10) {
		delete(w.nodes, name)
		w.store.NodeLabels().Remove("", name)
		return
	}
	labels := map[string]string{"host": name}
	for _, key := range []string{"pool", "region"} {
		if value := pick(w, "a", "a", "b", "b", "", "none"); value != "none" { // an empty value is a value
			labels[key] = value
		}
	}
	w.nodes[name] = labels
	w.store.NodeLabels().Apply(wiretest.NodeWith(name, labels))
}

var protocols = map[string]corev1.Protocol{
	"web": corev1.ProtocolTCP, "admin": corev1.ProtocolTCP, "": corev1.ProtocolTCP, "dns": corev1.ProtocolUDP,
}

func (w *world) changeService() {
	if w.chance(5) {
		w.service = nil
		w.store.Services().Remove("ns", "svc")
		return
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc", UID: "svc"}}
	if keys := pick(w, "", `["pool"]`, `["host"]`, `["pool","*"]`, `["host","pool"]`, `["host","pool","*"]`,
		`["pool","region"]`, `["pool","region","*"]`, `["*"]`, "nonsense"); keys != "" {
		svc.Annotations = map[string]string{"topologyKeys": keys}
	}
	spec := &svc.Spec
	spec.ClusterIP, spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9", "fd96::9"}
	spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	spec.Type = corev1.ServiceTypeClusterIP
	for _, name := range slices.Sorted(maps.Keys(protocols)) {
		spec.Ports = append(spec.Ports, corev1.ServicePort{
			Name: name, Protocol: protocols[name], Port: int32(80 + len(spec.Ports)), TargetPort: intstr.FromInt(8080),
		})
	}
	spec.InternalTrafficPolicy = ptr.To(pick(w, corev1.ServiceInternalTrafficPolicyCluster,
		corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal))
	switch w.random.IntN(6) {
	case 0:
		spec.ClusterIP, spec.ClusterIPs = "None", []string{"None"}
	case 1, 2:
		spec.Type = corev1.ServiceTypeNodePort
		spec.ExternalTrafficPolicy = pick(w, corev1.ServiceExternalTrafficPolicyCluster,
			corev1.ServiceExternalTrafficPolicyLocal)
		for i := range spec.Ports {
			spec.Ports[i].NodePort = int32(30000 + i)
		}
	}
	w.service = svc
	w.store.Services().Apply(wiretest.Object(svc))
}

// suspect changes which of its pods a node suspects.
func (w *world) suspect(node string) {
	live := &facts.LivePods{Pods: map[facts.PodKey]facts.LivePod{}, About: map[facts.PodKey]struct{}{}}
	for _, s := range w.slices {
		for _, e := range s.Endpoints {
			if ptr.Deref(e.NodeName, "") != node {
				continue
			}
			uid := string(e.TargetRef.UID)
			delete(w.suspected, uid)
			// A node that suspects a pod says that it runs and answers.
			if ptr.Deref(e.Conditions.Ready, true) && !ptr.Deref(e.Conditions.Terminating, false) && w.chance(50) {
				w.suspected[uid] = true
				key := facts.PodKey{Namespace: "ns", Name: e.TargetRef.Name, UID: uid}
				live.About[key] = struct{}{}
				live.Pods[key] = facts.LivePod{
					Addresses: []netip.Addr{netip.MustParseAddr(e.Addresses[0])}, Serving: true, Suspected: true,
				}
			}
		}
	}
	w.store.SetLivePods(node, live)
}

func (w *world) changeSlice(name string) {
	s := w.slices[name]
	if s == nil || w.chance(30) {
		s = &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "ns", Name: name, UID: types.UID(name),
				Labels: map[string]string{discoveryv1.LabelServiceName: "svc"},
			},
			AddressType: pick(w, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6),
		}
		for _, port := range slices.Sorted(maps.Keys(protocols)) {
			if !w.chance(45) {
				continue
			}
			number := ptr.To(int32(8000 + w.random.IntN(3)))
			if w.chance(8) {
				number = nil
			}
			protocol := protocols[port]
			if w.chance(8) { // which the Service does not have
				protocol = corev1.ProtocolSCTP
			}
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port, Protocol: &protocol, Port: number})
		}
		for range w.random.IntN(4) {
			s.Endpoints = append(s.Endpoints, w.endpoint(s.AddressType))
		}
	} else {
		s = s.DeepCopy()
		if len(s.Endpoints) > 0 && w.chance(60) {
			i := w.random.IntN(len(s.Endpoints))
			s.Endpoints[i].Conditions = w.conditions()
		} else {
			s.Endpoints = append(s.Endpoints, w.endpoint(s.AddressType))
		}
	}
	for i := range s.Endpoints { // what a node suspects is ready
		if w.suspected[string(s.Endpoints[i].TargetRef.UID)] {
			s.Endpoints[i].Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true)}
		}
	}
	w.slices[name] = s
	w.store.EndpointSlices().Apply(wiretest.Object(s))
}

func (w *world) endpoint(family discoveryv1.AddressType) discoveryv1.Endpoint {
	w.addresses++
	address := fmt.Sprintf("10.1.%d.%d", w.addresses>>8, w.addresses&255)
	if family == discoveryv1.AddressTypeIPv6 {
		address = fmt.Sprintf("fd00::%x", w.addresses)
	}
	e := discoveryv1.Endpoint{
		Addresses: []string{address}, Conditions: w.conditions(),
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: "ns", Name: fmt.Sprint("pod-", w.addresses),
			UID: types.UID(fmt.Sprint("uid-", w.addresses)),
		},
	}
	if node := pick(w, append(slices.Clone(nodeNames), viewer, "unknown", "")...); node != "" {
		e.NodeName = &node
	}
	if w.chance(60) {
		e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: pick(w, nodeNames...)}}}
	}
	return e
}

func (w *world) conditions() discoveryv1.EndpointConditions {
	boolean := func(likely bool) *bool {
		if w.chance(10) {
			return nil
		}
		if w.chance(10) {
			return ptr.To(!likely)
		}
		return &likely
	}
	if w.chance(50) {
		return discoveryv1.EndpointConditions{Ready: boolean(true), Serving: boolean(true), Terminating: boolean(false)}
	}
	return discoveryv1.EndpointConditions{Ready: new(false), Serving: boolean(true), Terminating: boolean(true)}
}
