package gridview

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// namedSites is how many sites or nodes a finding names before it only counts.
const namedSites = 5

// Sites are the sites of a cluster, as far as they decide whether its Services stay in them.
type Sites struct {
	// Nodes are the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Wrapped are the nodes with a pod of a wrapper, which may be SuperEdge's.
	Wrapped map[string]bool
	// Governed are the topology keys of every Service that has some, kube-dns left out.
	Governed []topology.Keys
	// GridKeys are the keys of grids of workloads: a node of one of their sites may need no Service.
	GridKeys []string
	// Resolvers are the nodes with a pod of CoreDNS that is ready; nil if that is not known. ResolverKeys are the
	// topology keys of the Service kube-dns.
	Resolvers    map[string]bool
	ResolverKeys topology.Keys
}

// SiteKeys are those of the keys of a Service whose values are sites: not the name of a node, unless that is the only
// key.
func SiteKeys(keys topology.Keys) []string {
	sites := slices.DeleteFunc(slices.Clone([]string(keys)), func(key string) bool {
		return key == topology.Any || key == corev1.LabelHostname
	})
	if len(sites) == 0 && slices.Contains(keys, corev1.LabelHostname) {
		return []string{corev1.LabelHostname}
	}
	return sites
}

// Findings say which nodes are half in a site, and which sites have no names of their own.
func (s Sites) Findings() []Finding {
	used := map[string]bool{}
	for _, keys := range s.Governed {
		for _, key := range SiteKeys(keys) {
			used[key] = true
		}
	}
	keys := slices.Sorted(maps.Keys(used))
	found := make([]Finding, 0, len(keys))
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		labels := s.Nodes[name]
		f := Finding{Severity: Failure, Check: CheckSite, Object: Object{Kind: "Node", Name: name}, Node: name}
		in := slices.IndexFunc(keys, func(key string) bool { _, ok := labels[key]; return ok })
		switch {
		case !isEdge(labels) && !s.Wrapped[name] && in >= 0:
			f.Message = fmt.Sprintf("it is in the site %s=%s and no edge node: nothing runs there that keeps Services "+
				"to their site, so they reach every site", keys[in], labels[keys[in]])
			f.Action = fmt.Sprintf("kubectl label node %s %s=%s; or take it out of the site: kubectl label node %s %s-",
				name, v1.LabelEdgeNode, v1.EdgeNodePods, name, keys[in])
		case isEdge(labels) && in < 0 && !hasAny(labels, s.GridKeys) &&
			slices.ContainsFunc(s.Governed, func(keys topology.Keys) bool {
				return !slices.Contains(keys, topology.Any) && !hasAny(labels, keys)
			}):
			f.Message = fmt.Sprintf("it is an edge node in no site: without the label %s it has no endpoints of the "+
				"Services with that key", strings.Join(keys, " or "))
			f.Action = fmt.Sprintf("kubectl label node %s %s=SITE", name, keys[0])
		default:
			continue
		}
		found = append(found, f)
	}
	for _, key := range keys {
		found = append(found, s.names(key)...)
	}
	return found
}

// names says which sites of a key have no CoreDNS, or have one that nobody is led to.
func (s Sites) names(key string) []Finding {
	if s.Resolvers == nil || key == corev1.LabelHostname {
		return nil
	}
	sites := map[string]bool{} // whether each has CoreDNS
	for name, labels := range s.Nodes {
		if site, in := labels[key]; in && isEdge(labels) {
			sites[site] = sites[site] || s.Resolvers[name]
		}
	}
	var without []string
	for _, site := range slices.Sorted(maps.Keys(sites)) {
		if !sites[site] {
			without = append(without, site)
		}
	}
	f := Finding{Severity: Warning, Check: CheckNames, Key: key,
		Object: Object{Kind: "Service", Namespace: "kube-system", Name: "kube-dns"}}
	switch {
	case len(without) > 0:
		f.Message = fmt.Sprintf("%d of the %d sites of %s have no CoreDNS (%s): names do not resolve there while the "+
			"link is down", len(without), len(sites), key, enumerate.First(without, namedSites))
		f.Action = "add components: [../manifests/coredns-edge] to your kustomization and apply it, or set the " +
			"chart's coreDNS.enabled (docs/install.md, CoreDNS in each site)"
	case len(sites) > 0 && !slices.Contains(s.ResolverKeys, key):
		f.Message = "it has no topologyKeys with " + key + ": the nodes of a site ask the CoreDNS of any site"
		f.Action = "kubectl -n kube-system annotate --overwrite service kube-dns " +
			fmt.Sprintf(`'topologyKeys=["%s", "%s"]'`, corev1.LabelHostname, key)
	default:
		return nil
	}
	return []Finding{f}
}
