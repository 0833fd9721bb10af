package siteexchange

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
	// byAddress has the name of the member with an address. It is without addresses that two members claim.
	byAddress map[netip.Addr]string
}

func newDirectory(members []Member) *directory {
	d := &directory{byName: make(map[string]Member), byAddress: make(map[netip.Addr]string)}
	claimed := make(map[netip.Addr]int)
	for _, m := range members {
		d.byName[m.Name] = m
		for _, address := range m.Addresses {
			claimed[address.Unmap()]++
			d.byAddress[address.Unmap()] = m.Name
		}
	}
	maps.DeleteFunc(d.byAddress, func(address netip.Addr, _ string) bool { return claimed[address] > 1 })
	return d
}

// equal reports whether both have the same members with the same addresses.
func (d *directory) equal(other *directory) bool {
	return maps.EqualFunc(d.byName, other.byName, func(a, b Member) bool {
		return slices.Equal(a.Addresses, b.Addresses)
	})
}

// reach returns the address at which a member is reached from an address: the first of the same family.
func (m Member) reach(from netip.Addr) (netip.Addr, bool) {
	for _, address := range m.Addresses {
		if address = address.Unmap(); address.Is4() == from.Is4() {
			return address, true
		}
	}
	return netip.Addr{}, false
}
