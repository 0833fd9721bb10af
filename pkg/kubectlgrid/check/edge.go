package check

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// onNode returns the command for the node of a wrapper, for facts that the API server does not show.
func (p *pod) onNode() string {
	return "on the node: curl -sk " + p.url() + "/metrics | grep application_grid_wrapper_watchers must print 1 for " +
		"services and endpointslices"
}

// Commands that repair something.
const (
	unlabelAll = "kubectl label nodes --all " + v1.LabelEdgeNode + "-"
	awayPatch  = "kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml"
	backPatch  = "kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-back.yaml"
)

// checkEdgeNodes compares what each node has with what it should have.
func (r *Report) checkEdgeNodes(c *Cluster) {
	if !c.knows(kindNode, kindPod) {
		return
	}
	// The DNS hosts daemon is optional.
	daemon := c.hasPod(daemonProgram) || len(c.installed(daemonProgram)) > 0 ||
		slices.ContainsFunc(c.grids, func(g grid) bool { return g.about.Kind == "StatefulSetGrid" })
	daemons := 0
	for _, n := range c.nodes {
		proxies := n.podsOf(kubeProxyProgram)
		r.all(gridview.CheckKubeProxy, n.Name, row{len(proxies) > 1, Failure, n.Object,
			fmt.Sprintf("%d kube-proxies run there, and overwrite each other's rules: %s", len(proxies),
				podNames(proxies)),
			"keep all but one off the node (docs/other-clusters.md; on kubeadm: kube-proxy-away.yaml), then delete " +
				"the pod of the one that stays, so that it writes all of its rules"})
		if !n.isEdge() {
			r.otherNode(c, n)
			continue
		}
		r.checkWrapper(c, n)
		if len(proxies) > 0 {
			r.kubeProxies(c, n)
		} else if !slices.ContainsFunc(c.running(ciliumProgram), func(w *workload) bool { return w.runsOn(n) }) {
			r.noProxyPod(c, n)
		}
		if daemon && n.edge == v1.EdgeNodePods {
			r.agent(c, "Daemon", n, daemonProgram)
			daemons++
		}
	}
	about, edges := Object{Kind: kindNode}, c.edges()
	if edges == 0 {
		r.noEdgeNodes(c)
		return
	}
	each := "each of " + enumerate.Count(edges, "edge node")
	r.ok("EdgeLabel", about, "%d of %s are edge nodes", edges, enumerate.Count(len(c.nodes), "node"))
	r.well(gridview.CheckWrapper, true, about, "the wrapper is ready on %s", each)
	r.well(gridview.CheckKubeProxy, c.hasPod(kubeProxyProgram) || len(c.running(ciliumProgram)) == 0, about,
		"one kube-proxy is on %s, and asks the wrapper", each)
	r.well("Daemon", !daemon, about, "there are no StatefulSetGrids, and no %s is needed", daemonProgram)
	r.well("Daemon", daemons > 0, about, "%s is ready on each of %s", daemonProgram,
		enumerate.Count(daemons, "edge node"))
}

// noEdgeNodes reports that no node is an edge node: a warning until a Service has to stay in its sites.
func (r *Report) noEdgeNodes(c *Cluster) {
	staying := 0
	for _, s := range c.services {
		if s.byKubeProxy() && gridview.SiteKey(s.keys) != "" && !slices.Contains(s.keys, topology.Any) {
			staying++
		}
	}
	const none = "no node has the label " + v1.LabelEdgeNode + ", so nothing keeps "
	const label = "label the nodes of the sites: kubectl label node NODE " + v1.LabelEdgeNode + "=" + v1.EdgeNodePods
	r.first("EdgeLabel", "",
		row{staying > 0, Failure, Object{Kind: kindNode}, none + enumerate.Count(staying, "Service") +
			" with topologyKeys to the sites", label},
		row{true, Warning, Object{Kind: kindNode}, none + "Services to their sites", label})
}

