package gridview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

// namedSites is how many sites or nodes a finding names; it counts the others.
const namedSites = 5

// Sites has the facts about the sites of a cluster that decide whether its Services stay in them.
type Sites struct {
	// Nodes are the labels of all nodes, by name.
	Nodes map[string]topology.Labels
	// Wrapped is that of a Diagnosis.
	Wrapped map[string]bool
	// Governed are the topology keys of every Service that has some, and Resolving those of the Services of CoreDNS,
	// which are left out there: their sites alone need no CoreDNS.
	Governed, Resolving []topology.Keys
	// GridKeys are the keys of grids of workloads: a node of one of their sites may need no Service. GridsUnread is set
	// if not all of them could be read.
	GridKeys    []string
	GridsUnread bool
	// CoreDNS are the nodes with a ready pod of CoreDNS; nil if not known. Resolvers are the Services that nodes ask
	// for names.
	CoreDNS   map[string]bool
	Resolvers []Resolver
}

// Resolver is a Service of CoreDNS, in kube-system, that some nodes ask for names.
type Resolver struct {
	Name string
	Keys topology.Keys
	// Nodes are the nodes that ask it: their pods do, or NodeLocal DNSCache does for them.
	Nodes map[string]bool
}

// SiteOf returns the name of the site of a node with these labels, by a key, and reports false if it is in none.
func SiteOf(labels topology.Labels, key string) (name string, in bool) {
	value, in := labels[key]
	if !in {
		return "", false
	}
	return siteName(value), true
}

// siteName returns the name of the site of the nodes with a value of a label. An empty value is a site as well.
func siteName(value string) string { return cmp.Or(value, `""`) }

// HasSites reports whether keys are meant to keep a Service to sites. Without keys, or with "*" alone, every node may
// reach every endpoint.
func HasSites(keys topology.Keys) bool { return keys.Governed() && keys[0] != topology.Any }

// SiteKey returns the key of a Service whose values are its sites: the first that is neither that of a node's name nor
// "*". It returns "" if none is; the keys after it are fallbacks.
func SiteKey(keys topology.Keys) string {
	for _, key := range keys {
		if key != topology.Any && key != corev1.LabelHostname {
			return key
		}
	}
	return ""
}

// siteKeys returns the site keys of some Services.
func siteKeys(of ...[]topology.Keys) (keys []string) {
	for _, one := range slices.Concat(of...) {
		keys = append(keys, SiteKey(one))
	}
	slices.Sort(keys)
	return slices.DeleteFunc(slices.Compact(keys), func(key string) bool { return key == "" })
}

// Findings returns findings about nodes that are only partly in a site, and about sites without DNS of their own.
func (s Sites) Findings() []Finding {
	keys, all := siteKeys(s.Governed), siteKeys(s.Governed, s.Resolving)
	named := slices.Concat(slices.Concat(s.Governed...), s.GridKeys)
	slices.Sort(named)
	named = slices.DeleteFunc(slices.Compact(named), func(key string) bool { return key == corev1.LabelHostname })
	cluster := &Groupings{Nodes: s.Nodes, Diagnosis: &Diagnosis{Nodes: s.Nodes, Wrapped: s.Wrapped}}
	var found []Finding
	for _, name := range slices.Sorted(maps.Keys(s.Nodes)) {
		labels := s.Nodes[name]
		for _, key := range all {
			if cluster.Of(topology.Keys{key}).halfInSite(name) {
				found = append(found, halfInSite(name, key, labels[key]))
			}
		}
		if isEdge(labels) && !s.GridsUnread {
			found = append(found, s.inNoSite(name, named, cluster)...)
		}
	}
	for _, key := range keys {
		for _, resolver := range s.Resolvers {
			found = append(found, s.names(resolver, key, keys)...)
		}
	}
	return found
}

// halfInSite returns the failure of a node that is not an edge node, in a site of edge nodes. No action removes the
// label: other programs may use it, such as topology.kubernetes.io/zone.
func halfInSite(name, key, value string) Finding {
	return Finding{Severity: Failure, Check: CheckSite, Object: Object{Kind: "Node", Name: name}, Node: name, Key: key,
		Message: fmt.Sprintf("it is in the site %s=%s and is not an edge node: nothing on it keeps Services to the "+
			"site, so they reach every site from there", key, value),
		Action: fmt.Sprintf("kubectl label node %s --overwrite %s=%s", name, v1.LabelEdgeNode, v1.EdgeNodePods)}
}

