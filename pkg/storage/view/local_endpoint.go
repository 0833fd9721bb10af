package view

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// LocalEndpoint is the address at which pods of this node reach the API server: that of the local lite-apiserver.
type LocalEndpoint struct {
	IP   netip.Addr
	Port uint16
}

const localPortName = "https"

// ParseLocalEndpoint reads an IP address and a TCP port.
func ParseLocalEndpoint(ip, port string) (*LocalEndpoint, error) {
	address, err := netip.ParseAddr(ip)
	if err != nil || address.Zone() != "" {
		return nil, fmt.Errorf("%q is not an IP address", ip)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil || number == 0 {
		return nil, fmt.Errorf("%q is not a TCP port (1 to 65535)", port)
	}
	return &LocalEndpoint{IP: address.Unmap(), Port: uint16(number)}, nil
}

// localEndpointFor returns the endpoint that replaces the endpoints of an object; nil if they are not replaced. The
// error is why a configured endpoint is not used.
//
// The flag takes precedence over annotations, and the object's own annotations over those of the Endpoints object of
// the same Service. An address of another family than the object's is not used: data planes would have no endpoint for
// the Service's cluster IP.
func (v lockedView) localEndpointFor(o *facts.EndpointSet) (*LocalEndpoint, error) {
	if v.options.KeepKubernetesEndpoint || o.Service == nil || o.Service.Name != facts.KubernetesService {
		return nil, nil //nolint:nilnil // no endpoint is not an error
	}
	if given := v.options.LocalEndpoint; given != nil {
		if err := given.checkFamily(o); err != nil {
			return nil, err
		}
		return given, nil
	}
	var errs []error
	for _, annotations := range []map[string]string{o.Upstream.Annotations(), v.facts.KubernetesAnnotations()} {
		local, err := annotatedLocalEndpoint(annotations)
		if err == nil && local != nil {
			err = local.checkFamily(o)
		}
		if err == nil && local != nil {
			return local, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// checkFamily returns an error if the address is of another family than the endpoints of an object. Endpoints without
// any may get those of both families.
func (local LocalEndpoint) checkFamily(o *facts.EndpointSet) error {
	var family discoveryv1.AddressType
	if o.Resource() == served.EndpointSlices {
		addressType, _ := wire.ScanPorts(o.Upstream.Body, func(wire.Port) {})
		family = discoveryv1.AddressType(addressType)
	} else {
		_ = o.Codec().Scan(o.Upstream.Body, func(e wire.Endpoint) {
			if address, err := netip.ParseAddr(string(e.Address)); err == nil {
				family = familyOf(address.Unmap())
			}
		})
	}
	if family == "" || family == familyOf(local.IP) {
		return nil
	}
	return fmt.Errorf("the local endpoint %s is an %s address, and %s %s has %s addresses", local.IP,
		familyOf(local.IP), o.Resource().Kind, o.Name(), family)
}

func familyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Is6() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// LocalEndpointProblem returns why the configured local endpoint does not replace that of default/kubernetes in any
// EndpointSlice; nil if it does, or if none is configured.
func (v *View) LocalEndpointProblem() (problem error) {
	v.source.Read(func(in facts.Reader) {
		s := in.Service(facts.KubernetesService)
		if s == nil {
			return
		}
		for _, o := range s.Objects(served.EndpointSlices) {
			local, err := lockedView{v, in}.localEndpointFor(o)
			if local != nil {
				problem = nil
				return
			}
			problem = err
		}
	})
	return problem
}

// body returns the body of default/kubernetes with this endpoint only.
func (local LocalEndpoint) body(r *served.Resource) ([]byte, error) {
	meta := metav1.ObjectMeta{Name: facts.KubernetesService.Name}
	var typed served.Typed = &corev1.Endpoints{ObjectMeta: meta, Subsets: []corev1.EndpointSubset{{
		Addresses: []corev1.EndpointAddress{{IP: local.IP.String()}},
		Ports:     []corev1.EndpointPort{{Name: localPortName, Port: int32(local.Port), Protocol: corev1.ProtocolTCP}},
	}}}
	if r == served.EndpointSlices {
		typed = &discoveryv1.EndpointSlice{
			ObjectMeta:  meta,
			AddressType: familyOf(local.IP),
			Endpoints: []discoveryv1.Endpoint{{
				Addresses:  []string{local.IP.String()},
				Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			}},
			Ports: []discoveryv1.EndpointPort{{
				Name: new(localPortName), Protocol: new(corev1.ProtocolTCP), Port: new(int32(local.Port)),
			}},
		}
	}
	o, err := wire.ObjectOf(typed)
	if err != nil {
		return nil, err
	}
	return o.Body, nil
}

func annotatedLocalEndpoint(annotations map[string]string) (*LocalEndpoint, error) {
	ip, hasIP := annotations[v1.AnnotationLocalEndpoint]
	port, hasPort := annotations[v1.AnnotationLocalPort]
	switch {
	case !hasIP && !hasPort:
		return nil, nil //nolint:nilnil // missing annotations are not an error
	case !hasPort:
		return nil, fmt.Errorf("annotation %s is missing", v1.AnnotationLocalPort)
	case !hasIP:
		return nil, fmt.Errorf("annotation %s is missing", v1.AnnotationLocalEndpoint)
	}
	return ParseLocalEndpoint(ip, port)
}
