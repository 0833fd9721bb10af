package wiretest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// Node is a node in a zone.
func Node(name, zone string) *wire.Object { return Object(NodeOf(name, zone)) }

// NodeOf is Node, not encoded.
func NodeOf(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": zone}}}
}

// NodeWith is a node with labels.
func NodeWith(name string, labels map[string]string) *wire.Object {
	return Object(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// meta is that of an object in namespace ns, or of NAMESPACE/NAME, with its name as its UID.
func meta(name string) metav1.ObjectMeta {
	namespace, rest, found := strings.Cut(name, "/")
	if !found {
		namespace, rest = "ns", name
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: rest, UID: types.UID(rest)}
}

// Service is one with these topologyKeys, "" for none, in namespace ns, or NAMESPACE/NAME.
func Service(name, keys string) *wire.Object { return Object(ServiceOf(name, keys)) }

// ServiceOf is Service, not encoded.
func ServiceOf(name, keys string) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: meta(name)}
	if keys != "" {
		svc.Annotations = map[string]string{"topologyKeys": keys}
	}
	return svc
}

// Slice is one of a Service, in namespace ns, or NAMESPACE/NAME. It has an endpoint on each of the nodes, with the
// address 10.0.0.0 and so on, of the pod SERVICE-0 and so on with the UID uid-0 and so on. Those of NODE! are not
// ready.
func Slice(name, service string, nodes ...string) *wire.Object {
	return Object(SliceOf(name, service, nodes...))
}

// SliceOf is Slice, not encoded.
func SliceOf(name, service string, nodes ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(name), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for i, node := range nodes {
		node, unready := strings.CutSuffix(node, "!")
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address(i)}, NodeName: ptr.To(node), TargetRef: pod(service, i),
			Conditions: discoveryv1.EndpointConditions{
				Ready: ptr.To(!unready), Serving: ptr.To(!unready), Terminating: ptr.To(false),
			},
		})
	}
	return s
}

// Endpoints are those of a Service, with the same addresses on the nodes as Slice has.
func Endpoints(service string, nodes ...string) *wire.Object {
	subset := corev1.EndpointSubset{Ports: []corev1.EndpointPort{{Port: 80}}}
	for i, node := range nodes {
		node, unready := strings.CutSuffix(node, "!")
		a := corev1.EndpointAddress{IP: address(i), NodeName: ptr.To(node), TargetRef: pod(service, i)}
		if unready {
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, a)
		} else {
			subset.Addresses = append(subset.Addresses, a)
		}
	}
	return Object(&corev1.Endpoints{ObjectMeta: meta(service), Subsets: []corev1.EndpointSubset{subset}})
}

func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255) }

func pod(service string, i int) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		Kind: "Pod", Namespace: "ns", Name: fmt.Sprint(service, "-", i), UID: types.UID(fmt.Sprint("uid-", i)),
	}
}
