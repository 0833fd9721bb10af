package kubeadm

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/application-grid/application-grid/test/netns"
)

// The addresses are the same in every cluster: nothing outside of its namespaces sees them.
const (
	router = "10.0.0.1"
	// PodNetwork has a range of 256 addresses for every node; ServiceNetwork is kubeadm's default.
	PodNetwork     = "10.244.0.0/16"
	ServiceNetwork = "10.96.0.0/12"
	// The same for IPv6.
	router6         = "fd00:1::ffff"
	podNetwork6     = "fd00:244::/48"
	serviceNetwork6 = "fd00:10:96::/112"
)

// address is the address of the node with this index, from 0; podRange has the addresses of its pods.
func address(index int) string  { return fmt.Sprintf("10.0.1.%d", index+1) }
func podRange(index int) string { return fmt.Sprintf("10.244.%d.0/24", index) }

func address6(index int) string  { return fmt.Sprintf("fd00:1::%x", index+1) }
func podRange6(index int) string { return fmt.Sprintf("fd00:244:0:%x::/64", index) }

// hardwareAddress is that of the node's network card: the same after a power cut, as neighbours remember it.
func hardwareAddress(index int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0, 0, 0, 1, byte(index)} //nolint:gosec // there are a few nodes
}

// portName is the bridge's port for the node with this index.
func portName(index int) string { return fmt.Sprintf("port%d", index) }

// createBridge makes the namespace that links the nodes, with addresses of IPv6 too if it is dual.
func createBridge(id string, dual bool) (*netns.Namespace, error) {
	return netns.CreateRouter(id, families(dual, router+"/16", router6+"/64"),
		families(dual, ServiceNetwork, serviceNetwork6), forward(dual)...)
}

// families are what there is of IPv4 and, if it is dual, of IPv6.
func families(dual bool, ipv4, ipv6 string) []string {
	if dual {
		return []string{ipv4, ipv6}
	}
	return []string{ipv4}
}

// forward lets a namespace pass on what is for others, and, for IPv6, refuse every connection at once and use new
// addresses at once.
func forward(dual bool) []string {
	if !dual {
		return []string{"net/ipv4/ip_forward=1"}
	}
	return []string{"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1", "net/ipv6/icmp/ratelimit=0",
		"net/ipv6/conf/default/accept_dad=0"}
}

// createUplink makes the namespace of the node with this index, with a link to the bridge, and routes to the pods of
// all the other nodes.
func createUplink(bridge *netns.Namespace, name string, index, nodes int, dual bool) (*netns.Namespace, error) {
	namespace, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	err = bridge.Plug(namespace, portName(index), hardwareAddress(index))
	if err == nil {
		err = namespace.Links(func(handle *netlink.Handle) error { return configureUplink(handle, index, nodes, dual) })
	}
	if err == nil {
		// What a connection to a pod that is gone leaves in the table of connections would lead a later one of the same
		// port to that pod too, for two minutes. The ports are those that docs/security.md has.
		err = namespace.SetSysctls(append(forward(dual), "net/netfilter/nf_conntrack_tcp_timeout_syn_sent=1",
			"net/ipv4/ip_local_reserved_ports=51003,51006,51007,51009")...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the network of %s: %w", name, err), namespace.Close())
	}
	return namespace, nil
}

func configureUplink(handle *netlink.Handle, index, nodes int, dual bool) error {
	if err := netns.Configure(handle, "lo"); err != nil {
		return err
	}
	addresses := families(dual, address(index)+"/16", address6(index)+"/64")
	if err := netns.Configure(handle, netns.UplinkName, addresses...); err != nil {
		return err
	}
	for _, gateway := range families(dual, router, router6) {
		if err := handle.RouteAdd(&netlink.Route{Gw: net.ParseIP(gateway)}); err != nil {
			return fmt.Errorf("adding the default route: %w", err)
		}
	}
	for other := range nodes {
		if other == index {
			continue
		}
		gateways := families(dual, address(other), address6(other))
		for i, pods := range families(dual, podRange(other), podRange6(other)) {
			_, destination, err := net.ParseCIDR(pods)
			if err != nil {
				return err
			}
			if err := handle.RouteAdd(&netlink.Route{Dst: destination, Gw: net.ParseIP(gateways[i])}); err != nil {
				return fmt.Errorf("adding the route to %s: %w", pods, err)
			}
		}
	}
	return nil
}

// setPort connects the bridge with the node of this index, or takes that link down.
func setPort(bridge *netns.Namespace, index int, set func(*netlink.Handle, netlink.Link) error) error {
	return bridge.Links(func(handle *netlink.Handle) error {
		port, err := handle.LinkByName(portName(index))
		if err != nil {
			return fmt.Errorf("finding %s: %w", portName(index), err)
		}
		return set(handle, port)
	})
}

// awaitNoPort waits until the port of a node whose namespace was removed is gone: the kernel is in no hurry.
func awaitNoPort(bridge *netns.Namespace, index int) error {
	return bridge.Links(func(handle *netlink.Handle) error {
		for begin := time.Now(); time.Since(begin) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
			port, err := handle.LinkByName(portName(index))
			if errors.As(err, &netlink.LinkNotFoundError{}) {
				return nil
			}
			if err == nil {
				_ = handle.LinkDel(port) // its end in the node's namespace may be kept by a process that is ending
			}
		}
		return fmt.Errorf("%s is still there", portName(index))
	})
}
