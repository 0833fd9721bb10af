package check

import (
	"fmt"
	"slices"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// kubeProxySets are the DaemonSets of kube-proxy on a kubeadm cluster. That of edgeadm, which uses another label, is
// ignored.
type kubeProxySets struct {
	// edge is the one of edge nodes. everywhere is one that asks the wrapper on every node. kubeadms are the others.
	edge, everywhere *workload
	kubeadms         []*workload
	edgeadm          bool
}

func (c *Cluster) kubeProxySets() kubeProxySets {
	var sets kubeProxySets
	for _, w := range c.running(kubeProxyProgram) {
		leads := c.leadsToWrappers(w.proxy.server)
		switch {
		case w.Kind != kindDaemonSet:
		case w.Namespace != system:
			sets.edgeadm = sets.edgeadm || leads
		case w.selectsEdge:
			sets.edge = w
		case leads:
			sets.everywhere = w
		default:
			sets.kubeadms = append(sets.kubeadms, w)
		}
	}
	return sets
}

// checkKubeadm checks the policies that keep kubeadm's kube-proxy off edge nodes.
func (r *Report) checkKubeadm(c *Cluster) {
	const check = "KubeProxyPlacement"
	sets := c.kubeProxySets()
	name, _ := c.distribution()
	if name != setup.Kubeadm || !c.knows(kindDaemonSet) || sets.edgeadm || c.removed() || c.ciliumAlone() {
		return
	}
	for _, p := range c.pods {
		// A pod of kube-proxy-edge waits where kubeadm's is about to end.
		r.all(check, p.waitsFor, row{p.program == kubeProxyProgram && p.node == "" && p.waitsFor != "" &&
			!c.ownerOf(p).selectsEdge, Warning, p.Object,
			"it waits for its turn beside another kube-proxy, whose place it would take", awayPatch})
	}
	for _, w := range sets.kubeadms {
		r.first(check, "",
			row{!w.avoidsEdge, Failure, w.Object, "its node affinity does not keep it off edge nodes", awayPatch +
				"; to a node affinity of its own add the terms of manifests/kubeadm/kube-proxy-policy.yaml"},
			row{!w.waitsForWrapper, Warning, w.Object, "it leaves a node as soon as that is labelled, before the " +
				"wrapper there is ready: until then the node's rules are frozen", awayPatch})
	}
	if sets.edge == nil && sets.everywhere != nil {
		r.add(Warning, check, sets.everywhere.Object, "it asks the wrapper on every node, which the next upgrade by "+
			"kubeadm undoes, as it writes this DaemonSet again",
			"install manifests/kubeadm, which has a kube-proxy of its own for edge nodes (docs/kubeadm.md)")
		return
	}
	server, known := minor(c.Server.Version)
	policies, old := Object{Kind: kindPolicy, Name: policyName}, known && server < setup.MutatingPolicy
	policiesKnown := c.knows(kindPolicy, kindPolicy+"Binding")
	r.first(check, "",
		row{policiesKnown && c.policy, OK, policies,
			"it keeps kubeadm's kube-proxy off edge nodes, also after an upgrade", ""},
		row{policiesKnown && old, Warning, policies, fmt.Sprintf("an API server of %s has no such policies: an "+
			"upgrade by kubeadm takes away what keeps its kube-proxy off edge nodes", c.Server.Version),
			"repeat after each upgrade, before anything else: " + awayPatch},
		row{policiesKnown && known, Failure, policies, "the policy or its binding is missing: the next upgrade by " +
			"kubeadm takes away what keeps its kube-proxy off edge nodes",
			"kubectl apply -f manifests/kubeadm/kube-proxy-policy.yaml"})
	r.all(check, "", row{sets.edge == nil, Failure, named(kindDaemonSet, system, "kube-proxy-edge"),
		"edge nodes have no kube-proxy of their own", "apply manifests/kubeadm (docs/kubeadm.md)"})
	if r.clean(check) {
		r.ok(check, sets.edge.Object, "edge nodes have it once their wrapper is ready, and no other kube-proxy")
	}
}

// removed reports whether nothing is installed on nodes, and none is labelled.
func (c *Cluster) removed() bool {
	return c.knows(kindNode, kindDaemonSet) && c.edges() == 0 && len(c.installed(wrapperProgram)) == 0 &&
		c.kubeProxySets().edge == nil
}

// edges returns the number of edge nodes.
func (c *Cluster) edges() int {
	edges := 0
	for _, n := range c.nodes {
		if n.isEdge() {
			edges++
		}
	}
	return edges
}

// checkRemoval reports a removal that was begun in the wrong order, or that has left something behind.
func (r *Report) checkRemoval(c *Cluster) {
	const check = "Removal"
	if !c.knows(kindNode, kindDaemonSet, kindPod) {
		return
	}
	inPods := slices.ContainsFunc(c.nodes, func(n *node) bool { return n.edge == v1.EdgeNodePods })
	without := len(c.installed(wrapperProgram)) == 0 && !c.hasPod(wrapperProgram)
	r.all(check, "", row{inPods && without, Failure, Object{Kind: kindNode}, fmt.Sprintf("the label %s is on "+
		"%s, and no wrapper is installed: what was installed is removed, and the rules of these nodes are frozen",
		v1.LabelEdgeNode, enumerate.Count(c.edges(), "node")), unlabelAll + ", or install it again"})
	if !c.removed() {
		return
	}
	for _, w := range c.kubeProxySets().kubeadms {
		r.all(check, "", row{w.avoidsEdge || w.onDelete && c.policy, Warning, w.Object, "it still has the node " +
			"affinity or the update strategy of an installation, and nothing is installed", backPatch})
	}
	r.all(check, "", row{c.policy && c.knows(kindPolicy), Warning, Object{Kind: kindPolicy, Name: policyName},
		"it is left of an installation, and changes every write of kubeadm's kube-proxy",
		"kubectl delete -f manifests/kubeadm/kube-proxy-policy.yaml; then " + backPatch})
}

// checkHub compares the installed hub with the flags of the wrappers.
func (r *Report) checkHub(c *Cluster) {
	const check = gridview.CheckHub
	if !c.knows(kindDeployment, kindDaemonSet, kindAPIService) {
		return
	}
	hubs := c.running(hubProgram)
	ready := slices.ContainsFunc(hubs, func(hub *workload) bool { return hub.ready > 0 })
	about := append(hubs, &workload{part: part{
		Object: named(kindDeployment, system, string(hubProgram))}})[0].Object
	const alone = "a wrapper that restarts serves nothing new"
	wrappers := c.installed(wrapperProgram)
	asks := slices.ContainsFunc(wrappers, func(w *workload) bool { return w.hub })
	r.first(check, "",
		row{c.hubAPI && len(hubs) == 0, Failure, Object{Kind: kindAPIService, Name: hubAPIName}, "it points to a hub " +
			"that does not exist: deletions of namespaces and lists of all resources fail",
			"kubectl delete apiservice " + hubAPIName},
		row{asks && len(hubs) == 0, Failure, about, "the wrappers ask a hub (--hub), and none is installed: " + alone,
			"install manifests/application-grid-hub, or take --hub from the wrapper's arguments (docs/hub.md)"},
		row{asks && !ready, Failure, about, "the wrappers ask it, and none of its pods is available: " + alone,
			fmt.Sprintf("kubectl -n %s describe deployment %s", about.Namespace, about.Name)},
		row{asks && !c.hubAPI, Failure, Object{Kind: kindAPIService, Name: hubAPIName}, "it does not exist, so no " +
			"wrapper reaches the hub: " + alone, "kubectl apply -k manifests/application-grid-hub"},
		row{asks && c.hubAway != "", Failure, Object{Kind: kindAPIService, Name: hubAPIName}, fmt.Sprintf("it is not "+
			"available (%s), so no wrapper reaches the hub: %s", c.hubAway, alone), "kubectl describe apiservice " +
			hubAPIName},
		row{len(hubs) > 0 && !asks && len(wrappers) > 0, Warning, about, "the hub is installed, and no wrapper asks it",
			"give the wrapper's DaemonSet --hub, or remove the hub (docs/hub.md)"},
		row{asks, OK, about, "the wrappers ask it", ""})
}
