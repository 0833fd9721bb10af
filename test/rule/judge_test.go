package rule

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/utils/ptr"
)

var families = map[discoveryv1.AddressType]corev1.IPFamily{
	discoveryv1.AddressTypeIPv4: corev1.IPv4Protocol, discoveryv1.AddressTypeIPv6: corev1.IPv6Protocol,
}

// reached are the addresses to which kube-proxy on the viewer sends connections to a port of the Service: those of its
// traffic of the policy Cluster, and of the policy Local.
type reached struct{ cluster, local []string }

// kubeProxy is what kube-proxy makes of a Service and of slices, by port of its own kind. It has those ports only that
// reach anything.
func kubeProxy(
	service *corev1.Service, all []*discoveryv1.EndpointSlice, labels map[string]string,
) map[string]reached {
	found := map[string]reached{}
	for addressType, family := range families {
		services, ports := proxy.NewServiceChangeTracker(family, nil, nil), proxy.ServicePortMap{}
		services.Update(nil, service)
		ports.Update(services)
		tracker, endpoints := proxy.NewEndpointsChangeTracker(family, viewer, nil, nil), proxy.EndpointsMap{}
		for _, s := range all {
			tracker.EndpointSliceUpdate(s, false)
		}
		endpoints.Update(tracker)
		for name, port := range ports {
			cluster, local, _, _ := proxy.CategorizeEndpoints(endpoints[name], port, viewer, labels)
			now := reached{addressesOf(cluster), addressesOf(local)}
			if len(now.cluster)+len(now.local) > 0 {
				found[fmt.Sprintf("%s %s", addressType, name.Port)] = now
			}
		}
	}
	return found
}

func addressesOf(endpoints []proxy.Endpoint) (addresses []string) {
	for _, e := range endpoints {
		addresses = append(addresses, e.IP())
	}
	slices.Sort(addresses)
	return addresses
}

// How good an endpoint is, by the words of the rule.
const (
	clean = iota
	suspected
	silent
	terminating
	useless
)

// grade is how good an endpoint of the Service is.
func (w *world) grade(e *discoveryv1.Endpoint) int {
	node := ptr.Deref(e.NodeName, "")
	if !ptr.Deref(e.Conditions.Ready, true) {
		if ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, true) {
			return terminating
		}
		return useless
	}
	if node == viewer && w.hasLocalTraffic() {
		return clean // such traffic has no other one
	}
	_, quiet := w.silent[node]
	if _, dead := w.dead[node]; quiet || dead {
		return silent
	}
	if _, doubted := w.doubted[node]; doubted || w.suspected[string(e.TargetRef.UID)] {
		return suspected
	}
	return clean
}