// otherNode checks a node that is not, or no longer, an edge node. Its kube-proxy may still ask a wrapper.
func (r *Report) otherNode(c *Cluster, n *node) {
	r.all("EdgeLabel", n.Name, row{n.edge != "" && n.edge != "false", Warning, n.Object,
		fmt.Sprintf("the label %s=%s means nothing", v1.LabelEdgeNode, n.edge),
		fmt.Sprintf("kubectl label node %s --overwrite %s=%s; docs/install.md has the other values", n.Name,
			v1.LabelEdgeNode, v1.EdgeNodePods)})
	wrapper, in := n.pod(wrapperProgram), n.distribution
	serves := wrapper.ready || wrapper.program != "" && !n.ready
	const frozen = ", where no wrapper serves: its rules stay as they are"
	for _, p := range n.podsOf(kubeProxyProgram) {
		r.all(gridview.CheckKubeProxy, n.Name, row{c.leadsToWrappers(p.proxy.server) && !serves, Failure, p.Object,
			p.proxy.asks() + frozen,
			fmt.Sprintf("kubectl label node %s %s=%s, or give this kube-proxy the API server's address", n.Name,
				v1.LabelEdgeNode, v1.EdgeNodePods)})
	}
	master, _ := n.master()
	r.all(gridview.CheckKubeProxy, n.Name, row{c.leadsToWrappers(master) && !n.proxyDisabled && !wrapper.ready, Failure,
		n.Object, fmt.Sprintf("its kube-proxy, a part of %s, asks %s%s", in, master, frozen),
		fmt.Sprintf("take master=%s out of kube-proxy-arg in the node's config.yaml and restart %s", master, in)})
}

// checkWrapper checks that an edge node has one wrapper.
func (r *Report) checkWrapper(c *Cluster, n *node) {
	p := n.pod(wrapperProgram)
	if n.edge == v1.EdgeNodePods || n.edge == v1.EdgeNodeStatic && p.program != "" {
		r.agent(c, gridview.CheckWrapper, n, wrapperProgram)
		return
	}
	const unseen = ", which the API server does not show: neither whether it runs nor whether it is ready"
	r.first(gridview.CheckWrapper, n.Name,
		row{n.edge == v1.EdgeNodeStatic, Unknown, n.Object, "the node starts the wrapper itself" + unseen,
			"on the node: curl localhost:51006/readyz"},
		row{p.program != "", Failure, p.Object, fmt.Sprintf("it runs, and the node's label says that its wrapper is a "+
			"unit of systemd: both want port %d", p.port),
			fmt.Sprintf("kubectl label node %s --overwrite %s=%s and stop the unit, or keep this pod off the node",
				n.Name, v1.LabelEdgeNode, v1.EdgeNodePods)},
		row{true, Unknown, n.Object, "the wrapper is a unit of systemd there" + unseen,
			"on the node: systemctl status " + string(wrapperProgram) + "; curl localhost:51006/readyz"})
}

// agent checks that an edge node has one pod of a program.
func (r *Report) agent(c *Cluster, check string, n *node, program Program) {
	pods, p := n.podsOf(program), n.pod(program)
	const expected = "if the site has no link this is expected; otherwise see why the node is not ready"
	r.first(check, n.Name,
		c.noneOfSystem(n, program),
		row{len(pods) == 0, Failure, n.Object, fmt.Sprintf("no %s runs there", program),
			fmt.Sprintf("kubectl -n kube-system describe daemonset %s; kubectl get pods -A --field-selector "+
				"spec.nodeName=%s", program, n.Name)},
		row{len(pods) > 1, Failure, n.Object, fmt.Sprintf("%d pods of %s run there: %s; only one gets the port",
			len(pods), program, podNames(pods)),
			"remove the DaemonSet that is not application-grid's; docs/migrate.md says how to take over SuperEdge's"},
		row{p.hostname != "" && p.hostname != n.Name, Failure, p.Object,
			"it is given the name of another node, whose site Services reach from there: --hostname=" + p.hostname,
			"take --hostname from its arguments, or set it to $(NODE_NAME)"},
		row{n.silent, Unknown, p.Object, "its state is not known: the node is unreachable", expected},
		row{!n.ready, Warning, p.Object, "its state is that of the last contact: the node is not ready", expected},
		row{!p.ready, Failure, p.Object, "it is not ready: " + p.why, p.remedy(p.why)})
}

