package prove

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/program/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// surroundings decide which endpoints of a Service a node may reach.
type surroundings struct {
	service   *corev1.Service
	slices    []discoveryv1.EndpointSlice
	nodes     map[string]node
	diagnosis *gridview.Diagnosis
}

// node is a reduced Node.
type node struct {
	labels topology.Labels
	// ready is set if the node can run a pod now.
	ready bool
	// families are the IP families of the node's addresses; empty if not known.
	families []discoveryv1.AddressType
}

func nodeOf(n *corev1.Node) node {
	ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	reduced := node{labels: gridview.LabelsOf(n), ready: ready && n.Status.NodeInfo.OperatingSystem != "windows"}
	for _, a := range n.Status.Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil {
			reduced.families = append(reduced.families, familyOf(address))
		}
	}
	return reduced
}

func familyOf(address netip.Addr) discoveryv1.AddressType {
	if address.Is4() {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func (s *surroundings) read(ctx context.Context, api client.Reader, namespace string, name cluster.ServiceName) (
	err error) {
	if s.service, err = cluster.Service(ctx, api, namespace, name); err != nil {
		return err
	}
	if s.slices, err = cluster.EndpointSlices(ctx, api, s.service); err != nil {
		return err
	}
	s.nodes = map[string]node{}
	err = pages.Each(ctx, api, &corev1.NodeList{}, func(n *corev1.Node) { s.nodes[n.Name] = nodeOf(n) })
	if err != nil {
		return fmt.Errorf("asking for nodes, whose labels are the sites: %w", err)
	}
	return nil
}

func (s *surroundings) view() (*gridview.View, error) {
	labels := make(map[string]topology.Labels, len(s.nodes))
	for name, node := range s.nodes {
		labels[name] = node.labels
	}
	view := (&gridview.Groupings{Nodes: labels, Diagnosis: s.diagnosis}).View(s.service, s.slices)
	switch {
	case view.Error != "":
		return nil, fmt.Errorf("service %s/%s: %s", view.Namespace, view.Service, view.Error)
	case !view.TopologyKeys.Governed():
		return nil, fmt.Errorf("service %s/%s has no %s: it is meant to reach every endpoint from everywhere, and "+
			"there is nothing to prove", view.Namespace, view.Service, v1.AnnotationTopologyKeys)
	}
	return view, nil
}

// targets returns the addresses of a Service to which to connect, one of each family, and the name of their port. port
// is the port, by name or number; empty for the first one of TCP.
func targets(service *corev1.Service, port string) (addresses []netip.AddrPort, portName string, err error) {
	name := service.Namespace + "/" + service.Name
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil, "", fmt.Errorf("service %s is a name of something else (ExternalName), and has no endpoints", name)
	}
	i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return cmp.Or(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP &&
			(port == "" || port == p.Name || port == strconv.Itoa(int(p.Port)))
	})
	if i < 0 {
		var others []string
		for _, p := range service.Spec.Ports {
			others = append(others, fmt.Sprintf("%d/%s", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
		}
		return nil, "", fmt.Errorf("service %s has no %s of TCP, and only TCP can be asked; it has %s", name,
			strings.TrimSpace("port "+port), cmp.Or(strings.Join(others, ", "), "no ports"))
	}
	for _, text := range append([]string{service.Spec.ClusterIP}, service.Spec.ClusterIPs...) {
		address, err := netip.ParseAddr(text)
		target := netip.AddrPortFrom(address, uint16(service.Spec.Ports[i].Port)) //nolint:gosec // a port
		if err == nil && !slices.Contains(addresses, target) {
			addresses = append(addresses, target)
		}
	}
	if len(addresses) == 0 {
		return nil, "", fmt.Errorf("service %s has no cluster IP, so kube-proxy has no part in reaching it; kubectl "+
			"grid view says what each site sees", name)
	}
	return addresses, service.Spec.Ports[i].Name, nil
}
