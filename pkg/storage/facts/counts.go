package facts

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/application-grid/application-grid/pkg/storage/served"
	"github.com/application-grid/application-grid/pkg/storage/wire"
	"github.com/application-grid/application-grid/pkg/topology"
)

// How a Service is shown depends on the values that decide for its ports, and these depend on all of its endpoints. The
// endpoints are counted for each list of ports, because nearly always all slices of a Service with one address type
// have the same list.
//
// The endpoints of a Service with at most one key need to be counted only while any of them is suspected.

// PortList identifies the address type of an EndpointSlice, and the names and protocols of its ports with a number. It
// has no ports for Endpoints, or if the Service of the slice decides as one (topology.IgnoresPorts).
type PortList struct{ encoded unique.Handle[string] }

var noPorts = PortList{unique.Make("")}

func (l PortList) ports() []topology.Port {
	if l == noPorts {
		return nil
	}
	addressType, rest, _ := strings.Cut(l.encoded.Value(), "\n")
	var ports []topology.Port
	for line := range strings.SplitSeq(rest, "\n") {
		protocol, name, _ := strings.Cut(line, " ")
		ports = append(ports, topology.Port{AddressType: addressType, Name: name, Protocol: protocol})
	}
	return ports
}

// portListOf reads the list of an object of a Service.
func portListOf(s *Service, o *EndpointSet) PortList {
	if o.Resource() != served.EndpointSlices || topology.IgnoresPorts(s.traits.Headless, s.traits.AllLocal) {
		return noPorts
	}
	var encoded []byte
	addressType, err := wire.ScanPorts(o.Upstream.Body, func(p wire.Port) {
		if p.Numbered {
			encoded = append(append(append(append(encoded, '\n'), p.Protocol...), ' '), p.Name...)
		}
	})
	if err != nil {
		o.LogUnreadable(err)
	}
	if len(encoded) == 0 {
		return noPorts
	}
	return PortList{unique.Make(string(addressType) + string(encoded))}
}

// Ports returns the ports with a number of one of the Service's objects; nil if the Service decides as one.
func (s *Service) Ports(o *EndpointSet) []topology.Port { return portListOf(s, o).ports() }

// listing has the objects of one endpointStore that belong to a Service.
type listing struct {
	objects []*EndpointSet
	// counts are by list of ports. They are nil if the endpoints need not be counted.
	counts map[PortList]*counts
}

// counts count the endpoints of the objects with one list of ports.
type counts struct {
	topology.Counts

	objects int
}

// needsCounts reports whether the Service is shown by the values of its ports.
func (s *Service) needsCounts() bool {
	return len(s.Keys) > 1 || s.listed[0].counts != nil || s.listed[1].counts != nil
}

// count adds an object's endpoints to the counts (delta 1), or subtracts them (delta -1).
func (x *serviceStore) count(s *Service, o *EndpointSet, delta int) {
	switch {
	case !s.counted:
	case len(s.Keys) > 1:
		s.count(x.f.reader(), o, delta)
		add(&x.f.step.Rejudged, s)
	default:
		x.markForRecount(s) // another endpoint may be the last suspected one
	}
}

func (s *Service) count(in Reader, o *EndpointSet, delta int) {
	if delta > 0 {
		o.ports = portListOf(s, o)
	}
	listed := &s.listed[listIndex(o.Resource())]
	c := listed.counts[o.ports]
	if c == nil {
		// Unused lists are dropped only when a new one is added, because most changes take an object out and put it
		// back with the same list.
		maps.DeleteFunc(listed.counts, func(_ PortList, c *counts) bool { return c.objects == 0 })
		c = &counts{}
		listed.counts[o.ports] = c
	}
	c.objects += delta
	o.scan(o.Body(), func(e wire.Endpoint) {
		c.Add(o.Tier(e), s.Keys, in.LabelsOf(e.NodeName), delta)
	})
}

// recount counts all endpoints again.
func (s *Service) recount(in Reader) {
	s.counted = true
	several, suspected := len(s.Keys) > 1, 0
	for i := range s.listed {
		listed := &s.listed[i]
		listed.counts = nil
		if !several && !in.AnySuspicions() {
			continue
		}
		listed.counts = make(map[PortList]*counts, 1)
		for _, o := range listed.objects {
			s.count(in, o, 1)
		}
		for _, c := range listed.counts {
			suspected += c.Total(topology.Suspected) + c.Total(topology.Silent)
		}
	}
	if !several && suspected == 0 {
		s.listed[0].counts, s.listed[1].counts = nil, nil
	}
}

// Choice is how the objects of a Service with the same list of ports are shown.
type Choice struct {
	topology.Choice

	ports PortList
}

// Equal reports whether both choices show the same objects in the same way.
func (c Choice) Equal(other Choice) bool {
	return c.ports == other.ports && c.Choice.Equal(other.Choice)
}

// AppliesTo reports whether the choice applies to this object.
func (c Choice) AppliesTo(o *EndpointSet) bool { return c.ports == o.ports }

// Choices returns how the Service's objects of a resource are shown to a viewer with these labels. It returns nil if
// its keys alone decide that, because it has at most one and no endpoint is suspected.
func (s *Service) Choices(r *served.Resource, here topology.Labels) []Choice {
	counted := s.listed[listIndex(r)].counts
	if len(counted) == 0 {
		return nil
	}
	choices := make([]Choice, 0, len(counted))
	for ports, c := range counted {
		if c.objects > 0 {
			choices = append(choices, Choice{ports: ports})
		}
	}
	slices.SortFunc(choices, func(a, b Choice) int {
		return cmp.Compare(a.ports.encoded.Value(), b.ports.encoded.Value())
	})
	lists := make([]topology.List, len(choices))
	for i, c := range choices {
		lists[i].Counts = &counted[c.ports].Counts
		if len(choices) > 1 {
			lists[i].Ports = c.ports.ports()
		}
	}
	for i, choice := range s.Keys.Choices(here, lists) {
		choices[i].Choice = choice
	}
	return choices
}
