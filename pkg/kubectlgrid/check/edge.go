package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// onNode is a command for the node itself, for what the API server does not show.
const onNode = "on the node: curl -s localhost:51006/metrics | grep application_grid_wrapper_watchers must print 1 " +
	"for services and endpointslices"

// checkEdgeNodes goes through the nodes: what each has, and what it should have.
func (r *report) checkEdgeNodes(c *Cluster) {
	if !c.knows(kindNode, kindPod) {
		return
	}
	wrappers, proxies, daemons := c.byNode(wrapperProgram), c.byNode(kubeProxyProgram), c.byNode(daemonProgram)
	// Who needs no stateful names leaves the daemon out.
	anyProxy := len(proxies) > 0 || len(c.running(kubeProxyProgram)) > 0
	names := len(daemons) > 0 || len(c.installed(daemonProgram)) > 0 || c.gridCounts["StatefulSetGrid"] > 0
	edges, pods := 0, 0
	for i := range c.nodes {
		n := &c.nodes[i]
		switch {
		case n.edge == "" || n.edge == "false":
			r.checkOtherNode(n, wrappers[n.name], proxies[n.name])
			continue
		case !n.isEdge():
			r.add(Warning, "EdgeLabel", n.about(),
				fmt.Sprintf("the label %s=%s means nothing", v1.LabelEdgeNode, n.edge),
				fmt.Sprintf("set it to %s, to %s if the wrapper is a unit of systemd there, to %s if wrapper and "+
					"kube-proxy are both the node's own, or remove it",
					v1.EdgeNodePods, v1.EdgeNodeSystemd, v1.EdgeNodeStatic))
			continue
		}
		edges++
		port := int32(defaultPort)
		if len(wrappers[n.name]) > 0 {
			port = wrappers[n.name][0].port
		}
		r.checkWrapper(n, wrappers[n.name])
		switch {
		case len(proxies[n.name]) > 0:
			r.checkKubeProxy(n, proxies[n.name], port)
		case len(c.running(ciliumProgram)) > 0: // checkCilium looks whom that asks
		case n.edge == v1.EdgeNodeStatic:
			r.add(Unknown, "KubeProxy", n.about(),
				"the node starts kube-proxy itself, and the API server does not show "+
					"whom it asks", onNode)
		case anyProxy || n.distribution != "" || n.proxyDisabled:
			r.inProcess(n, port)
		default:
			r.add(Unknown, "KubeProxy", n.about(),
				"no pod of this cluster runs kube-proxy; whom one asks that is started "+
					"outside of Kubernetes is not known here", onNode)
		}
		if n.edge == v1.EdgeNodePods {
			pods++
			if names {
				r.checkAgent("Daemon", n, daemonProgram, daemons[n.name])
			}
		}
	}
	about := Object{Kind: kindNode}
	if edges == 0 {
		r.add(Warning, "EdgeLabel", about, "no node has the label "+v1.LabelEdgeNode+", so nothing keeps Services to "+
			"their site",
			"label the nodes of the sites: kubectl label node NODE "+v1.LabelEdgeNode+"="+v1.EdgeNodePods)
		return
	}
	r.ok("EdgeLabel", about, "%d of %s are edge nodes", edges, count(len(c.nodes), "node"))
	if r.clean("Wrapper") {
		r.ok("Wrapper", about, "the wrapper is ready on each of %s", count(edges, "edge node"))
	}
	if r.clean("KubeProxy") {
		r.ok("KubeProxy", about, "one kube-proxy is on each of %s, and asks the wrapper", count(edges, "edge node"))
	}
	switch {
	case !names:
		r.ok("Daemon", about, "there are no StatefulSetGrids, and no "+string(daemonProgram)+" is needed")
	case pods > 0 && r.clean("Daemon"):
		r.ok("Daemon", about, "%s is ready on each of %s", daemonProgram, count(pods, "edge node"))
	}
}

// checkOtherNode looks at a node that did not ask for the wrapper.
func (r *report) checkOtherNode(n *node, wrappers, proxies []*pod) {
	for _, p := range proxies {
		if len(wrappers) == 0 && p.proxy.serverErr == nil && leadsToWrapper(p.proxy.server, defaultPort) {
			r.add(Failure, "KubeProxy", p.about(),
				fmt.Sprintf("it asks %s (%s) on node %s, where no wrapper is: its rules stay as they are",
					p.proxy.server,
					p.proxy.source, n.name),
				fmt.Sprintf("label the node %s=%s, or give this kube-proxy the API server's address",
					v1.LabelEdgeNode, v1.EdgeNodePods))
		}
	}
	if len(proxies) > 1 {
		r.twoProxies(n, proxies)
	}
}

