package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// onNode returns the command for the node of a wrapper, for facts that the API server does not show.
func onNode(wrapper *pod) string {
	return "on the node: curl -sk " + wrapper.url() + "/metrics | grep application_grid_wrapper_watchers must print " +
		"1 for services and endpointslices"
}

// Commands that repair something.
const (
	unlabelAll = "kubectl label nodes --all " + v1.LabelEdgeNode + "-"
	awayPatch  = "kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml"
	backPatch  = "kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-back.yaml"
)

// edgeCheck goes through the nodes.
type edgeCheck struct {
	*Report
	*Cluster

	wrappers, proxies, daemons map[string][]*pod
	// anyProxy is set if the cluster runs kube-proxy as pods. names is set if the cluster uses the DNS hosts daemon,
	// which is optional.
	anyProxy, names bool
}

// checkEdgeNodes compares what each node has with what it should have.
func (r *Report) checkEdgeNodes(c *Cluster) {
	if !c.knows(kindNode, kindPod) {
		return
	}
	e := &edgeCheck{Report: r, Cluster: c, wrappers: c.byNode(wrapperProgram), proxies: c.byNode(kubeProxyProgram),
		daemons: c.byNode(daemonProgram)}
	e.anyProxy = len(e.proxies) > 0 || len(c.running(kubeProxyProgram)) > 0
	e.names = len(e.daemons) > 0 || len(c.installed(daemonProgram)) > 0 || slices.ContainsFunc(c.grids,
		func(g grid) bool { return g.about.Kind == "StatefulSetGrid" })
	edges, pods := c.edges(), 0
	for _, n := range c.nodes {
		if n.isEdge() {
			if n.edge == v1.EdgeNodePods {
				pods++
			}
			e.edgeNode(n)
		} else {
			e.otherNode(n)
			e.checkNodeArgs(e.Cluster, n, e.wrappers[n.name])
		}
	}
	about, each := Object{Kind: kindNode}, "each of "+enumerate.Count(edges, "edge node")
	if edges == 0 {
		r.noEdgeNodes(c)
		return
	}
	r.ok("EdgeLabel", about, "%d of %s are edge nodes", edges, enumerate.Count(len(c.nodes), "node"))
	r.well(gridview.CheckWrapper, true, about, "the wrapper is ready on %s", each)
	proxied := len(e.proxies) > 0 || len(c.running(ciliumProgram)) == 0
	r.well(gridview.CheckKubeProxy, proxied, about, "one kube-proxy is on %s, and asks the wrapper", each)
	r.first("Daemon", "",
		row{!e.names, OK, about, "there are no StatefulSetGrids, and no " + string(daemonProgram) + " is needed", ""},
		row{pods > 0 && r.clean("Daemon"), OK, about,
			fmt.Sprintf("%s is ready on each of %s", daemonProgram, enumerate.Count(pods, "edge node")), ""})
}

// noEdgeNodes reports that no node is an edge node: a warning until a Service has to stay in its sites.
func (r *Report) noEdgeNodes(c *Cluster) {
	severity, services, staying := Warning, "Services to their sites", 0
	for _, s := range c.services {
		if s.byKubeProxy() && gridview.SiteKey(s.keys) != "" && !slices.Contains(s.keys, topology.Any) {
			staying++
		}
	}
	if staying > 0 {
		severity, services = Failure, enumerate.Count(staying, "Service")+" with topologyKeys to the sites"
	}
	r.add(severity, "EdgeLabel", Object{Kind: kindNode}, "no node has the label "+v1.LabelEdgeNode+
		", so nothing keeps "+services,
		"label the nodes of the sites: kubectl label node NODE "+v1.LabelEdgeNode+"="+v1.EdgeNodePods)
}

