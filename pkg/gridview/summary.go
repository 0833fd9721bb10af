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
	// ServiceLacking says that the Service is governed, and that some sites have no ready endpoint.
	ServiceLacking ServiceState = "Lacking"
	// ServiceFailing says that the Service is governed, and that something does not keep it to its sites on some nodes.
	ServiceFailing ServiceState = "Failing"
	// ServiceHidden says that no node sees some of the ready endpoints.
	ServiceHidden ServiceState = "Hidden"
	// ServiceEmpty says that the Service is not governed and has no ready endpoint.
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
	// Sites is how many sites the Service is closed over, Without how many of them have no ready endpoint. Nodes in no
	// site are not counted.
	Sites   int `json:"sites"`
	Without int `json:"without"`

	// lacking are the labels that make the sites without a ready endpoint.
	lacking []topology.Labels
}

// Summary is the view in short. nodes are those that it was made of.
func (v *View) Summary(nodes map[string]topology.Labels) ServiceSummary {
	s := ServiceSummary{
		Namespace: v.Namespace, Name: v.Service, TopologyKeys: v.TopologyKeys, Healthy: v.Healthy(),
	}
	governed := v.TopologyKeys.Governed()
	for _, site := range v.Sites {
		if site.Name == "" || !governed {
			continue
		}
		s.Sites++
		if site.Ready > 0 {
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
	switch {
	case v.Error != "":
		s.State = ServiceInvalid
	case governed && s.Without > 0:
		s.State = ServiceLacking
	case Failed(v.Findings):
		s.State = ServiceFailing
	case !governed && len(v.Without) > 0:
		s.State = ServiceEmpty
	case !s.Healthy:
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
