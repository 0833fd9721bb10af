package netns

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

const (
	// BridgeName is the bridge of a router.
	BridgeName = "bridge0"
	// UplinkName is a node's end of its link to it.
	UplinkName = "eth0"
)

// bridgeHardwareAddress is the bridge's own, one of those that are free for local use. Without one it has the lowest of
// its ports', which changes when nodes come and go: the others go on sending to the one before, into the void, until
// their neighbour entry has expired.
var bridgeHardwareAddress = net.HardwareAddr{0x02, 0, 0, 0, 0, 0x01}

// CreateRouter makes a namespace with a bridge that has these addresses, through which nodes reach each other. It
// answers connections to Services for which a node has no rules with a reset: as addresses of its own. They fail at
// once, and the node's conntrack forgets them. Were they dropped or unreachable, their entries would stay for minutes,
// and a later connection from the same port would bypass the rules. Settings are those of SetSysctls.
func CreateRouter(name string, addresses, services []string, settings ...string) (*Namespace, error) {
	namespace, err := Create(name)
	if err != nil {
		return nil, err
	}
	err = namespace.Links(func(handle *netlink.Handle) error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: BridgeName, HardwareAddr: bridgeHardwareAddress}}
		if err := handle.LinkAdd(bridge); err != nil {
			return fmt.Errorf("creating the bridge: %w", err)
		}
		if err := errors.Join(Configure(handle, BridgeName, addresses...), Configure(handle, "lo")); err != nil {
			return err
		}
		loopback, err := handle.LinkByName("lo")
		if err != nil {
			return fmt.Errorf("finding the loopback interface: %w", err)
		}
		for _, network := range services {
			_, destination, err := net.ParseCIDR(network)
			if err != nil {
				return err
			}
			if err := handle.RouteAdd(&netlink.Route{Dst: destination, LinkIndex: loopback.Attrs().Index,
				Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}); err != nil {
				return fmt.Errorf("adding the route to Services: %w", err)
			}
		}
		return nil
	})
	if err == nil {
		err = namespace.SetSysctls(settings...)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("configuring the bridge: %w", err), namespace.Close())
	}
	return namespace, nil
}

// Plug links a node to the router's bridge, at a port of this name. The node's network card has this address, or any.
func (n *Namespace) Plug(node *Namespace, name string, card net.HardwareAddr) error {
	return n.Links(func(handle *netlink.Handle) error {
		bridge, err := handle.LinkByName(BridgeName)
		if err != nil {
			return fmt.Errorf("finding the bridge: %w", err)
		}
		port := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: name, MasterIndex: bridge.Attrs().Index},
			PeerName:  UplinkName, PeerNamespace: netlink.NsFd(node.Fd()), PeerHardwareAddr: card,
		}
		if err := handle.LinkAdd(port); err != nil {
			return fmt.Errorf("creating the link: %w", err)
		}
		return handle.LinkSetUp(port)
	})
}

// Links calls what changes the namespace's links, addresses and routes.
func (n *Namespace) Links(change func(*netlink.Handle) error) error {
	handle, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()))
	if err != nil {
		return fmt.Errorf("opening netlink in namespace %s: %w", n.name, err)
	}
	defer handle.Close()
	return change(handle)
}

// Configure brings a link up, with these addresses, which may be used at once.
func Configure(handle *netlink.Handle, name string, addresses ...string) error {
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

// SetSysctls writes "path=value" below /proc/sys, in the namespace.
func (n *Namespace) SetSysctls(settings ...string) error {
	return n.Do(func() error {
		for _, setting := range settings {
			path, value, _ := strings.Cut(setting, "=")
			if err := os.WriteFile("/proc/sys/"+path, []byte(value), 0o600); err != nil {
				return fmt.Errorf("setting sysctl %s: %w", path, err)
			}
		}
		return nil
	})
}