// edgeNode checks an edge node.
func (e *edgeCheck) edgeNode(n *node) {
	e.wrapper(n)
	switch {
	case len(e.proxies[n.name]) > 0:
		e.kubeProxies(n)
	case slices.ContainsFunc(e.running(ciliumProgram), func(w *workload) bool { return w.runsOn(n) }):
		// checkCilium checks whom that asks
	case n.edge != v1.EdgeNodeStatic && e.knows(kindDaemonSet) &&
		(e.anyProxy || n.distribution != "" || n.proxyDisabled):
		e.noProxyPod(n)
	default:
		onNode := onNode(firstOf(e.wrappers[n.name]))
		e.first(gridview.CheckKubeProxy, n.name,
			row{n.edge == v1.EdgeNodeStatic, Unknown, n.about(),
				"the node starts kube-proxy itself, and the API server does not show whom it asks", onNode},
			row{otherwise, Unknown, n.about(), "no pod of this cluster runs kube-proxy; whom one asks that is " +
				"started outside of Kubernetes is not known here", onNode})
	}
	if n.edge == v1.EdgeNodePods && e.names {
		e.agent("Daemon", n, daemonProgram, e.daemons[n.name])
	}
}

// otherNode checks a node that is not an edge node.
func (e *edgeCheck) otherNode(n *node) {
	e.all("EdgeLabel", n.name, row{n.edge != "" && n.edge != "false", Warning, n.about(),
		fmt.Sprintf("the label %s=%s means nothing", v1.LabelEdgeNode, n.edge),
		fmt.Sprintf("kubectl label node %s --overwrite %s=%s; %s where the wrapper is a unit of systemd, %s where the "+
			"node starts wrapper and kube-proxy itself", n.name, v1.LabelEdgeNode, v1.EdgeNodePods, v1.EdgeNodeSystemd,
			v1.EdgeNodeStatic)})
	for _, p := range e.proxies[n.name] {
		serves := len(e.wrappers[n.name]) > 0 && (firstOf(e.wrappers[n.name]).ready || !n.ready)
		e.all(gridview.CheckKubeProxy, n.name, row{e.leadsToWrappers(p.proxy.server) && !serves, Failure,
			p.about(), fmt.Sprintf("it asks %s (%s) on node %s, where no wrapper serves: its rules stay as they are",
				p.proxy.server, p.proxy.source, n.name),
			fmt.Sprintf("kubectl label node %s %s=%s, or give this kube-proxy the API server's address", n.name,
				v1.LabelEdgeNode, v1.EdgeNodePods)})
	}
	e.twoProxies(n)
}

// wrapper checks that an edge node has one wrapper.
func (e *edgeCheck) wrapper(n *node) {
	pods := e.wrappers[n.name]
	if n.edge == v1.EdgeNodePods || n.edge == v1.EdgeNodeStatic && len(pods) > 0 {
		e.agent(gridview.CheckWrapper, n, wrapperProgram, pods)
		return
	}
	p := firstOf(pods)
	e.first(gridview.CheckWrapper, n.name,
		row{n.edge == v1.EdgeNodeStatic, Unknown, n.about(), "the node starts the wrapper itself, and the API server " +
			"does not show it: neither whether it runs nor whether it is ready",
			"on the node: curl localhost:51006/readyz"},
		row{len(pods) > 0, Failure, p.about(), fmt.Sprintf("it runs on node %s, which says that its wrapper is a unit "+
			"of systemd: both want port %d", n.name, p.port),
			fmt.Sprintf("kubectl label node %s --overwrite %s=%s and stop the unit, or keep this pod off the node",
				n.name, v1.LabelEdgeNode, v1.EdgeNodePods)},
		row{otherwise, Unknown, n.about(), "the wrapper is a unit of systemd there, which the API server does " +
			"not show: neither whether it runs nor whether it is ready",
			"on the node: systemctl status " + string(wrapperProgram) + "; curl localhost:51006/readyz"})
}

// agent checks that an edge node has one pod of a program.
func (e *edgeCheck) agent(check string, n *node, program Program, pods []*pod) {
	p := firstOf(pods)
	e.first(check, n.name,
		e.noneOfSystem(n, program, pods),
		row{len(pods) == 0, Failure, n.about(), fmt.Sprintf("no %s runs there", program),
			fmt.Sprintf("kubectl -n kube-system describe daemonset %s; its pods of that node, if there are any: "+
				"kubectl get pods -A -o wide --field-selector spec.nodeName=%s", program, n.name)},
		row{len(pods) > 1, Failure, n.about(), fmt.Sprintf("%d pods of %s run there: %s; only one gets the port",
			len(pods), program, podNames(pods)),
			"remove the DaemonSet that is not application-grid's; docs/migrate.md says how to take over SuperEdge's"},
		row{p.hostname != "" && p.hostname != n.name, Failure, p.about(),
			fmt.Sprintf("it runs on node %s and is given the name of another: --hostname=%s; Services reach that "+
				"node's site from there", n.name, p.hostname), "take --hostname from its arguments, or set it to " +
				"$(NODE_NAME)"},
		row{n.silent, Unknown, p.about(), fmt.Sprintf("node %s is unreachable, so whether the pod runs is not known",
			n.name), "if the site has no link this is expected; otherwise see why the node is not ready"},
		row{!n.ready, Warning, p.about(), fmt.Sprintf("node %s is not ready, so the pod's state is that of the "+
			"node's last contact", n.name),
			"if the site has no link this is expected; otherwise see why the node is not ready"},
		row{!p.ready, Failure, p.about(), fmt.Sprintf("it is not ready on node %s: %s", n.name, p.why), remedy(p)})
}

