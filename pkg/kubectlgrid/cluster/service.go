package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Kinds of a ServiceName.
const (
	kindService     = "Service"
	kindServiceGrid = "ServiceGrid"
)

// ServiceName is a user's name for a Service.
type ServiceName struct {
	// Kind is Service, ServiceGrid, or empty for either.
	Kind, Name string
}

// ParseServiceName reads NAME, svc/NAME or sg/NAME.
func ParseServiceName(text string) (ServiceName, error) {
	prefix, name, hasPrefix := strings.Cut(text, "/")
	if !hasPrefix {
		return ServiceName{Name: text}, nil
	}
	switch {
	case name == "":
		return ServiceName{}, fmt.Errorf("%q names no Service", text)
	case prefix == "svc" || prefix == "service" || prefix == "services":
		return ServiceName{kindService, name}, nil
	}
	if k, err := ParseKind(prefix); err != nil || k.Kind != kindServiceGrid {
		return ServiceName{}, fmt.Errorf("%q is neither a Service (svc/NAME) nor a ServiceGrid (sg/NAME)", text)
	}
	return ServiceName{kindServiceGrid, name}, nil
}

// Service reads the named Service. A bare name is that of a Service; if that does not exist or is not governed, it is
// that of a ServiceGrid.
func Service(ctx context.Context, api client.Reader, namespace string, wanted ServiceName) (*corev1.Service, error) {
	get := func(name string) (*corev1.Service, error) {
		service := &corev1.Service{}
		err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, service)
		return service, err
	}
	name := wanted.Name
	if wanted.Kind == kindServiceGrid {
		service, err := get(name + v1.ServiceSuffix)
		if !apierrors.IsNotFound(err) {
			return service, err
		}
		grid := &v1.ServiceGrid{}
		if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, grid); err != nil {
			return nil, Explain(err)
		}
		return nil, fmt.Errorf("ServiceGrid %s has no Service %s yet: kubectl grid status sg/%s -n %s says why",
			name, name+v1.ServiceSuffix, name, namespace)
	}
	service, err := get(name)
	if wanted.Kind == kindService || (err != nil && !apierrors.IsNotFound(err)) {
		return service, err
	}
	// also one that does not parse
	if _, annotation, _ := topology.KeysOf(service.Annotations); err == nil && annotation != "" {
		return service, nil
	}
	ofGrid, gridErr := get(name + v1.ServiceSuffix)
	if by := metav1.GetControllerOf(ofGrid); gridErr == nil && by != nil && by.Kind == kindServiceGrid &&
		by.Name == name {
		return ofGrid, nil
	}
	if err != nil {
		return nil, errors.New("no Service and no ServiceGrid " + name + " exists in namespace " + namespace)
	}
	return service, nil
}

// EndpointSlices reads the EndpointSlices of a Service.
func EndpointSlices(ctx context.Context, api client.Reader, of *corev1.Service) ([]discoveryv1.EndpointSlice, error) {
	list := &discoveryv1.EndpointSliceList{}
	err := api.List(ctx, list, client.InNamespace(of.Namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: of.Name})
	if err != nil {
		return nil, fmt.Errorf("asking for endpointslices: %w", err)
	}
	return list.Items, nil
}
