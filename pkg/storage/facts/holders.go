package facts

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// claims are the addresses that nodes report for their pods.
type claims struct {
	by map[netip.Addr][]string
	// held has each node's claimed addresses that belong to others.
	held map[string]map[netip.Addr]struct{}
}

// isHeld notes that an address belongs to a pod on a node, or to something else if the node is "".
func (c *claims) isHeld(address, node []byte) {
	if parsed, err := netip.ParseAddr(string(address)); err == nil {
		c.isHeldBy(parsed.Unmap(), string(node))
	}
}

func (c *claims) isHeldBy(address netip.Addr, node string) {
	for _, claimant := range c.by[address] {
		if claimant == node {
			continue
		}
		if c.held[claimant] == nil {
			c.held[claimant] = make(map[netip.Addr]struct{})
		}
		c.held[claimant][address] = struct{}{}
	}
}

// HeldByOthers takes the addresses that nodes report for their pods, by node name, and returns those that belong to
// others: to nodes, to pods that this node runs, to cluster IPs of Services, to API servers, or, according to the
// upstream, to pods on another node of the site, unless that node reports otherwise or is silent.
func (f *Facts) HeldByOthers(addresses map[string][]netip.Addr) map[string]map[netip.Addr]struct{} {
	c := claims{by: make(map[netip.Addr][]string), held: make(map[string]map[netip.Addr]struct{})}
	for node, claimed := range addresses {
		for _, address := range claimed {
			c.by[address] = append(c.by[address], node)
		}
	}
	if len(c.by) == 0 {
		return nil
	}
	f.mu.RLock()
	defer f.mu.RUnlock()
	for _, s := range f.services.byName {
		if s.Upstream == nil {
			continue
		}
		if err := wire.ClusterIPs(s.Upstream.Body, func(address []byte) { c.isHeld(address, nil) }); err != nil {
			f.options.Logger.Error(err, "Cannot read the cluster IPs of a Service", "service", s.Name)
		}
	}
	if s := f.services.byName[KubernetesService]; s != nil {
		for _, r := range []*served.Resource{served.EndpointSlices, served.Endpoints} {
			for _, o := range s.Objects(r) {
				o.scan(o.Upstream.Body, func(e wire.Endpoint) { c.isHeld(e.Address, nil) })
			}
		}
	}
	for _, addresses := range f.notes.InternalIPs {
		for _, address := range addresses {
			c.isHeldBy(address.Unmap(), "")
		}
	}
	for _, address := range f.ownInternalIPs() {
		c.isHeldBy(address.Unmap(), "")
	}
	if own := f.livePods[f.options.NodeName]; own != nil {
		for _, pod := range own.Pods {
			for _, address := range pod.Addresses {
				c.isHeldBy(address.Unmap(), f.options.NodeName)
			}
		}
	}
	f.holders(&c)
	return c.held
}

// holders notes the addresses of the pods on the nodes of the site.
func (f *Facts) holders(c *claims) {
	objects := sets.New[*Object]()
	f.reader().InSite(func(n *Node) { objects.Insert(n.Objects...) })
	for o := range objects {
		o.scan(o.Upstream.Body, func(e wire.Endpoint) {
			if len(e.NodeName) > 0 && !f.reader().Doubts(o.Service, e.NodeName, Dead, Silent) && stillHas(o, e) {
				c.isHeld(e.Address, e.NodeName)
			}
		})
	}
}

// stillHas reports whether a pod still has the address of its endpoint, unless its node has reported otherwise.
func stillHas(o *Object, e wire.Endpoint) bool {
	correction := o.Correction(e)
	return correction == nil ||
		!correction.Gone && (correction.Address == "" || correction.Address == string(e.Address))
}
