package kubeadm

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/application-grid/application-grid/test/netns"
)

// The addresses are the same in every cluster: nothing outside of its namespaces sees them.
const (
	routerAddress = "10.0.0.1/16"
	router        = "10.0.0.1"
	// PodNetwork has a range of 256 addresses for every node; ServiceNetwork is kubeadm's default.
	PodNetwork     = "10.244.0.0/16"
	ServiceNetwork = "10.96.0.0/12"
	// The same for IPv6.
	routerAddress6  = "fd00:1::ffff/64"
	router6         = "fd00:1::ffff"
	podNetwork6     = "fd00:244::/48"
	serviceNetwork6 = "fd00:10:96::/112"

	bridgeName = "bridge0"
	uplinkName = "eth0"
)

// bridgeHardwareAddress is the bridge's own. Without one it has the lowest of its ports', which changes when nodes come
// and go.
var bridgeHardwareAddress = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

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
	namespace, err := netns.Create(id)
	if err != nil {
		return nil, err
	}
	err = inNamespace(namespace, func(handle *netlink.Handle) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: bridgeHardwareAddress}}
		if err := handle.LinkAdd(bridge); err != nil {
			return fmt.Errorf("creating the bridge: %w", err)
		}
		if err := configure(handle, bridgeName, families(dual, routerAddress, routerAddress6)...); err != nil {
			return err
		}
		return resetServices(handle, families(dual, ServiceNetwork, serviceNetwork6))
	})
	if err == nil {
		err = namespace.Do(func() error { return forward(dual) })
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the bridge: %w", err), namespace.Close())
	}
	return namespace, nil
}

// resetServices has the router answer connections to Services for which a node has no rules with a reset. They fail at
// once, and the node's conntrack forgets them. Were they unreachable, their entries would stay for two minutes, and a
// later connection from the same port would bypass the rules.
func resetServices(handle *netlink.Handle, networks []string) error {
	if err := configure(handle, "lo"); err != nil {
		return err
	}
	loopback, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	for _, network := range networks {
		_, services, err := net.ParseCIDR(network)
		if err != nil {
			return err
		}
		if err := handle.RouteAdd(&netlink.Route{
			Dst: services, LinkIndex: loopback.Attrs().Index, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
			Scope: netlink.SCOPE_HOST,
		}); err != nil {
			return fmt.Errorf("adding the route to Services: %w", err)
		}
	}
	return nil
}

// families are what there is of IPv4 and, if it is dual, of IPv6.
func families(dual bool, ipv4, ipv6 string) []string {
	if dual {
		return []string{ipv4, ipv6}
	}
	return []string{ipv4}
}

// forward lets a namespace pass on what is for others, and, for IPv6, refuse every connection at once and use new
// addresses at once. It must run in the namespace.
func forward(dual bool) error {
	err := setSysctl("net/ipv4/ip_forward", "1")
	if dual {
		err = errors.Join(err, setSysctl("net/ipv6/conf/all/forwarding", "1"),
			setSysctl("net/ipv6/icmp/ratelimit", "0"), setSysctl("net/ipv6/conf/default/accept_dad", "0"))
	}
	return err
}

// createUplink makes the namespace of the node with this index, with a link to the bridge, and routes to the pods of
// all the other nodes.
func createUplink(bridge *netns.Namespace, name string, index, nodes int, dual bool) (*netns.Namespace, error) {
	namespace, err := netns.Create(name)
	if err != nil {
		return nil, err
	}
	err = inNamespace(bridge, func(handle *netlink.Handle) error {
		master, err := handle.LinkByName(bridgeName)
		if err != nil {
			return fmt.Errorf("finding the bridge: %w", err)
		}
		port := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: portName(index), MasterIndex: master.Attrs().Index},
			PeerName:  uplinkName, PeerNamespace: netlink.NsFd(namespace.Fd()),
			PeerHardwareAddr: hardwareAddress(index),
		}
		if err := handle.LinkAdd(port); err != nil {
			return fmt.Errorf("creating the link: %w", err)
		}
		return handle.LinkSetUp(port)
	})
	if err == nil {
		err = inNamespace(namespace, func(handle *netlink.Handle) error {
			return configureUplink(handle, index, nodes, dual)
		})
	}
	if err == nil {
		err = namespace.Do(func() error {
			// What a connection to a pod that is gone leaves in the table of connections would lead a later one of the
			// same port to that pod too, for two minutes.
			return errors.Join(forward(dual),
				setSysctl("net/netfilter/nf_conntrack_tcp_timeout_syn_sent", "1"),
				setSysctl("net/ipv4/ip_local_reserved_ports", "51003,51006,51007,51009")) // as docs/security.md has it
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the network of %s: %w", name, err), namespace.Close())
	}
	return namespace, nil
}

func configureUplink(handle *netlink.Handle, index, nodes int, dual bool) error {
	if err := configure(handle, "lo"); err != nil {
		return err
	}
	addresses := families(dual, address(index)+"/16", address6(index)+"/64")
	if err := configure(handle, uplinkName, addresses...); err != nil {
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
	return inNamespace(bridge, func(handle *netlink.Handle) error {
		port, err := handle.LinkByName(portName(index))
		if err != nil {
			return fmt.Errorf("finding %s: %w", portName(index), err)
		}
		return set(handle, port)
	})
}

// awaitNoPort waits until the port of a node whose namespace was removed is gone: the kernel is in no hurry.
func awaitNoPort(bridge *netns.Namespace, index int) error {
	return inNamespace(bridge, func(handle *netlink.Handle) error {
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

// configure brings a link up, with these addresses, which may be used at once.
func configure(handle *netlink.Handle, name string, addresses ...string) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding %s: %w", name, err)
	}
	for _, address := range addresses {
		parsed, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		parsed.Flags = unix.IFA_F_NODAD // of IPv6
		if err := handle.AddrAdd(link, parsed); err != nil {
			return fmt.Errorf("giving %s the address %s: %w", name, address, err)
		}
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing %s up: %w", name, err)
	}
	return nil
}

func inNamespace(namespace *netns.Namespace, f func(*netlink.Handle) error) error {
	handle, err := netlink.NewHandleAt(vishnetns.NsHandle(namespace.Fd()))
	if err != nil {
		return fmt.Errorf("opening netlink in namespace %s: %w", namespace.Name(), err)
	}
	defer handle.Close()
	return f(handle)
}

// setSysctl must run in the namespace.
func setSysctl(name, value string) error {
	if err := os.WriteFile("/proc/sys/"+name, []byte(value), 0o600); err != nil {
		return fmt.Errorf("setting sysctl %s: %w", name, err)
	}
	return nil
}