// checkWrapper looks for the one wrapper of an edge node.
func (r *report) checkWrapper(n *node, wrappers []*pod) {
	const check = "Wrapper"
	switch {
	case n.edge == v1.EdgeNodePods, n.edge == v1.EdgeNodeStatic && len(wrappers) > 0:
		r.checkAgent(check, n, wrapperProgram, wrappers)
		return
	case n.edge == v1.EdgeNodeStatic:
		r.add(Unknown, check, n.about(),
			"the node starts the wrapper itself, and the API server does not show it: neither "+
				"whether it runs nor whether it is ready", "on the node: curl localhost:51006/readyz")
		return
	case len(wrappers) > 0:
		r.add(Failure, check, wrappers[0].about(),
			fmt.Sprintf("it runs on node %s, which says that its wrapper is a unit of systemd: both want port %d",
				n.name,
				wrappers[0].port),
			fmt.Sprintf("label the node %s=%s and stop the unit, or keep this pod off the node",
				v1.LabelEdgeNode, v1.EdgeNodePods))
		return
	}
	r.add(Unknown, check, n.about(), "the wrapper is a unit of systemd there, of which the API server shows nothing: "+
		"neither whether it runs nor whether it is ready",
		"on the node: systemctl status "+string(wrapperProgram)+"; curl localhost:51006/readyz")
}

// checkAgent looks for the one pod of a program that an edge node has to have.
func (r *report) checkAgent(check string, n *node, program Program, pods []*pod) {
	switch {
	case len(pods) == 0:
		r.add(Failure, check, n.about(), fmt.Sprintf("no %s runs there", program),
			fmt.Sprintf("kubectl -n kube-system describe daemonset %s; its pods of that node, if there are any: "+
				"kubectl get pods -A -o wide --field-selector spec.nodeName=%s", program, n.name))
	case len(pods) > 1:
		r.add(Failure, check, n.about(), fmt.Sprintf("%d pods of %s run there: %s; only one gets the port", len(pods),
			program, podNames(pods)),
			"remove the DaemonSet that is not application-grid's; docs/migrate.md says how to take over SuperEdge's")
	case !n.ready:
		r.add(Warning, check, pods[0].about(),
			fmt.Sprintf("node %s is not ready, so the pod's state is what it was when "+
				"the node was last heard of", n.name),
			"if the site has no link this is as it should be; otherwise see why the node is not ready")
	case !pods[0].ready:
		r.add(Failure, check, pods[0].about(), fmt.Sprintf("it is not ready on node %s: %s", n.name, pods[0].why),
			remedy(pods[0]))
	}
}

// remedy is what to do about a pod that is not ready.
func remedy(p *pod) string {
	if strings.Contains(p.why, "ImagePull") || strings.Contains(p.why, "ErrImage") {
		return "make the image " + p.image + " available to the node: push it to the registry, or import it on the " +
			"node (docs/install.md, Images)"
	}
	return fmt.Sprintf("kubectl -n %s describe pod %s; kubectl -n %s logs %s", p.namespace, p.name, p.namespace, p.name)
}

// checkKubeProxy looks at the kube-proxies of an edge node, of which there should be one, and whom they ask.
func (r *report) checkKubeProxy(n *node, proxies []*pod, port int32) {
	const check = "KubeProxy"
	if len(proxies) > 1 {
		r.twoProxies(n, proxies)
	}
	for _, p := range proxies {
		config := p.proxy
		switch {
		case config.serverErr != nil:
			r.add(Unknown, check, p.about(),
				fmt.Sprintf("whom it asks on node %s is not known: %v", n.name, config.serverErr),
				onNode)
		case !leadsToWrapper(config.server, port):
			r.add(Failure, check, p.about(),
				fmt.Sprintf("it asks %s (%s) on node %s, past the wrapper: Services reach every site from there",
					config.server,
					config.source, n.name),
				fmt.Sprintf("give it the server http://localhost:%d and restart it; docs/install.md says how", port))
		case !p.started.IsZero() && config.changed.After(p.started):
			r.add(Warning, check, p.about(),
				fmt.Sprintf(
					"its configuration was changed after it started on node %s, and it reads the server only once",
					n.name,
				),
				fmt.Sprintf("kubectl -n %s delete pod %s", p.namespace, p.name))
		}
		if !p.ready && n.ready {
			r.add(Failure, check, p.about(), fmt.Sprintf("it is not ready on node %s: %s", n.name, p.why), remedy(p))
		}
	}
}

func (r *report) twoProxies(n *node, proxies []*pod) {
	r.add(Failure, "KubeProxy", n.about(),
		fmt.Sprintf("%d kube-proxies run there, and overwrite each other's rules: %s",
			len(proxies), podNames(proxies)),
		"keep all but one off the node (docs/install.md; on kubeadm: manifests/kubeadm/kube-proxy-away.yaml), then "+
			"delete the pod of the one that stays: it writes only what changes, and would find out of the other's "+
			"rules within an hour")
}

