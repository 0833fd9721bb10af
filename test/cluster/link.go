package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// What may befall the link between a node and the control plane. The rules stand in the control plane's namespace,
// in a table for every node: there they outlive what happens to the node. They match packets to and from the
// control plane itself; what pods say to each other passes through its namespace too, and is left alone.

// CutLink drops every packet between the node and the control plane, in both directions. Nobody is told.
func (n *Node) CutLink(ctx context.Context) error { return n.disturbLink(ctx, "drop", "drop") }

// LoseOnLink drops this share of the packets between the node and the control plane, in percent, at random.
func (n *Node) LoseOnLink(ctx context.Context, percent int) error {
	lose := fmt.Sprintf("numgen random mod 100 < %d drop", percent)
	return n.disturbLink(ctx, lose, lose)
}

// FreezeConnections drops every packet of the TCP connections that the node has to the control plane now, and
// no other: as if the other side, or a firewall in between, had forgotten them. New ones work.
func (n *Node) FreezeConnections(ctx context.Context) error {
	ports, err := n.portsToControlPlane()
	if err != nil {
		return fmt.Errorf("node %s: looking for its connections: %w", n.Spec.Name, err)
	}
	if len(ports) == 0 {
		return fmt.Errorf("node %s has no connection to the control plane that could be frozen", n.Spec.Name)
	}
	set := "{ " + strings.Join(ports, ", ") + " } drop"
	return n.disturbLink(ctx, "tcp sport "+set, "tcp dport "+set)
}

// RestoreLink ends what the functions above began.
func (n *Node) RestoreLink(ctx context.Context) error { return n.link(ctx, "") }

// disturbLink applies a rule to packets from the node to the control plane and one to those the other way. It takes
// the place of what was before.
func (n *Node) disturbLink(ctx context.Context, fromNode, toNode string) error {
	return n.link(ctx, fmt.Sprintf(`table ip %[1]s {
	chain from { type filter hook input priority raw; ip saddr %[2]s ip daddr %[3]s %[4]s; }
	chain to { type filter hook output priority raw; ip saddr %[3]s ip daddr %[2]s %[5]s; }
}`, n.linkTable(), n.Address, bridgeAddress, fromNode, toNode))
}

func (n *Node) linkTable() string { return fmt.Sprintf("link%d", n.index) }

// link replaces the node's table, or only removes it.
func (n *Node) link(ctx context.Context, table string) error {
	if n.cluster.namespace == nil {
		return fmt.Errorf("node %s has no link: APIViewOnly rules it out", n.Spec.Name)
	}
	// Added first, so that deleting is no error; all of it is one transaction.
	rules := fmt.Sprintf("table ip %[1]s; delete table ip %[1]s; %[2]s", n.linkTable(), table)
	if _, err := run(ctx, n.cluster.namespace.Thread, "nft", rules); err != nil {
		return fmt.Errorf("link of node %s: %w", n.Spec.Name, err)
	}
	return nil
}

// portsToControlPlane are the local ports of the node's TCP connections to the control plane.
func (n *Node) portsToControlPlane() ([]string, error) {
	if n.namespace == nil {
		return nil, errors.New("it has no namespace")
	}
	var table []byte
	err := n.namespace.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/tcp")
		return err
	})
	if err != nil {
		return nil, err
	}
	var ports []string
	lines := bufio.NewScanner(bytes.NewReader(table))
	lines.Scan() // the head
	for lines.Scan() {
		fields := strings.Fields(lines.Text()) // sl local_address rem_address st …
		if len(fields) < 4 {
			continue
		}
		_, local, _ := strings.Cut(fields[1], ":")
		remote, _, _ := strings.Cut(fields[2], ":")
		address, err := hex.DecodeString(remote)
		if err != nil || len(address) != net.IPv4len {
			return nil, fmt.Errorf("/proc/net/tcp: unexpected line %q", lines.Text())
		}
		port, err := strconv.ParseUint(local, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("/proc/net/tcp: unexpected line %q", lines.Text())
		}
		// The kernel prints the address as a number in the machine's order.
		ip := make(net.IP, net.IPv4len)
		binary.NativeEndian.PutUint32(ip, binary.BigEndian.Uint32(address))
		if ip.Equal(net.ParseIP(bridgeAddress)) {
			ports = append(ports, strconv.FormatUint(port, 10))
		}
	}
	return ports, lines.Err()
}
