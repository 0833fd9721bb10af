package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// completed returns the body of Endpoints that the endpoints controller truncated. It is built from what the viewer may
// see of the Service's slices. The controller drops all addresses beyond 1,000, and those that are left may have none
// of the viewer's site.
func (v reading) completed(o *facts.Object) (body []byte, count EndpointCount) {
	subsets, count, err := v.subsets(o)
	if err == nil {
		body, err = bodyOf(&corev1.Endpoints{Subsets: subsets})
	}
	if err != nil {
		v.options.Logger.Error(err, "Cannot complete truncated Endpoints, showing none", "service", o.Name())
		return nil, count
	}
	return body, count
}

// subsets returns the Service's slices as subsets of Endpoints, one for each list of ports.
func (v reading) subsets(o *facts.Object) ([]corev1.EndpointSubset, EndpointCount, error) {
	var count EndpointCount
	var subsets []corev1.EndpointSubset
	byPorts := make(map[string]int)
	family, err := addressType(o)
	if err != nil {
		return nil, count, err
	}
	members := slices.SortedFunc(slices.Values(o.Service.Objects(served.EndpointSlices)),
		func(a, b *facts.Object) int {
			return cmp.Compare(a.Upstream.Name, b.Upstream.Name)
		})
	for _, member := range members {
		slice, err := decodeSlice(member.Upstream, member.Body())
		if err != nil {
			return nil, count, err
		}
		if slice.AddressType != family {
			continue
		}
		ports := portsOf(slice)
		i, found := byPorts[fmt.Sprint(ports)]
		if !found {
			i = len(subsets)
			byPorts[fmt.Sprint(ports)] = i
			subsets = append(subsets, corev1.EndpointSubset{Ports: ports})
		}
		rest := slice.Endpoints
		choice := v.choice(member)
		decision := v.keeps(member, choice)
		err = member.Codec().Scan(member.Body(), func(e wire.Endpoint) {
			if !decision.Keep(v.facts.LabelsOf(e.NodeName)) || v.hides(member, choice, e) {
				count.Hidden++
			} else {
				count.Kept++
				addTo(&subsets[i], &rest[0])
			}
			rest = rest[1:]
		})
		if err != nil {
			return nil, count, err
		}
	}
	subsets = slices.DeleteFunc(subsets, func(s corev1.EndpointSubset) bool {
		return len(s.Addresses)+len(s.NotReadyAddresses) == 0 // such a subset is not valid
	})
	return subsets, count, nil
}

// decodeSlice decodes a slice with another body than its own.
func decodeSlice(o *wire.Object, body []byte) (*discoveryv1.EndpointSlice, error) {
	slice := &discoveryv1.EndpointSlice{}
	if err := slice.Unmarshal(wire.AppendObject(nil, o.Meta, body, 0)); err != nil {
		return nil, fmt.Errorf("decoding EndpointSlice %s/%s: %w", o.Namespace, o.Name, err)
	}
	return slice, nil
}

// addressType returns the family of the addresses of Endpoints. All addresses of an Endpoints object have the same
// family.
func addressType(o *facts.Object) (discoveryv1.AddressType, error) {
	var list corev1.Endpoints
	if err := list.Unmarshal(o.Upstream.Body); err != nil {
		return "", fmt.Errorf("decoding Endpoints %s: %w", o.Name(), err)
	}
	for _, subset := range list.Subsets {
		for _, address := range slices.Concat(subset.Addresses, subset.NotReadyAddresses) {
			if ip, err := netip.ParseAddr(address.IP); err == nil && ip.Is6() {
				return discoveryv1.AddressTypeIPv6, nil
			}
		}
	}
	return discoveryv1.AddressTypeIPv4, nil
}

func portsOf(slice *discoveryv1.EndpointSlice) []corev1.EndpointPort {
	ports := make([]corev1.EndpointPort, 0, len(slice.Ports))
	for _, p := range slice.Ports {
		ports = append(ports, corev1.EndpointPort{
			Name:        ptr.Deref(p.Name, ""),
			Port:        ptr.Deref(p.Port, 0),
			Protocol:    ptr.Deref(p.Protocol, corev1.ProtocolTCP),
			AppProtocol: p.AppProtocol,
		})
	}
	return ports
}

func addTo(subset *corev1.EndpointSubset, e *discoveryv1.Endpoint) {
	if len(e.Addresses) == 0 {
		return
	}
	// Only the first address of an endpoint is used (discovery/v1).
	address := corev1.EndpointAddress{
		IP:        e.Addresses[0],
		Hostname:  ptr.Deref(e.Hostname, ""),
		NodeName:  e.NodeName,
		TargetRef: e.TargetRef,
	}
	if ptr.Deref(e.Conditions.Ready, true) {
		subset.Addresses = append(subset.Addresses, address)
	} else {
		subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
	}
}
