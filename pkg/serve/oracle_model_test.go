package serve_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

// viewer is the node whose view is compared.
const viewer = "node-0"

var kubernetesName = types.NamespacedName{Namespace: "default", Name: "kubernetes"}

// model is the cluster as it is now, in plain Go values, and the rule of docs/concepts.md applied to them, written as
// it reads. It shares no code with what it judges, and does not care what anything costs.
type model struct {
	nodes   map[string]*corev1.Node
	objects map[*served.Resource]map[types.NamespacedName]served.Typed
	// dead are the nodes that the health service calls dead.
	dead map[string]struct{}
	// live is what nodes say of their pods.
	live map[string]*facts.LivePods
}

func newModel() *model {
	m := &model{
		nodes: map[string]*corev1.Node{}, objects: map[*served.Resource]map[types.NamespacedName]served.Typed{},
		live: map[string]*facts.LivePods{},
	}
	for _, resource := range []*served.Resource{served.Services, served.EndpointSlices, served.Endpoints} {
		m.objects[resource] = map[types.NamespacedName]served.Typed{}
	}
	return m
}

// selector is what a client asks for of a resource.
type selector struct {
	namespace string
	labels    labels.Selector
	fields    fields.Selector
}

// expected is what a client with this selector must hold, with resourceVersions left out.
func (m *model) expected(resource *served.Resource, selected selector) map[types.NamespacedName]runtime.Object {
	view := map[types.NamespacedName]runtime.Object{}
	add := func(o runtime.Object, values fields.Set) {
		o = o.DeepCopyObject()
		accessor, err := meta.Accessor(o)
		if err != nil {
			panic(err)
		}
		values["metadata.name"], values["metadata.namespace"] = accessor.GetName(), accessor.GetNamespace()
		elsewhere := selected.namespace != "" && selected.namespace != accessor.GetNamespace()
		if elsewhere || !selected.labels.Matches(labels.Set(accessor.GetLabels())) || !selected.fields.Matches(values) {
			return
		}
		accessor.SetManagedFields(nil)
		strip(o)
		view[types.NamespacedName{Namespace: accessor.GetNamespace(), Name: accessor.GetName()}] = o
	}
	switch resource {
	case served.Nodes:
		if n := m.nodes[viewer]; n != nil {
			add(n, fields.Set{"spec.unschedulable": strconv.FormatBool(n.Spec.Unschedulable)})
		}
	case served.Services:
		for _, o := range m.objects[resource] {
			svc := o.(*corev1.Service)
			add(svc, fields.Set{"spec.clusterIP": svc.Spec.ClusterIP, "spec.type": string(svc.Spec.Type)})
		}
	case served.EndpointSlices:
		for _, o := range m.objects[resource] {
			add(m.prunedSlice(m.trueSlice(o.(*discoveryv1.EndpointSlice))), fields.Set{})
		}
	case served.Endpoints:
		for _, o := range m.objects[resource] {
			add(m.prunedEndpoints(m.trueEndpoints(o.(*corev1.Endpoints))), fields.Set{})
		}
	}
	return view
}

// really is how the node of an endpoint runs the endpoint's pod: known is false if the node does not say, or says so
// only of other pods; runs is false if the pod is gone; an empty address is the one that it has.
func (m *model) really(
	namespace string, node *string, ref *corev1.ObjectReference, address string,
) (now string, serving, runs, known bool) {
	if node == nil || ref == nil || ref.Kind != "Pod" || ref.UID == "" || m.live[*node] == nil {
		return "", false, false, false
	}
	said := m.live[*node]
	pod := facts.PodKey{Namespace: namespace, Name: ref.Name, UID: string(ref.UID)}
	if ref.Namespace != "" {
		pod.Namespace = ref.Namespace
	}
	if said.About != nil {
		if _, about := said.About[pod]; !about {
			return "", false, false, false
		}
	}
	running, runs := said.Pods[pod]
	if !runs {
		pod.UID = ""
		if running, runs = said.Pods[pod]; !runs {
			return "", false, false, true
		}
	}
	if len(running.Addresses) == 0 {
		return address, running.Serving, true, true
	}
	if parsed, err := netip.ParseAddr(address); err == nil && slices.Contains(running.Addresses, parsed) {
		return address, running.Serving, true, true
	}
	for _, a := range running.Addresses {
		if strings.Contains(a.String(), ":") == strings.Contains(address, ":") {
			return a.String(), running.Serving, true, true
		}
	}
	return "", false, false, true
}

