package cluster

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"
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
	nodeNetwork   = "10.0.0.0/16"
	podNetwork    = "10.244.0.0/16"
	// The same with Options.DualStack. bridgeAddress6 has the mask of the nodes' network.
	bridgeAddress6 = "fd00:1::ffff/64"
	podNetwork6    = "fd00:244::/48"
	// maxNodes is the number of nodes with a data plane for which there are addresses.
	maxNodes = 250

	bridgeName = "bridge0"
	// uplinkName is a node's end of the veth pair.
	uplinkName = "eth0"
	// podsName is the interface that holds the addresses of a node's pods. Loopback, because kernels of small
	// virtual machines come without dummy devices.
	podsName = "lo"
)

// bridgeHardwareAddress is one of those that are free for local use.
var bridgeHardwareAddress = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

// nodeAddress is the address of the node with this index, from 0.
func nodeAddress(index int) string { return fmt.Sprintf("10.0.1.%d", index+1) }

// podCIDR is the range of its pods' addresses.
func podCIDR(index int) string { return fmt.Sprintf("10.244.%d.0/24", index) }

// nodeAddress6 and podCIDR6 are the same with Options.DualStack.
func nodeAddress6(index int) string { return fmt.Sprintf("fd00:1::%x", index+1) }

func podCIDR6(index int) string { return fmt.Sprintf("fd00:244:0:%x::/64", index) }

// podNetworks are the ranges of all pods' addresses.
func (c *Cluster) podNetworks() string {
	if c.options.DualStack {
		return podNetwork + "," + podNetwork6
	}
	return podNetwork
}

// links opens a netlink connection in the namespace.
func links(namespace *netns.Namespace) (*netlink.Handle, error) {
	handle, err := netlink.NewHandleAt(vishnetns.NsHandle(namespace.Fd()))
	if err != nil {
		return nil, fmt.Errorf("opening netlink in namespace %s: %w", namespace.Name(), err)
	}
	return handle, nil
}

// createBridgeNamespace makes the control plane's namespace. It is also the router between the nodes: every
// node needs one default route only, and a new node changes nothing on the others.
func (c *Cluster) createBridgeNamespace() (*netns.Namespace, error) {
	namespace, err := netns.Create(c.id)
	if err != nil {
		return nil, err
	}
	err = configureBridge(namespace)
	if err == nil && c.options.DualStack {
		err = configureBridge6(namespace)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the control plane's network: %w", err), namespace.Close())
	}
	return namespace, nil
}

func configureBridge(namespace *netns.Namespace) error {
	handle, err := links(namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := bringUp(handle, "lo"); err != nil {
		return err
	}
	// With an address of its own. Otherwise it has the lowest of its ports', which changes when nodes come and go:
	// the others go on sending to the one before, into the void, until their neighbour entry has expired.
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: bridgeName, HardwareAddr: bridgeHardwareAddress}}
	if err := handle.LinkAdd(bridge); err != nil {
		return fmt.Errorf("creating the bridge: %w", err)
	}
	if err := addAddress(handle, bridgeName, withMaskOf(bridgeAddress, nodeNetwork)); err != nil {
		return err
	}
	if err := bringUp(handle, bridgeName); err != nil {
		return err
	}
	// A connection to a Service for which a node has no rules ends here. As an address of its own the router
	// answers it with a reset: it fails at once, and conntrack forgets it. Were it dropped or unreachable, its
	// entry would stay for minutes, and a later connection from the same port would bypass the rules.
	loopback, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := handle.RouteAdd(&netlink.Route{
		Dst: mustCIDR(serviceCIDR), LinkIndex: loopback.Attrs().Index,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	}); err != nil {
		return fmt.Errorf("adding the route to Services: %w", err)
	}
	return namespace.Do(func() error {
		// Redirects would tell the nodes the way around the router, one more thing that could be stale.
		return setSysctls("net/ipv4/ip_forward=1", "net/ipv4/conf/all/send_redirects=0",
			"net/ipv4/conf/"+bridgeName+"/send_redirects=0", "net/ipv4/conf/all/rp_filter=0",
			"net/ipv4/conf/"+bridgeName+"/rp_filter=0")
	})
}

// configureBridge6 does what configureBridge does, for IPv6.
func configureBridge6(namespace *netns.Namespace) error {
	handle, err := links(namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := addAddress6(handle, bridgeName, bridgeAddress6); err != nil {
		return err
	}
	loopback, err := handle.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("finding the loopback interface: %w", err)
	}
	if err := handle.RouteAdd(&netlink.Route{Dst: mustCIDR(serviceCIDR6), LinkIndex: loopback.Attrs().Index,
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL}); err != nil {
		return fmt.Errorf("adding the route to Services: %w", err)
	}
	return namespace.Do(func() error { return setSysctls("net/ipv6/conf/all/forwarding=1") })
}

