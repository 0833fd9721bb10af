package dnshosts

import (
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// The types below have the fields of API objects on which records depend.

// Service is a Service of a ServiceGrid.
type Service struct {
	// KeyLabel is the value of the label grid-uniq-key. Key is the whole key, if it is not a valid label value.
	KeyLabel, Key string
	Terminating   bool
}

// Slice is an EndpointSlice of the Service of a ServiceGrid.
type Slice struct {
	Namespace, Service string
	Endpoints          []Endpoint
}

// Endpoint is a pod.
type Endpoint struct {
	// Pod is the pod's name, which is also its host name, if the pod's subdomain is the Service: a StatefulSet that
	// names the Service as its serviceName makes such pods. It is "" for others, which have no records.
	Pod       string
	Addresses []netip.Addr
}

// labelsOf keeps the labels of a Node, which are not nil.
func labelsOf(o *wire.Object) (map[string]string, error) {
	if o.Labels == nil {
		return map[string]string{}, nil
	}
	return o.Labels, nil
}

// serviceOf reduces a Service to the needed fields.
func serviceOf(o *wire.Object) (Service, error) {
	var m metav1.ObjectMeta
	if err := m.Unmarshal(o.Meta); err != nil {
		return Service{}, fmt.Errorf("decoding the metadata: %w", err)
	}
	return Service{
		KeyLabel: o.Labels[v1.LabelGridUniqKey], Key: m.Annotations[v1.AnnotationGridUniqKey],
		Terminating: m.DeletionTimestamp != nil,
	}, nil
}

// sliceOf reduces an EndpointSlice to the endpoints of pods that are not ending. The EndpointSlice controller gives
// only those a host name that have the Service as their subdomain. Readiness does not matter: the members of a set must
// find each other before they are ready.
func sliceOf(o *wire.Object) (*Slice, error) {
	var object discoveryv1.EndpointSlice
	if err := object.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
		return nil, fmt.Errorf("decoding an EndpointSlice: %w", err)
	}
	slice := &Slice{Namespace: object.Namespace, Service: object.Labels[discoveryv1.LabelServiceName]}
	for i := range object.Endpoints {
		endpoint := &object.Endpoints[i]
		pod, ending := endpoint.TargetRef, endpoint.Conditions.Terminating
		if pod == nil || pod.Kind != "Pod" || pod.Namespace != object.Namespace || ending != nil && *ending {
			continue
		}
		kept := Endpoint{}
		if endpoint.Hostname != nil && *endpoint.Hostname == pod.Name {
			kept.Pod = pod.Name
		}
		for _, text := range endpoint.Addresses {
			if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(kept.Addresses, address) {
				kept.Addresses = append(kept.Addresses, address)
			}
		}
		slice.Endpoints = append(slice.Endpoints, kept)
	}
	return slice, nil
}