// noneOfSystem is that a node has no pod of a program, and that others than those of kube-system could not be read.
func (c *Cluster) noneOfSystem(n *node, program Program) row {
	return row{len(n.podsOf(program)) == 0 && !c.knows(podElsewhere), Unknown, n.Object, fmt.Sprintf("no %s of %s "+
		"runs there, and pods of other namespaces could not be read", program, system),
		"ask again as somebody who may read them"}
}

// remedy returns what to do about a pod, or those of a workload, that are not ready.
func (p *part) remedy(why string) string {
	if strings.Contains(why, "ImagePull") || strings.Contains(why, "ErrImage") {
		return "push the image " + p.image + ", or import it on the node (docs/install.md, Images)"
	}
	return fmt.Sprintf("kubectl -n %[1]s describe %[2]s/%[3]s; kubectl -n %[1]s logs %[2]s/%[3]s", p.Namespace,
		strings.ToLower(p.Kind), p.Name)
}

// kubeProxies checks the kube-proxies of an edge node, which should have one, and the servers that they ask.
func (r *Report) kubeProxies(c *Cluster, n *node) {
	wrapper := n.pod(wrapperProgram)
	for _, p := range n.podsOf(kubeProxyProgram) {
		config := p.proxy
		past := config.serverErr == nil && !leadsToWrapper(config.server, wrapper.port)
		// kubeadm's own waits for the wrapper: see manifests/kubeadm.
		waits := past && n.edge == v1.EdgeNodePods && c.ownerOf(p).waitsForWrapper &&
			n.labels[v1.LabelKubeProxy] != v1.KubeProxyEdge
		r.first(gridview.CheckKubeProxy, n.Name,
			row{config.serverErr != nil, Unknown, p.Object,
				fmt.Sprintf("the server that it asks is not known: %v", config.serverErr), wrapper.onNode()},
			row{waits && !wrapper.ready, Failure, p.Object, config.asks() + " until the node's wrapper is ready: " +
				"Services reach every site from there", "repair the wrapper; kube-proxy then moves by itself"},
			row{waits, Failure, p.Object, config.asks() + ", although the wrapper is ready: the controller has not " +
				"moved kube-proxy, and Services reach every site from there",
				fmt.Sprintf("kubectl label node %s %s=%s; kubectl -n kube-system logs deployment/%s says why the "+
					"controller does not", n.Name, v1.LabelKubeProxy, v1.KubeProxyEdge, controllerProgram)},
			row{past, Failure, p.Object, config.asks() + ", past the wrapper: Services reach every site from there",
				fmt.Sprintf("give it the server %s and restart it; docs/other-clusters.md says how", wrapper.url())},
			row{wrapper.otherScheme(config.server) != "", Failure, p.Object, config.asks() +
				wrapper.otherScheme(config.server) + ": it never gets an answer, and its rules do not change",
				"give its server the wrapper's scheme, or change the wrapper's --insecure, and restart it; " +
					"docs/other-clusters.md says how"},
			row{!p.started.IsZero() && config.changed.After(p.started), Warning, p.Object, "its configuration was " +
				"changed after it started, and it reads the server only once",
				fmt.Sprintf("kubectl -n %s delete pod %s", p.Namespace, p.Name)})
		r.all(gridview.CheckKubeProxy, n.Name, row{!p.ready && n.ready, Failure, p.Object, fmt.Sprintf(
			"it is not ready, and the node's rules are frozen%s: %s", since(p.unreadySince), p.why), p.remedy(p.why)})
	}
}

