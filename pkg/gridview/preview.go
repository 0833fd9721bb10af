package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Preview is what closing the Services of a cluster over the values of a label key would change.
type Preview struct {
	Key   string        `json:"key"`
	Sites []PreviewSite `json:"sites"`
	// NodesWithoutSite is how many nodes do not have the label.
	NodesWithoutSite int              `json:"nodesWithoutSite"`
	Services         []PreviewService `json:"services"`
	// Findings are those of kubectl grid check that concern site-local Services with the key.
	Findings []Finding `json:"findings,omitempty"`
}

// PreviewSite is a value of the key.
type PreviewSite struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
}

// PreviewService is one Service of a Preview.
type PreviewService struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready is the number of ready endpoints, and ReadyIn is how many of them each site has; sites without any are left
	// out. Endpoints on nodes without the label, or without a node, are outside of sites.
	Ready   int            `json:"ready"`
	ReadyIn map[string]int `json:"readyIn"`
	// Foreign is the share, 0 to 1, of the endpoints used by a node today that are not in its site, on average over all
	// nodes in sites. It is missing for Services with topologyKeys, and for those without a ready endpoint.
	Foreign *float64 `json:"foreign,omitempty"`
	// Dark are the sites that would have no ready endpoint if the Service were site-local. A Service that has none
	// anywhere has no such sites.
	Dark []string `json:"dark"`
	// TopologyKeys are those that govern the Service today.
	TopologyKeys []string `json:"topologyKeys,omitempty"`
	// Message has facts that the figures do not show.
	Message string `json:"message,omitempty"`
	// Command makes the Service site-local. It is empty if the Service is already.
	Command string `json:"command,omitempty"`
}

// Previewer makes a Preview from objects that are read one after the other, and keeps only counts.
type Previewer struct {
	key       string
	nodes     map[string]previewNode
	sites     map[string]int
	groups    map[previewNode]int
	services  map[types.NamespacedName]*tally
	groupings *Groupings
}

// previewNode is a reduced node. sited is set if it has the label, whose value may be empty.
type previewNode struct {
	site, zone string
	sited      bool
}

// tally counts the ready endpoints of a Service.
type tally struct {
	service PreviewService
	family  discoveryv1.AddressType
	// reach counts what each site would reach, governed what edge nodes reach today.
	reach, governed *Tally
	counts
}

// counts are the sums over the slices of a Service.
type counts struct {
	// ready is how many endpoints are ready, and readyIn how many of them each site has.
	ready   int
	readyIn map[string]int
	// unhinted is how many ready endpoints have no hints. If any has none, kube-proxy ignores all hints.
	unhinted int
	// hinted counts the ready endpoints by the zone that they are for, and their site.
	hinted map[string]map[previewNode]int
}

// NewPreviewer makes a Previewer for a key.
func NewPreviewer(key string, cluster *Groupings) *Previewer {
	p := &Previewer{
		key:       key,
		nodes:     make(map[string]previewNode, len(cluster.Nodes)),
		sites:     map[string]int{},
		groups:    map[previewNode]int{},
		services:  map[types.NamespacedName]*tally{},
		groupings: cluster,
	}
	for name, labels := range cluster.Nodes {
		n := previewNode{zone: labels[corev1.LabelTopologyZone]}
		n.site, n.sited = labels[key]
		p.nodes[name] = n
		if n.sited {
			p.sites[n.site]++
			p.groups[n]++
		}
	}
	return p
}

// Sites returns the number of sites.
func (p *Previewer) Sites() int { return len(p.sites) }

// AddService counts a Service in, before its slices. Services without endpoints of the cluster are left out, and so is
// default/kubernetes, whose endpoint every node replaces by its own.
func (p *Previewer) AddService(s *corev1.Service) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if s.Spec.Type == corev1.ServiceTypeExternalName ||
		name == (types.NamespacedName{Namespace: "default", Name: "kubernetes"}) {
		return
	}
	t := &tally{
		service: PreviewService{Namespace: s.Namespace, Name: s.Name, Dark: []string{}},
		family:  discoveryv1.AddressTypeIPv4, counts: noCounts(),
		reach: p.groupings.Of(topology.Keys{p.key}).NewTally(s),
	}
	t.reach.local = false           // the site of a node with an endpoint is not dark
	if len(s.Spec.IPFamilies) > 0 { // the endpoints of a Service of two families are in slices of both
		t.family = discoveryv1.AddressType(s.Spec.IPFamilies[0])
	}
	keys, annotation, err := topology.KeysOf(s.Annotations)
	switch {
	case err != nil:
		t.service.Message = fmt.Sprintf("annotation %s=%s is %v", annotation, s.Annotations[annotation], err)
	case keys.Governed():
		t.service.TopologyKeys = keys
		if SiteKey(keys) == p.key {
			t.governed = p.groupings.Of(keys).NewTally(s)
		}
	case isLocal(s):
		t.service.Message = "internalTrafficPolicy Local: each node is sent to its own endpoints"
	}
	p.services[name] = t
}

func noCounts() counts {
	return counts{readyIn: map[string]int{}, hinted: map[string]map[previewNode]int{}}
}

// ForgetSlices drops all slices, because their list starts over.
func (p *Previewer) ForgetSlices() {
	for _, t := range p.services {
		t.counts = noCounts()
		t.reach.Restart()
		if t.governed != nil {
			t.governed.Restart()
		}
	}
}