// inNoSite returns the failure of an edge node that has none of the keys that Services and grids use, besides its own
// name (named): it was meant to have one. A node with another key belongs to another fleet.
func (s Sites) inNoSite(name string, named []string, cluster *Groupings) []Finding {
	labels := s.Nodes[name]
	i := slices.IndexFunc(s.Governed, func(keys topology.Keys) bool {
		return len(cluster.Of(topology.Keys{SiteKey(keys)}).sites) > 0 && !inGroup(labels, keys)
	})
	if i < 0 || hasAny(labels, named) {
		return nil
	}
	key := SiteKey(s.Governed[i])
	return []Finding{{Severity: Failure, Check: CheckSite, Object: Object{Kind: "Node", Name: name}, Node: name,
		Message: fmt.Sprintf("it is an edge node in no site: without the label %s it reaches nothing of the Services "+
			"with that key", key), Action: actionLabel(name, key)}}
}

// resolverKeys returns the keys with which the nodes of all sites ask the CoreDNS of their own: the name of the node,
// those that the resolver has, and all keys of sites. Edge nodes without any CoreDNS of their own ask all of them.
func (s Sites) resolverKeys(resolver Resolver, all []string) topology.Keys {
	keys := topology.Keys{corev1.LabelHostname}
	for _, key := range slices.Concat(resolver.Keys, all) {
		if key != topology.Any && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	var counts topology.Counts
	for name := range s.CoreDNS {
		counts.Add(topology.Ready, keys, s.Nodes[name], 1)
	}
	needsAny := slices.Contains(resolver.Keys, topology.Any)
	for name := range resolver.Nodes {
		needsAny = needsAny || isEdge(s.Nodes[name]) && counts.Best(keys, s.Nodes[name]) == topology.NoValue()
	}
	if needsAny {
		keys = append(keys, topology.Any)
	}
	return keys
}

// names returns findings about sites of a key, which is one of all, whose nodes ask a resolver, and reach no CoreDNS,
// have none, or ask that of any site.
func (s Sites) names(resolver Resolver, key string, all []string) []Finding {
	if s.CoreDNS == nil {
		return nil
	}
	own := map[string]bool{} // the sites with a CoreDNS
	for name := range s.CoreDNS {
		if site, in := SiteOf(s.Nodes[name], key); in {
			own[site] = true
		}
	}
	sites, apart := map[string]bool{}, 0 // whether each has CoreDNS; nodes that the resolver keeps from all
	for name := range resolver.Nodes {
		labels := s.Nodes[name]
		if site, in := SiteOf(labels, key); in && isEdge(labels) {
			sites[site] = own[site]
			if resolver.Keys.Governed() && !inGroup(labels, resolver.Keys) {
				apart++
			}
		}
	}
	without := slices.DeleteFunc(slices.Sorted(maps.Keys(sites)), func(site string) bool { return sites[site] })
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: resolver.Name}}
	f := Finding{Severity: Warning, Check: CheckNames, Key: key,
		Object: Object{"Service", service.Namespace, service.Name}}
	switch {
	case apart > 0:
		f.Severity, f.Action = Failure, setKeys(service, s.resolverKeys(resolver, all))
		f.Message = fmt.Sprintf("none of its topologyKeys is on %s with the label %s: no name resolves there",
			enumerate.Count(apart, "edge node"), key)
	case len(without) > 0:
		f.Message = fmt.Sprintf("%d of the %d sites of %s have no CoreDNS (%s): names do not resolve there while the "+
			"link is down", len(without), len(sites), key, enumerate.First(without, namedSites))
		f.Action = "add components: [../manifests/coredns-edge] to your kustomization and apply it, or set the " +
			"chart's coreDNS.enabled (docs/coredns.md)"
	case len(sites) > 0 && !slices.Contains(resolver.Keys, key):
		f.Message = "it has no topologyKeys with " + key + ": the nodes of a site ask the CoreDNS of any site"
		f.Action = setKeys(service, s.resolverKeys(resolver, all))
	default:
		return nil
	}
	return []Finding{f}
}