// ownerOf returns the workload of a pod, or an empty one.
func (c *Cluster) ownerOf(p *pod) *workload {
	for _, w := range c.running(p.program) {
		if w.Object == p.owner {
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

// noProxyPod checks an edge node without a pod of kube-proxy.
func (r *Report) noProxyPod(c *Cluster, n *node) {
	wrapper, inProcess := n.pod(wrapperProgram), "its kube-proxy, a part of "+n.distribution+", "
	master, given := n.master()
	asks := "has no --master: it asks the API server"
	if given {
		asks = "asks " + master + ", past the wrapper"
	}
	frozen := n.labelled // the newest that is known of when the last kube-proxy went
	for _, p := range c.pods {
		if p.program == kubeProxyProgram && p.waitsFor == n.Name && p.created.After(frozen) {
			frozen = p.created
		}
	}
	_, kubeconfig := flagOf(n.proxyArgs, "kubeconfig", "")
	_, config := flagOf(n.proxyArgs, "config", "")
	repair := "see why its DaemonSet has no pod there: kubectl -n kube-system get daemonsets -o wide"
	if len(c.installed(wrapperProgram)) == 0 {
		repair = unlabelAll
	}
	unknown := !n.proxyDisabled && n.distribution == "" && !c.hasPod(kubeProxyProgram) &&
		len(c.running(kubeProxyProgram)) == 0
	r.first(gridview.CheckKubeProxy, n.Name,
		row{n.edge == v1.EdgeNodeStatic, Unknown, n.Object, "the node starts kube-proxy itself, and the API server " +
			"does not show whom it asks", wrapper.onNode()},
		row{unknown || !c.knows(kindDaemonSet), Unknown, n.Object, "no pod of this cluster runs kube-proxy; whom one " +
			"asks that is started outside of Kubernetes is not known here", wrapper.onNode()},
		row{n.proxyDisabled, Failure, n.Object, "its agent runs with --disable-kube-proxy, and kube-proxy has no " +
			"pod there: nothing asks the wrapper", "run kube-proxy there, or remove the label " + v1.LabelEdgeNode},
		row{n.distribution == k0sMade, Unknown, n.Object,
			"no pod of kube-proxy is there, and how k0s starts it is not known here", wrapper.onNode()},
		c.noneOfSystem(n, kubeProxyProgram),
		row{!ownProxy[n.distribution], Failure, n.Object, "no kube-proxy runs there: its rules are frozen" +
			since(frozen) + ", or something else makes them", repair},
		row{!n.tellsArgs || !given && (kubeconfig || config), Unknown, n.Object, "kube-proxy is part of " +
			n.distribution + "'s own process there, and only a file on the node says which server it asks",
			wrapper.onNode()},
		row{!leadsToWrapper(master, wrapper.port), Failure, n.Object, inProcess + asks + ", and Services reach every " +
			"site from there", fmt.Sprintf(`put kube-proxy-arg: ["master=%s"] into its config.yaml and restart %s`,
			wrapper.url(), n.distribution)},
		row{wrapper.otherScheme(master) != "", Failure, n.Object, inProcess + "asks " + master +
			wrapper.otherScheme(master) + ": its rules stay as they are",
			"give master= in the node's config.yaml the wrapper's scheme and restart " + n.distribution})
}

func podNames(pods []*pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// aloneOld is the greatest age of a report of a node's lite-apiserver, which reports every 10 minutes.
const aloneOld = 30 * time.Minute

// checkAlone checks which nodes would start their pods without kube-apiserver. It ignores nodes without lite-apiserver.
func (r *Report) checkAlone(c *Cluster) {
	const check = "StartsAlone"
	with := 0
	for _, n := range c.nodes {
		if n.alone == nil {
			continue
		}
		with++
		said := c.Now.Sub(n.alone.LastHeartbeatTime.Time)
		r.first(check, n.Name,
			row{n.ready && said > aloneOld, Warning, n.Object, fmt.Sprintf("its lite-apiserver has said nothing for "+
				"%s, so whether its pods would start without kube-apiserver is not known", said.Round(time.Minute)),
				"on the node: systemctl status lite-apiserver; if it was removed: kubectl edit node " + n.Name +
					" --subresource=status, and remove the condition " + v1.NodeStartsAlone},
			row{n.alone.Status != corev1.ConditionTrue, Warning, n.Object, n.alone.Message,
				"on the node: lite-apiserver explain"})
	}
	r.well(check, with > 0, Object{Kind: kindNode}, "each of %s with lite-apiserver would start its pods without "+
		"kube-apiserver", enumerate.Count(with, "node"))
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
		sites.GridKeys = append(sites.GridKeys, g.key) // "", which no label has, for a ServiceGrid
	}
	for _, s := range c.services {
		switch {
		case !s.byKubeProxy():
		case s.about.Namespace == system && slices.Contains(c.dns, s.about.Name):
			sites.Resolving = append(sites.Resolving, s.keys)
		default:
			sites.Governed = append(sites.Governed, s.keys)
		}
	}
	found := sites.Findings()
	for i := range found {
		j := slices.IndexFunc(c.nodes, func(n *node) bool { return n.Name == found[i].Node && !n.isEdge() })
		if j >= 0 && found[i].Check == gridview.CheckSite {
			found[i].Action += c.alsoNeeds(c.nodes[j])
		}
	}
	r.Findings = append(r.Findings, found...)
	well, about := len(found) == 0 && len(sites.Governed) > 0 && !sites.GridsUnread, Object{Kind: kindNode}
	r.first(gridview.CheckSite, "",
		row{well && c.coreDNS != nil, OK, about, "no node is half in a site, and each site has a CoreDNS", ""},
		row{well, OK, about, "no node is half in a site", ""})
}

// alsoNeeds returns what a node needs besides the label of edge nodes, in words after that command: its data plane may
// not ask the wrapper there.
func (c *Cluster) alsoNeeds(n *node) string {
	actions := []string{""}
	edge := *n
	edge.edge, edge.labels = v1.EdgeNodePods, maps.Clone(n.labels)
	edge.labels[v1.LabelEdgeNode] = v1.EdgeNodePods
	if i := slices.IndexFunc(c.nodes, (*node).isEdge); i >= 0 { // its wrapper will be as theirs
		edge.pods = c.nodes[i].podsOf(wrapperProgram)
	}
	for _, w := range c.workloads {
		if !w.isDataPlaneOn(&edge) {
			continue
		}
		rows := c.replaces(w, &edge, n.Object)
		if i := slices.IndexFunc(rows, func(row row) bool { return row.holds }); i >= 0 {
			actions = append(actions, rows[i].action)
		}
	}
	return strings.Join(actions, "; then ")
}

// resolvers returns the Services that the nodes ask for names. Pods ask the one of CoreDNS, or NodeLocal DNSCache on
// their node, which asks another one: its own address may be that of the first.
func (c *Cluster) resolvers() []gridview.Resolver {
	nodes, dns := map[string]map[string]bool{}, kubeDNS
	if len(c.dns) > 0 && !slices.Contains(c.dns, kubeDNS) {
		dns = slices.Min(c.dns)
	}
	for _, n := range c.nodes {
		name := cmp.Or(n.pod(nodeLocalProgram).upstream, dns)
		if nodes[name] == nil {
			nodes[name] = map[string]bool{}
		}
		nodes[name][n.Name] = true
	}
	resolvers := make([]gridview.Resolver, 0, len(nodes))
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		resolver := gridview.Resolver{Name: name, Nodes: nodes[name]}
		for _, s := range c.services {
			if s.about == named(kindService, system, name) && s.err == nil {
				resolver.Keys = s.keys
			}
		}
		resolvers = append(resolvers, resolver)
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