// AddSlice counts the ready endpoints of a slice.
func (p *Previewer) AddSlice(s *discoveryv1.EndpointSlice) {
	t := p.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}]
	if t == nil {
		return
	}
	t.reach.Add(s)
	if t.governed != nil {
		t.governed.Add(s)
	}
	if s.AddressType != t.family {
		return
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !ptr.Deref(e.Conditions.Ready, true) {
			continue
		}
		t.ready++
		node := p.nodes[ptr.Deref(e.NodeName, "")]
		if node.sited {
			t.readyIn[node.site]++
		}
		if e.Hints == nil || len(e.Hints.ForZones) == 0 {
			t.unhinted++
			continue
		}
		for _, zone := range e.Hints.ForZones {
			if t.hinted[zone.Name] == nil {
				t.hinted[zone.Name] = map[previewNode]int{}
			}
			t.hinted[zone.Name][previewNode{site: node.site, sited: node.sited}]++
		}
	}
}

// Preview returns the counts, and the findings that concern Services with the key.
func (p *Previewer) Preview() *Preview {
	preview := &Preview{
		Key:              p.key,
		Sites:            []PreviewSite{},
		Services:         []PreviewService{},
		NodesWithoutSite: len(p.nodes),
	}
	for _, name := range slices.Sorted(maps.Keys(p.sites)) {
		preview.Sites = append(preview.Sites, PreviewSite{name, p.sites[name]})
		preview.NodesWithoutSite -= p.sites[name]
	}
	for _, t := range p.services {
		preview.Services = append(preview.Services, p.conclude(t))
		if t.governed != nil {
			preview.Findings = append(preview.Findings, t.governed.View().Reach...)
		}
	}
	slices.SortStableFunc(preview.Findings, ByObject)
	preview.Findings = append(p.groupings.Diagnosis.Of([]string{p.key}), preview.Findings...)
	slices.SortStableFunc(preview.Findings, BySeverity)
	slices.SortFunc(preview.Services, func(a, b PreviewService) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return preview
}

func (p *Previewer) conclude(t *tally) PreviewService {
	s := t.service
	s.Ready, s.ReadyIn = t.ready, t.readyIn
	annotation := fmt.Sprintf("[%q]", p.key) // a label key has no characters that JSON escapes
	if !slices.Equal(s.TopologyKeys, []string{p.key}) {
		s.Command = fmt.Sprintf("kubectl annotate --overwrite service -n %s %s '%s=%s'", s.Namespace, s.Name,
			v1.AnnotationTopologyKeys, annotation)
	}
	if s.Ready == 0 {
		if s.Message == "" {
			s.Message = "no endpoint is ready anywhere"
		}
		return s
	}
	for _, g := range t.reach.groups {
		if site, in := g.labels[p.key]; in && slices.ContainsFunc(g.nodes, t.reach.edge) &&
			reachesNone(t.reach.reach("", g.labels)) {
			s.Dark = append(s.Dark, site)
		}
	}
	slices.Sort(s.Dark)
	if len(s.TopologyKeys) == 0 && len(p.sites) > 0 {
		s.Foreign = new(p.foreign(t))
		if s.Message == "" && t.heedsHints() {
			s.Message = "hints keep part of the traffic in its zone"
		}
	}
	return s
}

// heedsHints reports whether kube-proxy uses the hints of the endpoints: all of them must have hints.
func (t *tally) heedsHints() bool { return t.unhinted == 0 && len(t.hinted) > 0 }

// foreign returns the share of the endpoints used by a node today that are not in its site, on average over the nodes.
func (p *Previewer) foreign(t *tally) float64 {
	if isLocal(t.reach.service) {
		return 0
	}
	sum, nodes := 0.0, 0
	for node, count := range p.groups {
		all, own := t.ready, t.readyIn[node.site]
		// If no endpoint is meant for the node's zone, kube-proxy uses all of them.
		if near := t.hinted[node.zone]; t.heedsHints() && len(near) > 0 {
			all, own = 0, near[previewNode{site: node.site, sited: true}]
			for _, n := range near {
				all += n
			}
		}
		sum += float64(count) * float64(all-own) / float64(all)
		nodes += count
	}
	return sum / float64(nodes)
}

// Healthy reports whether all Services can be closed without a site losing its last ready endpoint, and without a
// failure that prevents it.
func (p *Preview) Healthy() bool {
	return !Failed(p.Findings) && !slices.ContainsFunc(p.Services,
		func(s PreviewService) bool { return len(s.Dark) > 0 })
}

// DivideNodes returns the label keys that divide nodes into more than one site, those with the fewest sites first, with
// the number of sites of each. It includes keys with a different value on each node, unless the values are the nodes'
// names.
func DivideNodes(nodes map[string]topology.Labels) (keys []string, sites map[string]int) {
	values, named := map[string]map[string]bool{}, map[string]bool{}
	for name, labels := range nodes {
		for key, value := range labels {
			if values[key] == nil {
				values[key] = map[string]bool{}
			}
			values[key][value] = true
			named[key] = named[key] || value == name
		}
	}
	sites = map[string]int{}
	for key, of := range values {
		if len(of) > 1 && !named[key] && key != corev1.LabelHostname {
			keys, sites[key] = append(keys, key), len(of)
		}
	}
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(sites[a]-sites[b], strings.Compare(a, b))
	})
	return keys, sites
}
