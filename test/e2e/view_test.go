package e2e

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/workload"
)

// The rule of which endpoints a node may see, written down a second time, independently of the wrapper, as
// the oracle of the tests that compare whole views.

// viewOf returns the slices as the node should see them, by namespace/name.
func viewOf(node string, nodes []corev1.Node, services []corev1.Service,
	all []discoveryv1.EndpointSlice) map[string]*discoveryv1.EndpointSlice {
	labels := map[string]map[string]string{}
	for _, n := range nodes {
		labels[n.Name] = n.Labels
	}
	keys := map[string][]string{}
	for _, service := range services {
		if annotation, ok := service.Annotations[workload.TopologyKeys]; ok {
			var value []string
			if json.Unmarshal([]byte(annotation), &value) == nil {
				keys[service.Namespace+"/"+service.Name] = value
			}
		}
	}
	serviceOf := func(slice *discoveryv1.EndpointSlice) string {
		return slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
	}
	matches := func(endpoint *discoveryv1.Endpoint, key string) bool {
		if key == "*" {
			return true
		}
		own, ok := labels[node][key]
		return ok && endpoint.NodeName != nil && labels[*endpoint.NodeName] != nil &&
			labels[*endpoint.NodeName][key] == own
	}
	// decide returns the key that decides for a Service: of several the first with a ready endpoint.
	decide := func(service string) string {
		candidates := keys[service]
		if len(candidates) == 1 {
			return candidates[0]
		}
		for _, key := range candidates {
			for i := range all {
				for j := range all[i].Endpoints {
					endpoint := &all[i].Endpoints[j]
					if serviceOf(&all[i]) == service && isReady(endpoint) && matches(endpoint, key) {
						return key
					}
				}
			}
		}
		return "" // no node has a label without a name
	}

	view := map[string]*discoveryv1.EndpointSlice{}
	for i := range all {
		slice := all[i].DeepCopy()
		if service := serviceOf(slice); len(keys[service]) > 0 {
			key := decide(service)
			slice.Endpoints = slices.DeleteFunc(slice.Endpoints, func(endpoint discoveryv1.Endpoint) bool {
				return !matches(&endpoint, key)
			})
			for j := range slice.Endpoints {
				slice.Endpoints[j].Hints = nil
			}
		}
		view[slice.Namespace+"/"+slice.Name] = slice
	}
	return view
}

func isReady(endpoint *discoveryv1.Endpoint) bool {
	return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
}

// normalize clears what the wrapper may change in any object: revisions are its own, and it does not keep
// managedFields. An empty list of endpoints is as good as none.
func normalize(object metav1.Object) {
	object.SetResourceVersion("")
	object.SetManagedFields(nil)
	// These change with endpoints that the viewer does not see, and are no event of their own.
	object.SetGeneration(0)
	annotations := maps.Clone(object.GetAnnotations())
	delete(annotations, corev1.EndpointsLastChangeTriggerTime)
	object.SetAnnotations(annotations)
	if slice, ok := object.(*discoveryv1.EndpointSlice); ok && len(slice.Endpoints) == 0 {
		slice.Endpoints = nil
	}
}
