package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/pkg/topology"
)

// Preview is what closing the Services of a cluster over the values of a label key would change.
type Preview struct {
	metav1.TypeMeta `json:",inline"` // set when it is printed

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
	// Command makes the Service site-local. It is empty if the Service is already, or if kube-proxy has no part in it.
	Command string `json:"command,omitempty"`
}

// Previewer makes a Preview from objects that are read one after the other, and keeps only counts.
type Previewer struct {
	key       string
	services  map[types.NamespacedName]*tally
	groupings *Groupings
}

type tally struct {
	service PreviewService
	// reach counts what each site would reach, governed what edge nodes reach today.
	reach, governed *Tally
	// families are the endpoints by the family of their addresses. One with addresses of both families is in both.
	families map[discoveryv1.AddressType]*readyEndpoints
}

// readyEndpoints are the ready endpoints of a family.
type readyEndpoints struct {
	share

	// hinted are those that are meant for a zone, and unhinted is how many have no hints. If any has none, kube-proxy
	// ignores all hints.
	hinted   map[string]*share
	unhinted int
}

// most returns the endpoints of the family that has the most of them.
func (t *tally) most() *readyEndpoints {
	most := &readyEndpoints{share: share{in: map[string]int{}}}
	for _, family := range slices.Sorted(maps.Keys(t.families)) {
		if ready := t.families[family]; ready.all > most.all {
			most = ready
		}
	}
	return most
}

// share is a number of endpoints, and how many of them are in each site.
type share struct {
	all int
	in  map[string]int
}

func (s *share) add(site string, in bool) {
	if s.all++; in {
		s.in[site]++
	}
}

// NewPreviewer makes a Previewer for a key.
func NewPreviewer(key string, cluster *Groupings) *Previewer {
	return &Previewer{key: key, services: map[types.NamespacedName]*tally{}, groupings: cluster}
}

// Sites returns the sites, by name.
func (p *Previewer) Sites() []PreviewSite {
	sites := []PreviewSite{}
	for _, group := range p.groupings.Of(topology.Keys{p.key}).groups {
		if site, in := SiteOf(group.labels, p.key); in {
			sites = append(sites, PreviewSite{site, len(group.nodes)})
		}
	}
	return sites
}

// AddService counts a Service in, before its slices. Services without endpoints of the cluster are left out, and so is
// default/kubernetes, whose endpoint every node replaces by its own.
func (p *Previewer) AddService(s *corev1.Service) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	if s.Spec.Type == corev1.ServiceTypeExternalName ||
		name == (types.NamespacedName{Namespace: "default", Name: "kubernetes"}) {
		return
	}
	t := &tally{
		service:  PreviewService{Namespace: s.Namespace, Name: s.Name, Dark: []string{}},
		reach:    p.groupings.Of(topology.Keys{p.key}).NewTally(s),
		families: map[discoveryv1.AddressType]*readyEndpoints{},
	}
	t.reach.local = false // the site of a node with an endpoint is not dark
	keys, annotation, err := topology.KeysOf(s.Annotations)
	if err == nil && keys.Governed() {
		t.service.TopologyKeys = keys
		if SiteKey(keys) == p.key {
			t.governed = p.groupings.Of(keys).NewTally(s)
		}
	}
	switch {
	case err != nil:
		t.service.Message = fmt.Sprintf("annotation %s=%s is %v", annotation, s.Annotations[annotation], err)
	case ServiceProxy(s) != "":
		t.service.Message = "kube-proxy leaves it to service proxy " + ServiceProxy(s)
	case isHeadless(s):
		t.service.Message = "headless: site-local for clients of a CoreDNS that asks the wrapper (docs/coredns.md)"
	case isLocal(s) && !keys.Governed():
		t.service.Message = "internalTrafficPolicy Local: each node is sent to its own endpoints"
	}
	p.services[name] = t
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
	ready := t.families[s.AddressType]
	if ready == nil {
		ready = &readyEndpoints{share: share{in: map[string]int{}}, hinted: map[string]*share{}}
		t.families[s.AddressType] = ready
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if !ptr.Deref(e.Conditions.Ready, true) {
			continue
		}
		site, in := SiteOf(p.groupings.Nodes[ptr.Deref(e.NodeName, "")], p.key)
		ready.add(site, in)
		if e.Hints == nil || len(e.Hints.ForZones) == 0 {
			ready.unhinted++
			continue
		}
		for _, zone := range e.Hints.ForZones {
			if ready.hinted[zone.Name] == nil {
				ready.hinted[zone.Name] = &share{in: map[string]int{}}
			}
			ready.hinted[zone.Name].add(site, in)
		}
	}
}

// Preview returns the counts, and the findings that concern Services with the key.
func (p *Previewer) Preview() *Preview {
	preview := &Preview{Key: p.key, Sites: p.Sites(), Services: []PreviewService{},
		NodesWithoutSite: len(p.groupings.Nodes)}
	for _, site := range preview.Sites {
		preview.NodesWithoutSite -= site.Nodes
	}
	for _, t := range p.services {
		preview.Services = append(preview.Services, p.conclude(t))
		if t.governed != nil {
			preview.Findings = append(preview.Findings, t.governed.View(p.groupings).Reach...)
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
	s, ready := t.service, t.most()
	s.Ready, s.ReadyIn = ready.all, ready.in
	if t.reach.ByKubeProxy() && !slices.Equal(s.TopologyKeys, []string{p.key}) {
		s.Command = setKeys(t.reach.service, topology.Keys{p.key})
	}
	if s.Ready == 0 {
		s.Message = cmp.Or(s.Message, "no endpoint is ready anywhere")
		return s
	}
	for _, g := range t.reach.groups {
		_, without := t.reach.reachOf(g.nodes)
		if site, in := SiteOf(g.labels, p.key); in && slices.ContainsFunc(without, t.reach.edge) {
			s.Dark = append(s.Dark, site)
		}
	}
	slices.Sort(s.Dark)
	if foreign, sites := p.foreign(t, ready); len(s.TopologyKeys) == 0 && sites && ServiceProxy(t.reach.service) == "" {
		s.Foreign = &foreign
		if s.Message == "" && ready.heedHints() {
			s.Message = "hints keep part of the traffic in its zone"
		}
	}
	return s
}

// heedHints reports whether kube-proxy uses the hints of the endpoints: all of them must have hints.
func (r *readyEndpoints) heedHints() bool { return r.unhinted == 0 && len(r.hinted) > 0 }

// foreign returns the share of the endpoints used by a node today that are not in its site, on average over the nodes
// in sites. It reports false if there are none.
func (p *Previewer) foreign(t *tally, ready *readyEndpoints) (foreign float64, sites bool) {
	sum, nodes := 0.0, 0
	for _, group := range p.groupings.Of(topology.Keys{p.key, corev1.LabelTopologyZone}).groups {
		site, in := SiteOf(group.labels, p.key)
		if !in {
			continue
		}
		used := &ready.share
		// If no endpoint is meant for the node's zone, kube-proxy uses all of them.
		if near := ready.hinted[group.labels[corev1.LabelTopologyZone]]; ready.heedHints() && near != nil {
			used = near
		}
		if !isLocal(t.reach.service) {
			sum += float64(len(group.nodes)) * (1 - float64(used.in[site])/float64(used.all))
		}
		nodes += len(group.nodes)
	}
	return sum / float64(nodes), nodes > 0
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
