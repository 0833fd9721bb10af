package cluster

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/test/netns"
)

// The addresses are the same in every cluster: nothing outside of its namespaces sees them.
const (
	// LiteAddress is where SuperEdge's installation has the lite-apiserver of every node. kube-apiserver's certificate
	// is good for it; nothing listens there by itself.
	LiteAddress = "169.254.20.11"
	// bridgeAddress is the control plane's address for the nodes and their default gateway.
	bridgeAddress = "10.0.0.1"
	podNetwork    = "10.244.0.0/16"
	// The same with Options.DualStack.
	bridgeAddress6 = "fd00:1::ffff"
	podNetwork6    = "fd00:244::/48"
	// maxNodes is the number of nodes with a data plane for which there are addresses.
	maxNodes = 250

	// podsName is the interface that holds the addresses of a node's pods. Loopback, because kernels of small
	// virtual machines come without dummy devices.
	podsName = "lo"
)

// nodeAddress is the address of the node with this index, from 0.
func nodeAddress(index int) string { return fmt.Sprintf("10.0.1.%d", index+1) }

// podCIDR is the range of its pods' addresses.
func podCIDR(index int) string { return fmt.Sprintf("10.244.%d.0/24", index) }

// nodeAddress6 and podCIDR6 are the same with Options.DualStack.
func nodeAddress6(index int) string { return fmt.Sprintf("fd00:1::%x", index+1) }

func podCIDR6(index int) string { return fmt.Sprintf("fd00:244:0:%x::/64", index) }

// families are what there is of IPv4 and, with Options.DualStack, of IPv6.
func (c *Cluster) families(ipv4, ipv6 string) []string {
	if c.options.DualStack {
		return []string{ipv4, ipv6}
	}
	return []string{ipv4}
}

// podNetworks are the ranges of all pods' addresses.
func (c *Cluster) podNetworks() string { return strings.Join(c.families(podNetwork, podNetwork6), ",") }

// createBridgeNamespace makes the control plane's namespace. It is also the router between the nodes: every
// node needs one default route only, and a new node changes nothing on the others.
func (c *Cluster) createBridgeNamespace() (*netns.Namespace, error) {
	// Redirects would tell the nodes the way around the router, one more thing that could be stale.
	settings := []string{"net/ipv4/ip_forward=1", "net/ipv4/conf/all/send_redirects=0",
		"net/ipv4/conf/" + netns.BridgeName + "/send_redirects=0", "net/ipv4/conf/all/rp_filter=0",
		"net/ipv4/conf/" + netns.BridgeName + "/rp_filter=0"}
	if c.options.DualStack {
		settings = append(settings, "net/ipv6/conf/all/forwarding=1")
	}
	return netns.CreateRouter(c.id, c.families(bridgeAddress+"/16", bridgeAddress6+"/64"),
		c.families(serviceCIDR, serviceCIDR6), settings...)
}

// linkNode makes the node's namespace and its link to the bridge.
func (c *Cluster) linkNode(name string, index int) (*netns.Namespace, error) {
	namespace, err := netns.Create(c.id + "-" + name)
	if err != nil {
		return nil, err
	}
	if err := c.configureNode(namespace, index); err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the network of node %s: %w", name, err), namespace.Close())
	}
	return namespace, nil
}

func (c *Cluster) configureNode(namespace *netns.Namespace, index int) error {
	if err := c.namespace.Plug(namespace, portName(index), nil); err != nil {
		return err
	}
	pods := c.families(podCIDR(index), podCIDR6(index))
	addresses := c.families(nodeAddress(index), nodeAddress6(index))
	err := namespace.Links(func(handle *netlink.Handle) error {
		err := errors.Join(netns.Configure(handle, podsName), netns.Configure(handle, netns.UplinkName,
			c.families(nodeAddress(index)+"/16", nodeAddress6(index)+"/64")...))
		for i, router := range c.families(bridgeAddress, bridgeAddress6) {
			err = errors.Join(err, handle.RouteAdd(&netlink.Route{Gw: net.ParseIP(router)}),
				// To the address of a pod that is gone; otherwise it would go back and forth to the router.
				handle.RouteAdd(&netlink.Route{Dst: mustCIDR(pods[i]), Type: unix.RTN_UNREACHABLE}))
		}
		return err
	})
	if err != nil {
		return err
	}
	// Only now are the gateways of these routes reachable for the kernel.
	err = c.namespace.Links(func(handle *netlink.Handle) (err error) {
		for i, address := range addresses {
			err = errors.Join(err, handle.RouteAdd(&netlink.Route{Dst: mustCIDR(pods[i]), Gw: net.ParseIP(address)}))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("adding the routes to its pods: %w", err)
	}
	// Without a limit on errors every connection to a pod that is gone fails at once. What it leaves in the table
	// of connections would lead a later one of the same port to that pod too, for two minutes.
	// The wrapper's port is one of those from which connections are made: while it is stopped one could take it.
	settings := []string{"net/ipv4/ip_forward=1", "net/ipv4/icmp_ratelimit=0",
		"net/netfilter/nf_conntrack_tcp_timeout_syn_sent=1",
		fmt.Sprintf("net/ipv4/ip_local_reserved_ports=%d", wrapperPort),
		"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/" + netns.UplinkName + "/rp_filter=0"}
	if c.options.DualStack {
		settings = append(settings, "net/ipv6/conf/all/forwarding=1", "net/ipv6/icmp/ratelimit=0")
	}
	return namespace.SetSysctls(settings...)
}

// portName is the bridge's port for the node with this index.
func portName(index int) string { return fmt.Sprintf("node%d", index) }

// unlinkNode removes what configureNode left in the control plane's namespace; the route goes with the link
// only if the bridge went, so it is removed by itself.
func (c *Cluster) unlinkNode(index int) error {
	return c.namespace.Links(func(handle *netlink.Handle) error {
		for _, pods := range c.families(podCIDR(index), podCIDR6(index)) {
			if err := handle.RouteDel(&netlink.Route{Dst: mustCIDR(pods)}); err != nil {
				return fmt.Errorf("removing the route to pods: %w", err)
			}
		}
		link, err := handle.LinkByName(portName(index))
		if err != nil {
			return fmt.Errorf("finding the node's link: %w", err)
		}
		return handle.LinkDel(link)
	})
}

// mustCIDR parses one of the constants above.
func mustCIDR(cidr string) *net.IPNet {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return network
}