// inProcess looks at a node without a pod of kube-proxy.
func (r *report) inProcess(n *node, port int32) {
	const check = "KubeProxy"
	master, given := flagOf(n.proxyArgs, "master")
	switch {
	case n.proxyDisabled:
		r.add(Failure, check, n.about(),
			"its agent runs with --disable-kube-proxy, and there is no pod of kube-proxy: "+
				"nothing asks the wrapper",
			"run kube-proxy there, or remove the label "+v1.LabelEdgeNode)
	case n.distribution == rke2Made, !ownProxy[n.distribution]:
		if n.distribution == k0sMade {
			r.add(Unknown, check, n.about(), "no pod of kube-proxy is there, and how k0s starts it is not known here",
				onNode)
			return
		}
		r.add(Failure, check, n.about(),
			"no kube-proxy runs there: its rules stay as they are, or something else makes them",
			"see why its DaemonSet has no pod there: kubectl -n kube-system get daemonsets -o wide")
	case !n.tellsArgs:
		r.add(Unknown, check, n.about(),
			"kube-proxy is part of "+n.distribution+"'s own process there, and whom it asks "+
				"is in a file on the node", onNode)
	case !given:
		r.add(Failure, check, n.about(),
			"its kube-proxy, a part of "+n.distribution+", has no --master: it asks the API "+
				"server, and Services reach every site from there",
			fmt.Sprintf(`put kube-proxy-arg: ["master=http://localhost:%d"] into the node's config.yaml and restart %s`,
				port,
				n.distribution))
	case !leadsToWrapper(master, port):
		r.add(Failure, check, n.about(), "its kube-proxy, a part of "+n.distribution+", asks "+master+", past the "+
			"wrapper: Services reach every site from there",
			fmt.Sprintf(`put kube-proxy-arg: ["master=http://localhost:%d"] into the node's config.yaml and restart %s`,
				port,
				n.distribution))
	}
}

