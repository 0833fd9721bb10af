package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
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
	if err := n.endProcesses(ctx); err != nil {
		return err
	}
	return concurrently(n.components(), (*Component).Launch)
}

// components are the node's processes.
func (n *Node) components() []*Component {
	var components []*Component
	for _, component := range []*Component{n.Wrapper, n.KubeProxy, n.DNSDaemon, n.CoreDNS, n.LiteAPIServer} {
		if component != nil {
			components = append(components, component)
		}
	}
	return components
}

// endProcesses kills all processes of the node, and has its kernel forget what it was told.
func (n *Node) endProcesses(ctx context.Context) error {
	_ = concurrently(n.components(), func(component *Component) error {
		component.Kill()
		return nil
	})
	// Rules of both modes: iptables' are nftables' here.
	for _, forget := range [][]string{{"nft", "flush", "ruleset"}, {"conntrack", "-F"}} {
		if _, err := n.Run(ctx, forget[0], forget[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// PowerOff is what a node with a container runtime goes through when its power fails: all its processes and pods end,
// what its kernel was told is forgotten, the disk stays.
func (n *Node) PowerOff(ctx context.Context) error {
	if n.runtime == nil {
		return fmt.Errorf("node %s has no container runtime", n.Spec.Name)
	}
	n.runtime.stop()
	n.unpowered = append(n.unpowered, n.cluster.echo.powerOff(n)...)
	if err := n.endProcesses(ctx); err != nil {
		return err
	}
	return n.mute(ctx, `table inet power {
	chain in { type filter hook prerouting priority raw; iif != lo drop; }
	chain out { type filter hook output priority raw; oif != lo drop; }
}`)
}

// mute replaces the rules by which a machine without power answers nothing, not even that nobody listens.
func (n *Node) mute(ctx context.Context, table string) error {
	// Added first, so that deleting is no error; all of it is one transaction.
	if _, err := run(ctx, n.namespace.Thread, "nft", "table inet power; delete table inet power; "+table); err != nil {
		return fmt.Errorf("power of node %s: %w", n.Spec.Name, err)
	}
	return nil
}

// firstNewAddress and lastNewAddress are where in a node's range the addresses begin and end that its pods have after
// PowerOn. kwok takes the lowest.
const firstNewAddress, lastNewAddress = 129, 254

// PowerOn starts what PowerOff has ended. Every pod has an address that none has had before, which the API is not told
// before KubeletReports. It does not wait until processes are ready.
func (n *Node) PowerOn(ctx context.Context) error {
	prefix, err := netip.ParsePrefix(n.PodCIDR)
	if err != nil {
		return fmt.Errorf("node %s: %w", n.Spec.Name, err)
	}
	if err := n.mute(ctx, ""); err != nil {
		return err
	}
	if err := n.runtime.start(ctx); err != nil {
		return err
	}
	for _, pod := range n.unpowered {
		if n.newAddresses > lastNewAddress-firstNewAddress {
			return fmt.Errorf("node %s has no address left for pods that start again", n.Spec.Name)
		}
		address := prefix.Addr().As4()
		address[3] = byte(firstNewAddress + n.newAddresses) //nolint:gosec // no more than lastNewAddress
		n.newAddresses++
		if err := n.cluster.echo.powerOn(n, pod, netip.AddrFrom4(address).String()); err != nil {
			return fmt.Errorf("pod %s of node %s: %w", pod.Name, n.Spec.Name, err)
		}
	}
	n.unpowered = nil
	return concurrently(n.components(), (*Component).Launch)
}

// KubeletReports is what the kubelet of a node does that reaches the API again after PowerOn: pods whose objects are
// gone end, and those of all others say where and how they run.
func (n *Node) KubeletReports(ctx context.Context) error {
	n.cluster.echo.online(n)
	for _, p := range n.cluster.echo.podsOn(n) {
		if err := n.reportPod(ctx, p); err != nil {
			return fmt.Errorf("reporting pod %s of node %s: %w", p.pod.Name, n.Spec.Name, err)
		}
	}
	return nil
}

// errPodGone means that a pod's object is gone, or another's.
var errPodGone = errors.New("the pod is gone")

func (n *Node) reportPod(ctx context.Context, p *echoPod) error {
	pods := n.cluster.client.CoreV1().Pods(p.pod.Namespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pod, err := pods.Get(ctx, p.pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.UID != p.pod.UID {
			return errPodGone
		}
		if err != nil {
			return err
		}
		pod.Status.PodIP, pod.Status.PodIPs = p.address, []corev1.PodIP{{IP: p.address}}
		for i := range pod.Status.Conditions {
			if kind := pod.Status.Conditions[i].Type; kind == corev1.PodReady || kind == corev1.ContainersReady {
				pod.Status.Conditions[i].Status = corev1.ConditionTrue
			}
		}
		_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	if errors.Is(err, errPodGone) {
		n.cluster.echo.remove(p.pod.Namespace + "/" + p.pod.Name)
		return nil
	}
	return err
}
