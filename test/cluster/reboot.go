package cluster

import (
	"context"
	"fmt"
)

// Reboot is what the node goes through when its power fails for a moment: all its processes are killed, what
// its kernel was told (rules, connections) is forgotten, the disk stays; then its processes are started as at boot, at
// the same time. It does not wait until they are ready.
//
// The pods' addresses stay, and with them what kwok pretends to run: this is about the reach of the node, not about
// its pods.
func (n *Node) Reboot(ctx context.Context) error {
	if n.namespace == nil {
		return fmt.Errorf("node %s cannot reboot: it has no namespace", n.Spec.Name)
	}
	var components []*Component
	for _, component := range []*Component{n.Wrapper, n.KubeProxy, n.Kubelet, n.DNSDaemon, n.CoreDNS} {
		if component != nil {
			components = append(components, component)
		}
	}
	_ = concurrently(components, func(component *Component) error {
		component.Kill()
		return nil
	})
	// Rules of both modes: iptables' are nftables' here.
	for _, forget := range [][]string{{"nft", "flush", "ruleset"}, {"conntrack", "-F"}} {
		if _, err := n.Run(ctx, forget[0], forget[1:]...); err != nil {
			return err
		}
	}
	return concurrently(components, (*Component).Launch)
}
