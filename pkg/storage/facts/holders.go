package facts

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/application-grid/application-grid/pkg/storage/wire"
)

// claims are the addresses that nodes report for their pods.
type claims struct {
	by map[netip.Addr][]string
	// held has each node's claimed addresses that belong to others.
	held index[netip.Addr]
}

// hold notes that addresses belong to a node or its pods, or to something else if the node is "".
func (c *claims) hold(node string, addresses ...netip.Addr) {
	for _, address := range addresses {
		for _, claimant := range c.by[address.Unmap()] {
			if claimant != node {
				c.held.add(claimant, address.Unmap())
			}
		}
	}
}

func (c *claims) holdText(node string, address []byte) {
	parsed, _ := netip.ParseAddr(string(address)) // no node claims the zero Addr
	c.hold(node, parsed)
}

// HeldByOthers takes nodes' reports of their pods, by node name, and returns the addresses that belong to others: to
// nodes, to pods that this node runs, to cluster IPs of Services, to API servers, or, according to the upstream, to
// pods on another node of the site, unless that node reports otherwise or is silent.
func (f *Facts) HeldByOthers(reports map[string]*LivePods) map[string]map[netip.Addr]struct{} {
	c := claims{by: make(map[netip.Addr][]string), held: make(index[netip.Addr])}
	for node, report := range reports {
		for _, pod := range report.Pods {
			for _, address := range pod.Addresses {
				c.by[address] = append(c.by[address], node)
			}
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
		if err := wire.ClusterIPs(s.Upstream.Body, func(ip []byte) { c.holdText("", ip) }); err != nil {
			f.options.Logger.Error(err, "Cannot read the cluster IPs of a Service", "service", s.Name)
		}
	}
	if s := f.services.byName[KubernetesService]; s != nil {
		for _, listed := range s.listed {
			for _, o := range listed.objects {
				o.scan(o.Upstream.Body, func(e wire.Endpoint) { c.holdText("", e.Address) })
			}
		}
	}
	for _, addresses := range f.notes.InternalIPs {
		c.hold("", addresses...)
	}
	c.hold("", f.ownInternalIPs()...)
	if own := f.livePods[f.options.NodeName]; own != nil {
		for _, pod := range own.Pods {
			c.hold(f.options.NodeName, pod.Addresses...)
		}
	}
	f.holdPodAddresses(&c)
	return c.held
}

// holdPodAddresses notes the addresses of the pods on the nodes of the site.
func (f *Facts) holdPodAddresses(c *claims) {
	objects := sets.New[*EndpointSet]()
	f.reader().SiteNodes(func(n *Node) { objects.Insert(n.Objects...) })
	for o := range objects {
		o.scan(o.Upstream.Body, func(e wire.Endpoint) {
			doubt := f.reader().DoubtOf(o.Service, e.NodeName)
			if len(e.NodeName) > 0 && doubt != Dead && doubt != Silent && stillHas(o, e) {
				c.holdText(string(e.NodeName), e.Address)
			}
		})
	}
}

// stillHas reports whether a pod still has the address of its endpoint, unless its node has reported otherwise.
func stillHas(o *EndpointSet, e wire.Endpoint) bool {
	correction := o.Correction(e)
	return correction == nil ||
		!correction.Unusable && (correction.Address == "" || correction.Address == string(e.Address))
}
