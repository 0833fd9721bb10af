package exchange

import (
	"maps"
	"net/netip"
	"slices"
)

// maxMembers is the most nodes of a site. What is exchanged is meant for a network that all of them are on.
const maxMembers = 1000

// Member is a node of the site.
type Member struct {
	Name string
	// Addresses are the node's InternalIPs, in the order of its status.
	Addresses []netip.Addr
	// Shown says that endpoints on the node may be shown here. In large sites only these are asked.
	Shown bool
}

// Site says which nodes belong to this node's site. Its methods are called every second.
type Site interface {
	// Members returns the nodes of the site, this one included, in no order.
	Members() []Member
	// Cluster returns what identifies the cluster; "" if that is not known yet.
	Cluster() string
}

// directory finds the members of a site. It does not change.
type directory struct {
	byName map[string]Member
	// byAddress has the name of the member with an address.
	byAddress map[netip.Addr]string
}

func newDirectory(own string, members []Member) *directory {
	d := &directory{byName: make(map[string]Member), byAddress: make(map[netip.Addr]string)}
	for _, m := range members {
		d.byName[m.Name] = m
		for _, address := range m.Addresses {
			if d.byAddress[address.Unmap()] != own {
				d.byAddress[address.Unmap()] = m.Name
			}
		}
	}
	return d
}

// equal reports whether both have the same members with the same addresses.
func (d *directory) equal(other *directory) bool {
	return maps.EqualFunc(d.byName, other.byName, func(a, b Member) bool {
		return a.Shown == b.Shown && slices.Equal(a.Addresses, b.Addresses)
	})
}

// asked returns the names of the members that are asked.
func (d *directory) asked(own string) map[string]Member {
	asked := maps.Clone(d.byName)
	maps.DeleteFunc(asked, func(name string, m Member) bool {
		return name == own || len(d.byName) > smallSite && !m.Shown
	})
	return asked
}