// published reports whether a Service has publishNotReadyAddresses.
func (m *model) published(namespace, name string) bool {
	svc, ok := m.objects[served.Services][types.NamespacedName{Namespace: namespace, Name: name}].(*corev1.Service)
	return ok && svc.Spec.PublishNotReadyAddresses
}

// trueSlice is a slice whose endpoints are as their nodes run them.
func (m *model) trueSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	var endpoints []discoveryv1.Endpoint
	for _, e := range s.Endpoints {
		now, serving, runs, known := m.really(s.Namespace, e.NodeName, e.TargetRef, e.Addresses[0])
		if known && !runs {
			continue
		}
		if known {
			ready, terminating := ptr.Deref(e.Conditions.Ready, true), ptr.Deref(e.Conditions.Terminating, false)
			wasServing := ptr.Deref(e.Conditions.Serving, ready)
			isReady := ready
			if serving != wasServing {
				isReady = serving && !terminating || m.published(s.Namespace, s.Labels[discoveryv1.LabelServiceName])
			}
			if now != e.Addresses[0] || isReady != ready || serving != wasServing {
				e.Addresses = []string{now}
				e.Conditions = discoveryv1.EndpointConditions{
					Ready: &isReady, Serving: &serving, Terminating: &terminating,
				}
			}
		}
		endpoints = append(endpoints, e)
	}
	s.Endpoints = endpoints
	return s
}