func podNames(pods []*pod) string {
	names := make([]string, 0, len(pods))
	for _, p := range pods {
		names = append(names, p.namespace+"/"+p.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// checkKubeadm looks at what keeps kubeadm's kube-proxy off edge nodes.
func (r *report) checkKubeadm(c *Cluster) {
	const check = "KubeProxyPlacement"
	if distribution, _ := c.distribution(); distribution != kubeadmMade || !c.knows(kindDaemonSet) {
		return
	}
	for i := range c.pods {
		if p := &c.pods[i]; p.program == kubeProxyProgram && p.node == "" && p.waitsFor != "" {
			r.add(Warning, check, p.about(),
				"it waits for its turn on node "+p.waitsFor+", which has another kube-proxy, "+
					"and would take its place there",
				"kubectl -n kube-system patch daemonset kube-proxy --patch-file manifests/kubeadm/kube-proxy-away.yaml")
		}
	}
	var edge, everywhere *workload
	for _, w := range c.running(kubeProxyProgram) {
		switch {
		case w.kind != kindDaemonSet:
		case w.namespace != system && w.proxy.serverErr == nil && leadsToWrapper(w.proxy.server, defaultPort):
			return // edgeadm's, which goes by another label
		case w.namespace != system:
		case w.selectsEdge:
			edge = w
		case w.proxy.serverErr == nil && leadsToWrapper(w.proxy.server, defaultPort):
			everywhere = w
		case !w.avoidsEdge:
			r.add(Failure, check, w.about(), "its node affinity does not keep it off edge nodes",
				"kubectl -n kube-system patch daemonset "+w.name+" --patch-file "+
					"manifests/kubeadm/kube-proxy-away.yaml; if it "+
					"has a node affinity of its own, add the expression of manifests/kubeadm/kube-proxy-policy.yaml "+
					"to it")
		}
	}
	if edge == nil && everywhere != nil {
		r.add(Warning, check, everywhere.about(),
			"it asks the wrapper on every node, which the next upgrade by kubeadm "+
				"undoes, as it writes this DaemonSet anew",
			"install manifests/kubeadm, which has a kube-proxy of its own for edge nodes (docs/install.md)")
		return
	}
	server, known := minor(c.version)
	policies := Object{Kind: kindPolicy, Name: policyName}
	switch {
	case !c.knows(kindPolicy, kindPolicy+"Binding"):
	case c.policy:
		r.ok(check, policies, "it keeps kubeadm's kube-proxy off edge nodes, also after an upgrade")
	case known && server < setup.MutatingPolicy:
		r.add(Warning, check, policies, fmt.Sprintf("an API server of %s has no such policies: an upgrade by kubeadm "+
			"takes away what keeps its kube-proxy off edge nodes", c.version),
			"repeat after each upgrade, before anything else: kubectl -n kube-system patch daemonset kube-proxy "+
				"--patch-file manifests/kubeadm/kube-proxy-away.yaml")
	case known:
		r.add(Failure, check, policies,
			"the policy or its binding is not there: the next upgrade by kubeadm takes away "+
				"what keeps its kube-proxy off edge nodes",
			"kubectl apply -f manifests/kubeadm/kube-proxy-policy.yaml")
	}
	if edge == nil {
		r.add(Failure, check, Object{kindDaemonSet, system, "kube-proxy-edge"}, "there is no kube-proxy for edge nodes",
			"apply manifests/kubeadm (docs/install.md)")
	}
	if r.clean(check) {
		r.ok(check, edge.about(), "edge nodes have it, and no other kube-proxy")
	}
}

// checkModes looks for kube-proxies in a mode that was never tested.
func (r *report) checkModes(c *Cluster) {
	for _, w := range c.running(kubeProxyProgram) {
		if w.proxy.mode == "ipvs" {
			r.ipvs(w.about())
		}
	}
}

// checkSkew looks for programs that differ from each other in their versions.
func (r *report) checkSkew(c *Cluster) {
	const check = "ProgramVersions"
	if c.knows(kindPod) {
		for _, program := range []Program{wrapperProgram, daemonProgram} {
			images, on := map[string]int{}, c.byNode(program)
			for i := range c.nodes {
				if n := &c.nodes[i]; n.isEdge() { // others may have SuperEdge's
					for _, p := range on[n.name] {
						images[p.image]++
					}
				}
			}
			if len(images) > 1 {
				about := Object{Kind: kindPod}
				if sets := c.installed(program); len(sets) == 1 {
					about = sets[0].about()
				}
				r.add(Warning, check, about,
					fmt.Sprintf("nodes run different versions of %s: %s", program, counted(images)),
					"wait until the roll-out ends: kubectl -n kube-system rollout status daemonset "+string(program)+
						"; pods on nodes without a link are replaced when they are back")
			}
		}
	}
	tags := map[string][]string{}
	for _, program := range []Program{wrapperProgram, daemonProgram, controllerProgram} {
		for _, w := range c.installed(program) {
			tags[tagOf(w.image)] = append(tags[tagOf(w.image)], w.name)
		}
	}
	if len(tags) > 1 {
		parts := make([]string, 0, len(tags))
		for _, tag := range slices.Sorted(maps.Keys(tags)) {
			parts = append(parts, fmt.Sprintf("%s has %q", strings.Join(tags[tag], ", "), tag))
		}
		r.add(Warning, check, Object{Kind: kindDaemonSet, Namespace: system},
			"the programs are of different versions: "+strings.Join(parts, "; "),
			"give all of them the same tag in your kustomization, and apply it")
	}
	r.checkProxySkew(c, check)
	if r.clean(check) && c.knows(kindPod, kindDaemonSet, kindDeployment) {
		r.ok(check, Object{Kind: kindDaemonSet, Namespace: system}, "no versions differ")
	}
}

// checkProxySkew compares the kube-proxies' versions with each other and with the API server's.
func (r *report) checkProxySkew(c *Cluster, check string) {
	server, known := minor(c.version)
	tags := map[string][]string{}
	for _, w := range c.running(kubeProxyProgram) {
		tag := tagOf(w.image)
		tags[tag] = append(tags[tag], w.name)
		if version, ok := minor(tag); ok && known && (version > server || version < server-oldestSkew) {
			r.add(Warning, check, w.about(),
				fmt.Sprintf("kube-proxy %s does not go with an API server of %s: it may be up "+
					"to %d minor versions older, and not newer", tag, c.version, oldestSkew),
				"give it the tag of the API server's version")
		}
	}
	if len(tags) > 1 {
		parts := make([]string, 0, len(tags))
		for _, tag := range slices.Sorted(maps.Keys(tags)) {
			parts = append(parts, strings.Join(tags[tag], ", ")+" is "+tag)
		}
		r.add(Warning, check, Object{Kind: kindDaemonSet, Namespace: system},
			"the kube-proxies are of different versions: "+strings.Join(parts, "; "),
			"after an upgrade by kubeadm give kube-proxy-edge the new tag in your kustomization, and apply it")
	}
}

// counted is how often each value is there.
func counted(values map[string]int) string {
	parts := make([]string, 0, len(values))
	for _, value := range slices.Sorted(maps.Keys(values)) {
		parts = append(parts, fmt.Sprintf("%s on %s", value, count(values[value], "node")))
	}
	return strings.Join(parts, ", ")
}
