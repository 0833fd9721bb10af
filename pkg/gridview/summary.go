package gridview

import (
	"cmp"
	"slices"

	"github.com/application-grid/application-grid/pkg/topology"
)

// ServiceState is in one word what the nodes see of a Service.
type ServiceState string

// The states of a Service, the worst first.
const (
	// ServiceInvalid says that the annotation of the Service does not parse, so that no node sees any endpoint.
	ServiceInvalid ServiceState = "Invalid"
	// ServiceLacking says that some sites reach nothing of the Service, though others have an endpoint.
	ServiceLacking ServiceState = "Lacking"
	// ServiceFailing says that the Service is governed, and that something does not keep it to its sites on some nodes.
	ServiceFailing ServiceState = "Failing"
	// ServiceHidden says that no edge node sees some of the ready endpoints, and all is well otherwise.
	ServiceHidden ServiceState = "Hidden"
	// ServiceEmpty says that the Service has no ready endpoint anywhere.
	ServiceEmpty ServiceState = "Empty"
	// ServiceClosed says that the Service is governed, and that every site has a ready endpoint.
	ServiceClosed ServiceState = "Closed"
	// ServiceOpen says that the Service is not governed, and that all nodes see all endpoints.
	ServiceOpen ServiceState = "Open"
)

var serviceStates = []ServiceState{
	ServiceInvalid, ServiceLacking, ServiceFailing, ServiceHidden, ServiceEmpty, ServiceClosed, ServiceOpen,
}

// ServiceSummary is a View in short.
type ServiceSummary struct {
	Namespace    string        `json:"namespace"`
	Name         string        `json:"name"`
	TopologyKeys topology.Keys `json:"topologyKeys"`
	State        ServiceState  `json:"state"`
	// Healthy is what View.Healthy reports.
	Healthy bool `json:"healthy"`
	// Sites is how many sites the Service stays in, Without how many of them have no ready endpoint. Nodes in no
	// site are not counted.
	Sites   int `json:"sites"`
	Without int `json:"without"`

	// Verdict is that on the nodes.
	Verdict Verdict `json:"verdict"`

	// lacking are the labels that make the sites without a ready endpoint, reach the findings about the Service.
	lacking []topology.Labels
	reach   []Finding
}

// WithReach adds to what was found of a cluster what was found of the Services whose site key is key.
func WithReach(findings []Finding, key string, services []ServiceSummary) []Finding {
	var reach []Finding
	for i := range services {
		if SiteKey(services[i].TopologyKeys) == key {
			reach = append(reach, services[i].reach...)
		}
	}
	slices.SortStableFunc(reach, ByObject)
	findings = append(findings, reach...)
	slices.SortStableFunc(findings, BySeverity)
	return findings
}

// Summary is the view in short. nodes are those that it was made of.
func (v *View) Summary(nodes map[string]topology.Labels) ServiceSummary {
	s := ServiceSummary{
		Namespace: v.Namespace, Name: v.Service, TopologyKeys: v.TopologyKeys, Healthy: v.Healthy(),
		Verdict: v.Verdict, reach: v.reach,
	}
	governed := v.TopologyKeys.Governed()
	for _, site := range v.Sites {
		if !site.inSite || !governed {
			continue
		}
		s.Sites++
		if !slices.Contains(v.Without, site.Name) {
			continue
		}
		s.Without++
		labels := topology.Labels{}
		for _, key := range v.TopologyKeys {
			if value, ok := nodes[site.Nodes[0]][key]; ok {
				labels[key] = value
			}
		}
		s.lacking = append(s.lacking, labels)
	}
	hidden := slices.ContainsFunc(v.Hidden, func(e HiddenEndpoint) bool { return e.Ready })
	switch {
	case v.Error != "":
		s.State = ServiceInvalid
	case s.Without > 0:
		s.State = ServiceLacking
	case Failed(v.Findings):
		s.State = ServiceFailing
	case v.Empty():
		s.State = ServiceEmpty
	case governed && hidden:
		s.State = ServiceHidden
	case governed:
		s.State = ServiceClosed
	default:
		s.State = ServiceOpen
	}
	return s
}

// CompareServices orders Services: what is not well first, then by namespace and name.
func CompareServices(a, b ServiceSummary) int {
	return cmp.Or(cmp.Compare(slices.Index(serviceStates, a.State), slices.Index(serviceStates, b.State)),
		cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