// noneOfSystem is that a node has none of these pods, and that others than those of kube-system could not be read.
func (c *Cluster) noneOfSystem(n *node, program Program, pods []*pod) row {
	return row{len(pods) == 0 && !c.knows(podElsewhere), Unknown, n.about(), fmt.Sprintf("no %s of %s runs there, and "+
		"pods of other namespaces could not be read", program, system), "ask again as somebody who may read them"}
}

// checkNodeArgs reports a node that is not, or no longer, an edge node, but whose arguments of k3s point its kube-proxy
// to a wrapper that does not serve there.
func (r *Report) checkNodeArgs(c *Cluster, n *node, wrappers []*pod) {
	master, _ := n.master()
	r.all(gridview.CheckKubeProxy, n.name, row{
		c.leadsToWrappers(master) && !n.proxyDisabled && !firstOf(wrappers).ready,
		Failure, n.about(), fmt.Sprintf("its kube-proxy, a part of %s, asks %s, where no wrapper serves: its rules "+
			"stay as "+
			"they are", n.distribution, master), fmt.Sprintf("take master=%s out of kube-proxy-arg in the node's "+
			"config.yaml and restart %s", master, n.distribution)})
}

// remedy returns what to do about a pod that is not ready.
func remedy(p *pod) string {
	if strings.Contains(p.why, "ImagePull") || strings.Contains(p.why, "ErrImage") {
		return "make the image " + p.image + " available to the node: push it to the registry, or import it on the " +
			"node (docs/install.md, Images)"
	}
	return fmt.Sprintf("kubectl -n %s describe pod %s; kubectl -n %s logs %s", p.namespace, p.name, p.namespace, p.name)
}

// kubeProxies checks the kube-proxies of an edge node, which should have one, and the servers that they ask.
func (e *edgeCheck) kubeProxies(n *node) {
	e.twoProxies(n)
	wrapper := firstOf(e.wrappers[n.name])
	for _, p := range e.proxies[n.name] {
		config := p.proxy
		past := config.serverErr == nil && !leadsToWrapper(config.server, wrapper.port)
		// kubeadm's own waits for the wrapper: see manifests/kubeadm.
		waits := past && n.edge == v1.EdgeNodePods && e.ownerOf(p).waitsForWrapper &&
			n.labels[v1.LabelKubeProxy] != v1.KubeProxyEdge
		e.first(gridview.CheckKubeProxy, n.name,
			row{config.serverErr != nil, Unknown, p.about(),
				fmt.Sprintf("which server it asks on node %s is not known: %v", n.name, config.serverErr),
				onNode(wrapper)},
			row{waits && !wrapper.ready, Failure, p.about(), fmt.Sprintf("it stays on node %s, and asks %s, until the "+
				"node's wrapper is ready: Services reach every site from there", n.name, config.server),
				"repair the wrapper; kube-proxy then moves by itself"},
			row{waits, Failure, p.about(), fmt.Sprintf("it asks %s on node %s, whose wrapper is ready: the controller "+
				"has not moved kube-proxy, and Services reach every site from there", config.server, n.name),
				fmt.Sprintf("kubectl label node %s %s=%s; kubectl -n kube-system logs deployment/%s says why the "+
					"controller does not", n.name, v1.LabelKubeProxy, v1.KubeProxyEdge, controllerProgram)},
			row{past, Failure, p.about(), fmt.Sprintf("it asks %s (%s) on node %s, past the wrapper: Services reach "+
				"every site from there", config.server, config.source, n.name),
				fmt.Sprintf("give it the server %s and restart it; docs/other-clusters.md says how", wrapper.url())},
			row{wrapper.otherScheme(config.server) != "", Failure, p.about(), fmt.Sprintf("it asks %s "+
				"(%s) on node %s%s: it never gets an answer, and its rules do not "+
				"change", config.server, config.source, n.name,
				wrapper.otherScheme(config.server)), "give its server the wrapper's scheme, or change " +
				"the wrapper's --insecure, and restart it; docs/other-clusters.md says how"},
			row{!p.started.IsZero() && config.changed.After(p.started), Warning, p.about(), "its configuration was " +
				"changed after it started on node " + n.name + ", and it reads the server only once",
				fmt.Sprintf("kubectl -n %s delete pod %s", p.namespace, p.name)})
		e.all(gridview.CheckKubeProxy, n.name, row{!p.ready && n.ready, Failure, p.about(), fmt.Sprintf(
			"it is not ready on node %s, whose rules are frozen%s: %s", n.name, since(p.unreadySince), p.why),
			remedy(p)})
	}
}

