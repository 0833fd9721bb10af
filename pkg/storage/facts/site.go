package facts

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/topology"
)

// The site of this node consists of the nodes with the same value of any label that Options.SiteKeys names; by default,
// of any topology key that governs a Service.

// SiteNode is a node of the site.
type SiteNode struct {
	Name string
	// InternalIPs are its known addresses of that type, in the order of its status.
	InternalIPs []netip.Addr
	// Shown is set if endpoints of governed Services are on the node.
	Shown bool
}

// Site returns the nodes of the site, this one included, in no order. It is empty if this node is not known.
func (f *Facts) Site() []SiteNode {
	f.mu.RLock()
	defer f.mu.RUnlock()
	own := f.reader().Node(f.options.NodeName)
	if own == nil {
		return nil
	}
	site := []SiteNode{{Name: own.Name, InternalIPs: f.ownInternalIPs(), Shown: true}}
	f.reader().SiteNodes(func(n *Node) {
		if n != own {
			governed := slices.ContainsFunc(n.Objects, func(o *EndpointSet) bool {
				return o.Service != nil && o.Service.Keys.Governed()
			})
			site = append(site, SiteNode{n.Name, f.notes.InternalIPs[n.Name], governed})
		}
	})
	return site
}

// siteKeys returns the keys of the labels by which the site is found.
func (f *Facts) siteKeys() []string {
	if len(f.options.SiteKeys) > 0 {
		return f.options.SiteKeys
	}
	return f.reader().Keys()
}

// SiteNodes calls visit for every node of the site; for this node only if it has any of the labels.
func (in Reader) SiteNodes(visit func(*Node)) {
	own, keys := in.Node(in.f.options.NodeName), in.f.siteKeys()
	if own == nil {
		return
	}
	in.Nodes(func(n *Node) {
		if slices.ContainsFunc(keys, func(key string) bool { return topology.Match(key, own.Labels, n.Labels) }) {
			visit(n)
		}
	})
}

// ownStatus returns the status in this node's own Node object, as far as that is known and can be read.
func (f *Facts) ownStatus() corev1.NodeStatus {
	var node corev1.Node
	if o := f.node.objects[types.NamespacedName{Name: f.options.NodeName}]; o != nil {
		_ = node.Unmarshal(o.Body)
	}
	return node.Status
}

func (f *Facts) ownInternalIPs() (addresses []netip.Addr) {
	for _, a := range f.ownStatus().Addresses {
		if address, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// SiteSelectors returns label selectors. Every node of the site matches at least one of them. They are sorted.
func (f *Facts) SiteSelectors() []string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	own := f.reader().Node(f.options.NodeName)
	if own == nil {
		return nil
	}
	var selectors []string
	for _, key := range f.siteKeys() {
		if value, ok := own.Labels[key]; ok {
			selectors = append(selectors, key+"="+value)
		}
	}
	slices.Sort(selectors)
	return selectors
}

// ClusterUID returns the UID of the Service of the API server, which tells clusters apart; "" if it is not known.
func (f *Facts) ClusterUID() string {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if s := f.services.byName[KubernetesService]; s != nil && s.Upstream != nil {
		return strings.Clone(s.Upstream.UID)
	}
	return ""
}