// configureNode6 does what configureNode does, for IPv6.
func configureNode6(namespace *netns.Namespace, inner, outer *netlink.Handle, index int) error {
	if err := addAddress6(inner, uplinkName, nodeAddress6(index)+"/64"); err != nil {
		return err
	}
	router, _, err := net.ParseCIDR(bridgeAddress6)
	if err != nil {
		return err
	}
	if err := errors.Join(inner.RouteAdd(&netlink.Route{Gw: router}),
		inner.RouteAdd(&netlink.Route{Dst: mustCIDR(podCIDR6(index)), Type: unix.RTN_UNREACHABLE}),
		outer.RouteAdd(&netlink.Route{Dst: mustCIDR(podCIDR6(index)), Gw: net.ParseIP(nodeAddress6(index))}),
	); err != nil {
		return fmt.Errorf("adding routes: %w", err)
	}
	return namespace.Do(func() error {
		return setSysctls("net/ipv6/conf/all/forwarding=1", "net/ipv6/icmp/ratelimit=0")
	})
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
	outer, err := links(c.namespace)
	if err != nil {
		return err
	}
	defer outer.Close()
	bridge, err := outer.LinkByName(bridgeName)
	if err != nil {
		return fmt.Errorf("finding the bridge: %w", err)
	}
	port := &netlink.Veth{
		LinkAttrs:     netlink.LinkAttrs{Name: fmt.Sprintf("node%d", index), MasterIndex: bridge.Attrs().Index},
		PeerName:      uplinkName,
		PeerNamespace: netlink.NsFd(namespace.Fd()),
	}
	if err := outer.LinkAdd(port); err != nil {
		return fmt.Errorf("creating the veth pair: %w", err)
	}
	if err := bringUp(outer, port.Name); err != nil {
		return err
	}

	inner, err := links(namespace)
	if err != nil {
		return err
	}
	defer inner.Close()
	if err := addAddress(inner, uplinkName, withMaskOf(nodeAddress(index), nodeNetwork)); err != nil {
		return err
	}
	for _, link := range []string{podsName, uplinkName} {
		if err := bringUp(inner, link); err != nil {
			return err
		}
	}
	if err := inner.RouteAdd(&netlink.Route{Gw: net.ParseIP(bridgeAddress)}); err != nil {
		return fmt.Errorf("adding the default route: %w", err)
	}
	// To the address of a pod that is gone; otherwise it would go back and forth to the router.
	if err := inner.RouteAdd(&netlink.Route{Dst: mustCIDR(podCIDR(index)), Type: unix.RTN_UNREACHABLE}); err != nil {
		return fmt.Errorf("adding the route to pods that are gone: %w", err)
	}
	// Only now is the gateway of this route reachable for the kernel.
	if err := outer.RouteAdd(&netlink.Route{Dst: mustCIDR(podCIDR(index)),
		Gw: net.ParseIP(nodeAddress(index))}); err != nil {
		return fmt.Errorf("adding the route to its pods: %w", err)
	}
	if c.options.DualStack {
		if err := configureNode6(namespace, inner, outer, index); err != nil {
			return err
		}
	}
	return namespace.Do(func() error {
		// Without a limit on errors every connection to a pod that is gone fails at once. What it leaves in the table
		// of connections would lead a later one of the same port to that pod too, for two minutes.
		// The wrapper's port is one of those from which connections are made: while it is stopped one could take it.
		return setSysctls("net/ipv4/ip_forward=1", "net/ipv4/icmp_ratelimit=0",
			"net/netfilter/nf_conntrack_tcp_timeout_syn_sent=1",
			fmt.Sprintf("net/ipv4/ip_local_reserved_ports=%d", wrapperPort),
			"net/ipv4/conf/all/rp_filter=0", "net/ipv4/conf/"+uplinkName+"/rp_filter=0")
	})
}

// unlinkNode removes what configureNode left in the control plane's namespace; the route goes with the link
// only if the bridge went, so it is removed by itself.
func (c *Cluster) unlinkNode(index int) error {
	handle, err := links(c.namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	if err := handle.RouteDel(&netlink.Route{Dst: mustCIDR(podCIDR(index))}); err != nil {
		return fmt.Errorf("removing the route to pods: %w", err)
	}
	if c.options.DualStack {
		if err := handle.RouteDel(&netlink.Route{Dst: mustCIDR(podCIDR6(index))}); err != nil {
			return fmt.Errorf("removing the route to pods: %w", err)
		}
	}
	link, err := handle.LinkByName(fmt.Sprintf("node%d", index))
	if err != nil {
		return fmt.Errorf("finding the node's link: %w", err)
	}
	if err := handle.LinkDel(link); err != nil {
		return fmt.Errorf("removing the node's link: %w", err)
	}
	return nil
}

func bringUp(handle *netlink.Handle, name string) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	if err := handle.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing up interface %s: %w", name, err)
	}
	return nil
}

func addAddress(handle *netlink.Handle, name string, address *net.IPNet) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	if err := handle.AddrAdd(link, &netlink.Addr{IPNet: address}); err != nil {
		return fmt.Errorf("adding %s to interface %s: %w", address, name, err)
	}
	return nil
}

// addAddress6 adds an IPv6 address that may be used at once.
func addAddress6(handle *netlink.Handle, name, address string) error {
	link, err := handle.LinkByName(name)
	if err != nil {
		return fmt.Errorf("finding interface %s: %w", name, err)
	}
	parsed, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	parsed.Flags = unix.IFA_F_NODAD
	if err := handle.AddrAdd(link, parsed); err != nil {
		return fmt.Errorf("adding %s to interface %s: %w", address, name, err)
	}
	return nil
}

// setSysctls writes "path=value" below /proc/sys; it must run in the namespace.
func setSysctls(settings ...string) error {
	for _, setting := range settings {
		path, value, _ := strings.Cut(setting, "=")
		if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0o600); err != nil {
			return fmt.Errorf("setting sysctl %s: %w", path, err)
		}
	}
	return nil
}

func withMaskOf(address, network string) *net.IPNet {
	return &net.IPNet{IP: net.ParseIP(address), Mask: mustCIDR(network).Mask}
}

// mustCIDR parses one of the constants above.
func mustCIDR(cidr string) *net.IPNet {
	_, network, err := net.ParseCIDR(cidr)
	if err != nil {
		panic(err)
	}
	return network
}