// trueEndpoints are Endpoints whose addresses are as their nodes run them.
func (m *model) trueEndpoints(e *corev1.Endpoints) *corev1.Endpoints {
	e = e.DeepCopy()
	var subsets []corev1.EndpointSubset
	for _, s := range e.Subsets {
		var ready, notReady []corev1.EndpointAddress
		add := func(addresses []corev1.EndpointAddress, isReady bool) {
			for _, a := range addresses {
				serves := isReady
				now, serving, runs, known := m.really(e.Namespace, a.NodeName, a.TargetRef, a.IP)
				if known {
					if !runs {
						continue
					}
					if a.IP = now; serving != isReady {
						serves = serving || m.published(e.Namespace, e.Name)
					}
				}
				if serves {
					ready = append(ready, a)
				} else {
					notReady = append(notReady, a)
				}
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
		s.Addresses, s.NotReadyAddresses = ready, notReady
		if len(ready)+len(notReady) > 0 {
			subsets = append(subsets, s)
		}
	}
	e.Subsets = subsets
	return e
}

// naiveEndpoint is an endpoint as the rule sees it.
type naiveEndpoint struct {
	node  *string
	ready bool
	// ending is that of an endpoint that is not ready, terminates and serves.
	ending bool
}

// shows returns which endpoints of the Service are not hidden as those on dead nodes. A ready one is hidden where the
// viewer may see one that is ready on another node.
func (m *model) shows(
	service types.NamespacedName, all []naiveEndpoint, governed bool, keep func(naiveEndpoint) bool,
) func(naiveEndpoint) bool {
	better := slices.ContainsFunc(all, func(e naiveEndpoint) bool {
		return e.ready && m.alive(service, e) && (!governed || keep(e))
	})
	return func(e naiveEndpoint) bool { return !e.ready || m.alive(service, e) || !better }
}

// alive reports whether an endpoint of the Service is not on a dead node.
func (m *model) alive(service types.NamespacedName, e naiveEndpoint) bool {
	if service == kubernetesName || m.published(service.Namespace, service.Name) || e.node == nil || *e.node == viewer {
		return true
	}
	_, dead := m.dead[*e.node]
	return !dead
}

// governs is the rule: which endpoints of the Service the viewer sees, of all that it has. governed is false where
// everything passes untouched.
func (m *model) governs(
	service types.NamespacedName, all []naiveEndpoint,
) (governed bool, keep func(naiveEndpoint) bool) {
	nothing := func(naiveEndpoint) bool { return false }
	o := m.objects[served.Services][service]
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
			here, there := m.nodes[viewer], (*corev1.Node)(nil)
			if e.node != nil {
				there = m.nodes[*e.node]
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
	tiers := []func(naiveEndpoint) bool{
		func(e naiveEndpoint) bool { return e.ready && m.alive(service, e) },
		func(e naiveEndpoint) bool { return e.ready },
		func(e naiveEndpoint) bool { return e.ending },
	}
	for _, in := range tiers {
		for _, key := range keys {
			for _, e := range all {
				if in(e) && matcher(key)(e) {
					return true, matcher(key)
				}
			}
		}
	}
	if keys[len(keys)-1] == "*" {
		return true, matcher("*")
	}
	return true, nothing
}

func sliceEndpoint(e discoveryv1.Endpoint) naiveEndpoint {
	ready := ptr.Deref(e.Conditions.Ready, true)
	ending := !ready && ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, true)
	return naiveEndpoint{e.NodeName, ready, ending}
}

// headless reports whether a Service has no cluster IP, so that all its slices decide as one. Of others those of each
// family do: in these worlds all slices have the same port.
func (m *model) headless(service types.NamespacedName) bool {
	svc, ok := m.objects[served.Services][service].(*corev1.Service)
	return ok && svc.Spec.ClusterIP == corev1.ClusterIPNone
}

// local is the local endpoint that the annotations name, on the object itself or on the Endpoints default/kubernetes.
func (m *model) local(own map[string]string) (ip, port string, ok bool) {
	annotations := []map[string]string{own}
	if o := m.objects[served.Endpoints][kubernetesName]; o != nil {
		annotations = append(annotations, o.(*corev1.Endpoints).Annotations)
	}
	for _, a := range annotations {
		if ip := a["superedge.io/local-endpoint"]; ip != "" && ip != "not an address" && !strings.Contains(ip, ":") {
			return ip, a["superedge.io/local-port"], true
		}
	}
	return "", "", false
}

// prunedSlice is what the viewer sees of a slice, which it changes.
func (m *model) prunedSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if service == kubernetesName {
		if ip, port, ok := m.local(s.Annotations); ok {
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
	for _, o := range m.objects[served.EndpointSlices] {
		other := o.(*discoveryv1.EndpointSlice)
		if other.Namespace != service.Namespace || other.Labels[discoveryv1.LabelServiceName] != service.Name {
			continue
		}
		if other.AddressType != s.AddressType && !m.headless(service) {
			continue
		}
		for _, e := range m.trueSlice(other).Endpoints {
			all = append(all, sliceEndpoint(e))
		}
	}
	governed, keep := m.governs(service, all)
	shows := m.shows(service, all, governed, keep)
	kept := []discoveryv1.Endpoint(nil)
	for _, e := range s.Endpoints {
		if !shows(sliceEndpoint(e)) {
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

// prunedEndpoints is what the viewer sees of Endpoints, which it changes.
func (m *model) prunedEndpoints(e *corev1.Endpoints) *corev1.Endpoints {
	name := types.NamespacedName{Namespace: e.Namespace, Name: e.Name}
	if name == kubernetesName {
		if ip, port, ok := m.local(e.Annotations); ok {
			number, _ := strconv.Atoi(port)
			e.Subsets = []corev1.EndpointSubset{{
				Addresses: []corev1.EndpointAddress{{IP: ip}},
				Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(number), Protocol: corev1.ProtocolTCP}},
			}}
			return e
		}
	}
	var all []naiveEndpoint
	for _, s := range e.Subsets {
		for _, a := range s.Addresses {
			all = append(all, naiveEndpoint{node: a.NodeName, ready: true})
		}
		for _, a := range s.NotReadyAddresses {
			all = append(all, naiveEndpoint{node: a.NodeName})
		}
	}
	governed, keep := m.governs(name, all)
	shows := m.shows(name, all, governed, keep)
	var subsets []corev1.EndpointSubset
	for _, s := range e.Subsets {
		filter := func(addresses []corev1.EndpointAddress, ready bool) (kept []corev1.EndpointAddress) {
			for _, a := range addresses {
				endpoint := naiveEndpoint{node: a.NodeName, ready: ready}
				if shows(endpoint) && (!governed || keep(endpoint)) {
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