// ownerOf returns the workload of a pod, or an empty one.
func (c *Cluster) ownerOf(p *pod) *workload {
	for _, w := range c.running(p.program) {
		if w.namespace == p.namespace && p.owner == w.kind+" "+w.name {
			return w
		}
	}
	return &workload{}
}

// since returns a time in the form of the end of a sentence; "" if it is not known.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " since " + t.UTC().Format(time.RFC3339)
}

func (e *edgeCheck) twoProxies(n *node) {
	proxies := e.proxies[n.name]
	e.all(gridview.CheckKubeProxy, n.name, row{len(proxies) > 1, Failure, n.about(),
		fmt.Sprintf("%d kube-proxies run there, and overwrite each other's rules: %s", len(proxies), podNames(proxies)),
		"keep all but one off the node (docs/other-clusters.md; on kubeadm: manifests/kubeadm/kube-proxy-away.yaml), " +
			"then delete the pod of the one that stays: it writes only what changes, and would find out of the " +
			"other's rules within an hour"})
}

// noProxyPod checks an edge node without a pod of kube-proxy.
func (e *edgeCheck) noProxyPod(n *node) {
	wrapper := firstOf(e.wrappers[n.name])
	master, given := n.master()
	asks := "has no --master: it asks the API server"
	if given {
		asks = "asks " + master + ", past the wrapper"
	}
	frozen := n.labelled // the newest that is known of when the last kube-proxy went
	for _, p := range e.pods {
		if p.program == kubeProxyProgram && p.waitsFor == n.name && p.created.After(frozen) {
			frozen = p.created
		}
	}
	_, kubeconfig := flagOf(n.proxyArgs, "kubeconfig")
	_, config := flagOf(n.proxyArgs, "config")
	inFile := !given && (kubeconfig || config)
	repair := "see why its DaemonSet has no pod there: kubectl -n kube-system get daemonsets -o wide"
	if e.knows(kindDaemonSet) && len(e.installed(wrapperProgram)) == 0 {
		repair = unlabelAll
	}
	e.first(gridview.CheckKubeProxy, n.name,
		row{n.proxyDisabled, Failure, n.about(), "its agent runs with --disable-kube-proxy, and kube-proxy has no " +
			"pod there: nothing asks the wrapper", "run kube-proxy there, or remove the label " + v1.LabelEdgeNode},
		row{n.distribution == k0sMade, Unknown, n.about(),
			"no pod of kube-proxy is there, and how k0s starts it is not known here", onNode(wrapper)},
		e.noneOfSystem(n, kubeProxyProgram, nil),
		row{!ownProxy[n.distribution], Failure, n.about(), "no kube-proxy runs there: its rules are frozen" +
			since(frozen) + ", or something else makes them", repair},
		row{!n.tellsArgs || inFile, Unknown, n.about(), "kube-proxy is part of " + n.distribution + "'s own process " +
			"there, and only a file on the node says which server it asks", onNode(wrapper)},
		row{!leadsToWrapper(master, wrapper.port), Failure, n.about(), "its kube-proxy, a part of " + n.distribution +
			", " + asks + ", and Services reach every site from there",
			fmt.Sprintf(`put kube-proxy-arg: ["master=%s"] into the node's config.yaml and restart %s`, wrapper.url(),
				n.distribution)},
		row{wrapper.otherScheme(master) != "", Failure, n.about(), "its kube-proxy, a part of " + n.distribution +
			", asks " + master + wrapper.otherScheme(master) + ": its rules stay as they are",
			"give master= in the node's config.yaml the wrapper's scheme and restart " + n.distribution})
}

