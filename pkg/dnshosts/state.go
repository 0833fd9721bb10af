package dnshosts

import (
	"fmt"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

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

// Endpoint is a pod whose subdomain is the Service: a StatefulSet that names the Service as its serviceName makes such
// pods.
type Endpoint struct {
	// Pod is the pod's name, which is also its host name.
	Pod string
	// Addresses are empty if the pod is ending, or is known to have lost its address.
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

// sliceOf reduces an EndpointSlice to the endpoints of pods with a host name. The EndpointSlice controller gives only
// those a host name that have the Service as their subdomain. Readiness does not matter: the members of a set must find
// each other before they are ready.
func sliceOf(o *wire.Object) (*Slice, error) {
	var object discoveryv1.EndpointSlice
	if err := object.Unmarshal(wire.AppendObject(nil, o.Meta, o.Body, 0)); err != nil {
		return nil, fmt.Errorf("decoding an EndpointSlice: %w", err)
	}
	slice := &Slice{Namespace: object.Namespace, Service: object.Labels[discoveryv1.LabelServiceName]}
	for i := range object.Endpoints {
		endpoint := &object.Endpoints[i]
		pod := endpoint.TargetRef
		if pod == nil || pod.Kind != "Pod" || pod.Namespace != object.Namespace ||
			ptr.Deref(endpoint.Hostname, "") != pod.Name {
			continue
		}
		kept := Endpoint{Pod: pod.Name}
		if !ptr.Deref(endpoint.Conditions.Terminating, false) {
			for _, text := range endpoint.Addresses {
				if address, err := netip.ParseAddr(text); err == nil && !slices.Contains(kept.Addresses, address) {
					kept.Addresses = append(kept.Addresses, address)
				}
			}
		}
		slice.Endpoints = append(slice.Endpoints, kept)
	}
	return slice, nil
}
