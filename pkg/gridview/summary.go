package gridview

import (
	"cmp"
	"slices"

	"github.com/application-grid/application-grid/pkg/topology"
)

// ServiceState is the state of a Service for the nodes, in one word.
type ServiceState string

// The states of a Service, the worst first.
const (
	ServiceInvalid ServiceState = "Invalid" // the annotation does not parse, so that no node sees any endpoint
	ServiceLacking ServiceState = "Lacking" // some sites reach nothing of the Service, though others have an endpoint
	ServiceFailing ServiceState = "Failing" // some nodes do not keep the Service to their sites
	ServiceHidden  ServiceState = "Hidden"  // no edge node sees some ready endpoints; nothing else is wrong
	ServiceEmpty   ServiceState = "Empty"   // no endpoint is ready anywhere
	ServiceUnknown ServiceState = "Unknown" // nothing is known to be wrong, and not all sites can be seen
	ServiceClosed  ServiceState = "Closed"  // as View.Closed
	ServiceOpen    ServiceState = "Open"    // not governed, or without an edge node in a site
)

var serviceStates = []ServiceState{
	ServiceInvalid, ServiceLacking, ServiceFailing, ServiceHidden, ServiceEmpty, ServiceUnknown, ServiceClosed,
	ServiceOpen,
}

// ServiceSummary is a View in short.
type ServiceSummary struct {
	Namespace    string        `json:"namespace"`
	Name         string        `json:"name"`
	TopologyKeys topology.Keys `json:"topologyKeys"`
	State        ServiceState  `json:"state"`
	// Healthy is what View.Healthy reports.
	Healthy bool `json:"healthy"`
	// Severity is the worst of the findings about the Service itself; a node that does not keep Services counts for its
	// site.
	Severity Severity `json:"severity"`
	// Message describes the state, as kubectl grid view does.
	Message string `json:"message"`

	sites []summarySite
	reach []Finding
}

// summarySite is a group of nodes that see the same endpoints: the labels that make the site, from one of them, and
// their verdict.
type summarySite struct {
	labels topology.Labels
	cell   Cell
}

// WithReach adds the findings about the Services whose sites are those of key to the findings about a cluster.
func WithReach(findings []Finding, key string, services []ServiceSummary) []Finding {
	var reach []Finding
	for i := range services {
		for _, f := range services[i].reach {
			if f.Key == key {
				reach = append(reach, f)
			}
		}
	}
	slices.SortStableFunc(reach, ByObject)
	findings = append(findings, reach...)
	slices.SortStableFunc(findings, BySeverity)
	return findings
}

// Summary returns the view in short.
func (v *View) Summary() ServiceSummary {
	s := ServiceSummary{
		Namespace: v.Namespace, Name: v.Service, TopologyKeys: v.TopologyKeys, Healthy: v.Healthy(), Severity: OK,
		Message: cmp.Or(v.Error, v.Conclusion(), "No topology key keeps it to sites: every node may reach every "+
			"endpoint."),
		reach: v.Reach,
	}
	governed := HasSites(v.TopologyKeys)
	for i := range v.Sites {
		if site := &v.Sites[i]; governed && site.inSite {
			s.sites = append(s.sites, summarySite{v.tally.Nodes[site.Nodes[0]], site.cell})
		}
	}
	for _, f := range v.Reach {
		s.Severity = worst(s.Severity, f.Severity)
	}
	hidden := slices.ContainsFunc(v.Hidden, func(e HiddenEndpoint) bool { return e.Ready })
	switch {
	case v.Error != "":
		s.State, s.Severity = ServiceInvalid, Failure
	case len(v.Without) > 0:
		s.State = ServiceLacking
	case Failed(v.Findings):
		s.State = ServiceFailing
	case v.Empty():
		s.State = ServiceEmpty
	case governed && hidden:
		s.State = ServiceHidden
	case v.open():
		s.State = ServiceOpen
	case v.Closed:
		s.State = ServiceClosed
	default:
		s.State = ServiceUnknown
	}
	return s
}

// CompareServices orders Services: those with problems first, then by namespace and name.
func CompareServices(a, b ServiceSummary) int {
	return cmp.Or(CompareAttention(a.Severity, b.Severity),
		cmp.Compare(slices.Index(serviceStates, a.State), slices.Index(serviceStates, b.State)),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