func (w *world) hasLocalTraffic() bool {
	spec := w.service.Spec
	return *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal ||
		spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// keys are the Service's; known is false if they cannot be read.
func (w *world) keys() (keys []string, known bool) {
	if w.service == nil {
		return nil, false
	}
	annotation, annotated := w.service.Annotations["topologyKeys"]
	if !annotated {
		return nil, true
	}
	return keys, json.Unmarshal([]byte(annotation), &keys) == nil
}

// matches reports whether the viewer and the node of an endpoint have the same value of a key.
func (w *world) matches(key string, e *discoveryv1.Endpoint) bool {
	if key == "*" {
		return true
	}
	ours, here := w.nodes[viewer][key]
	theirs, there := w.nodes[ptr.Deref(e.NodeName, "")][key]
	return here && there && ours == theirs
}

// follow picks, of endpoints that serve one port, or of all of a Service that decides as one, those that are used: of
// the best grade that any key matches, those of its first key. decided is false if there are none.
func (w *world) follow(keys []string, all []*discoveryv1.Endpoint) (key string, grade int, decided bool) {
	if len(keys) == 0 {
		keys = []string{"*"}
	}
	for grade := clean; grade < useless; grade++ {
		for _, key := range keys {
			if slices.ContainsFunc(all, func(e *discoveryv1.Endpoint) bool {
				return w.grade(e) == grade && w.matches(key, e)
			}) {
				return key, grade, true
			}
		}
	}
	return "", useless, false
}

// expected is what kube-proxy would reach through a cluster that had, for each port, what the rule says and nothing
// else. lost says, by port, that traffic of the policy Local may find nothing: what is on this node is worse than what
// the rest of the Service's traffic uses.
func (w *world) expected() (ports map[string]reached, lost map[string]bool) {
	ports, lost = map[string]reached{}, map[string]bool{}
	keys, known := w.keys()
	if !known || w.service.Spec.ClusterIP == "None" {
		return ports, lost
	}
	for addressType := range families {
		for _, port := range w.service.Spec.Ports {
			name := fmt.Sprintf("%s %s", addressType, port.Name)
			all := w.serving(addressType, port.Name, port.Protocol)
			key, grade, decided := w.follow(keys, all)
			var used, here []discoveryv1.Endpoint
			for _, e := range all {
				e := *e
				if len(keys) > 0 {
					e.Hints = nil
				}
				own := ptr.Deref(e.NodeName, "") == viewer && w.grade(&e) != useless
				if own && (len(keys) == 0 ||
					slices.ContainsFunc(keys, func(key string) bool { return w.matches(key, &e) })) {
					here = append(here, e)
					lost[name] = lost[name] || w.grade(&e) == terminating
				}
				if decided && w.grade(&e) == grade && w.matches(key, &e) {
					used = append(used, e)
				}
			}
			ask := func(endpoints []discoveryv1.Endpoint) reached {
				return kubeProxy(w.service, []*discoveryv1.EndpointSlice{sliceOf(addressType, port, endpoints)},
					w.nodes[viewer])[name]
			}
			lost[name] = lost[name] && grade < terminating
			if now := (reached{ask(used).cluster, ask(here).local}); len(now.cluster)+len(now.local) > 0 {
				ports[name] = now
			}
		}
	}
	return ports, lost
}

// serving are all endpoints of the Service that serve a port.
func (w *world) serving(
	addressType discoveryv1.AddressType, port string, protocol corev1.Protocol,
) (all []*discoveryv1.Endpoint) {
	for _, s := range w.slices {
		if s.AddressType == addressType && slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool {
			return *p.Name == port && *p.Protocol == protocol && p.Port != nil
		}) {
			for i := range s.Endpoints {
				all = append(all, &s.Endpoints[i])
			}
		}
	}
	return all
}

func sliceOf(
	addressType discoveryv1.AddressType, port corev1.ServicePort, endpoints []discoveryv1.Endpoint,
) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: addressType, Endpoints: endpoints}
	s.Namespace, s.Name, s.Labels = "ns", "svc", map[string]string{discoveryv1.LabelServiceName: "svc"}
	s.Ports = []discoveryv1.EndpointPort{{Name: &port.Name, Protocol: &port.Protocol, Port: new(int32(8080))}}
	return s
}

// asOne are the addresses of a slice that is shown with its whole Service in mind, whatever its ports.
func (w *world) asOne(s *discoveryv1.EndpointSlice) (addresses []string) {
	keys, known := w.keys()
	if !known {
		return nil
	}
	var all []*discoveryv1.Endpoint
	anySuspected := false
	for _, other := range w.slices {
		for i := range other.Endpoints {
			e := &other.Endpoints[i]
			all = append(all, e)
			anySuspected = anySuspected || w.grade(e) == suspected || w.grade(e) == silent
		}
	}
	key, grade, decided := w.follow(keys, all)
	switch {
	case len(keys) == 0:
		key = "*"
	case len(keys) == 1:
		key = keys[0] // alone, whatever it matches
	case !decided && keys[len(keys)-1] != "*":
		return nil
	case !decided:
		key = "*"
	}
	if len(keys) < 2 && !anySuspected {
		grade = useless // nothing is hidden because something is better
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		worse := w.grade(e) > grade && (w.grade(e) == suspected || w.grade(e) == silent)
		if !worse && w.matches(key, e) {
			addresses = append(addresses, e.Addresses[0])
		}
	}
	return addresses
}