func podNames(pods []*pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.namespace+"/"+p.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// checkSites reports nodes that are only partly in a site, and sites without CoreDNS.
func (r *Report) checkSites(c *Cluster) {
	if !c.knows(kindNode, kindPod, kindService) {
		return
	}
	known := c.diagnosis(nil)
	sites := gridview.Sites{Nodes: known.Nodes, Wrapped: known.Wrapped, CoreDNS: c.coreDNS, Resolvers: c.resolvers(),
		GridsUnread: !c.knowsGrids()}
	for _, g := range c.grids {
		if g.key != "" {
			sites.GridKeys = append(sites.GridKeys, g.key)
		}
	}
	for _, s := range c.services {
		if s.byKubeProxy() &&
			(s.about.Namespace != system || !slices.Contains(c.dns, s.about.Name)) {
			sites.Governed = append(sites.Governed, s.keys)
		}
	}
	found := sites.Findings()
	r.Findings = append(r.Findings, found...)
	if len(found) > 0 || len(sites.Governed) == 0 || sites.GridsUnread {
		return
	}
	with := ""
	if c.coreDNS != nil {
		with = ", and each site has a CoreDNS"
	}
	r.ok(gridview.CheckSite, Object{Kind: kindNode}, "no node is half in a site%s", with)
}

// resolvers returns the Services that the nodes ask for names. Pods ask the one of CoreDNS, or NodeLocal DNSCache on
// their node, which asks another one: its own address may be that of the first.
func (c *Cluster) resolvers() []gridview.Resolver {
	caches, byName := c.byNode(nodeLocalProgram), map[string]*gridview.Resolver{}
	dns := kubeDNS
	if len(c.dns) > 0 && !slices.Contains(c.dns, kubeDNS) {
		dns = slices.Min(c.dns)
	}
	for _, n := range c.nodes {
		name := cmp.Or(firstOf(caches[n.name]).upstream, dns)
		if byName[name] == nil {
			byName[name] = &gridview.Resolver{Name: name, Nodes: map[string]bool{}}
		}
		byName[name].Nodes[n.name] = true
	}
	resolvers := make([]gridview.Resolver, 0, len(byName))
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		resolver := byName[name]
		for _, s := range c.services {
			if s.about == named(kindService, system, name) && s.err == nil {
				resolver.Keys = s.keys
			}
		}
		resolvers = append(resolvers, *resolver)
	}
	return resolvers
}

// checkReach reports which sites do not reach which Services, and on how many nodes the Services stay in their sites.
func (r *Report) checkReach(c *Cluster) {
	worst, found := c.reach(r.Findings)
	r.Findings = append(r.Findings, found...)
	for _, name := range slices.Sorted(maps.Keys(worst)) {
		if v := worst[name]; v.Holds() && v.Keeps > 0 {
			r.ok(gridview.CheckReach, Object{Kind: kindService}, "each with the topologyKeys %s %s", name, v.String())
		}
	}
}

// reach returns the worst verdict on the Services with the same keys, of those that kube-proxy keeps to their sites,
// and the problems with what the nodes reach. It returns nothing if the endpoints were not read.
func (c *Cluster) reach(of []Finding) (worst map[string]gridview.Verdict, found []Finding) {
	if !c.reachKnown {
		return nil, nil
	}
	known := c.diagnosis(of)
	groupings := &gridview.Groupings{Nodes: known.Nodes, Diagnosis: known}
	worst = map[string]gridview.Verdict{}
	for _, s := range c.services {
		if s.tally == nil {
			continue
		}
		view, keys := s.tally.View(groupings), strings.Join(s.keys, " ")
		found = append(found, view.Reach...)
		if before, known := worst[keys]; s.byKubeProxy() && (!known || view.Verdict.Keeps < before.Keeps) {
			worst[keys] = view.Verdict
		}
	}
	slices.SortStableFunc(found, gridview.ByObject)
	return worst, found
}
