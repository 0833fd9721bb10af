package check

import (
	"fmt"
	"slices"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// kubeProxySets returns the DaemonSets of kube-proxy in kube-system: the one of edge nodes, and the others.
func (c *Cluster) kubeProxySets() (edge *workload, others []*workload) {
	for _, w := range c.running(kubeProxyProgram) {
		switch {
		case w.Kind != kindDaemonSet || w.Namespace != system:
		case w.selectsEdge:
			edge = w
		default:
			others = append(others, w)
		}
	}
	return edge, others
}

// checkKubeadm checks the policies that keep kubeadm's kube-proxy off edge nodes.
func (r *Report) checkKubeadm(c *Cluster) {
	const check = "KubeProxyPlacement"
	edge, others := c.kubeProxySets()
	name, _ := c.distribution()
	edgeadm := slices.ContainsFunc(c.running(kubeProxyProgram), func(w *workload) bool { // uses another label
		return w.Kind == kindDaemonSet && w.Namespace != system && c.leadsToWrappers(w.proxy.server)
	})
	if name != setup.Kubeadm || !c.knows(kindDaemonSet) || edgeadm || c.removed() || c.ciliumAlone() {
		return
	}
	for _, p := range c.pods {
		// A pod of kube-proxy-edge waits where kubeadm's is about to end.
		r.all(check, p.waitsFor, row{p.program == kubeProxyProgram && p.waitsFor != "" &&
			!c.ownerOf(p).selectsEdge, Warning, p.Object,
			"it waits for its turn beside another kube-proxy, whose place it would take", awayPatch})
	}
	everywhere := false
	for _, w := range others {
		leads := c.leadsToWrappers(w.proxy.server)
		everywhere = everywhere || leads && edge == nil
		r.first(check, "",
			row{leads && edge == nil, Warning, w.Object, "it asks the wrapper on every node, which the next upgrade " +
				"by kubeadm undoes, as it writes this DaemonSet again",
				"install manifests/kubeadm, which has a kube-proxy of its own for edge nodes (docs/kubeadm.md)"},
			row{!leads && !w.avoidsEdge, Failure, w.Object, "its node affinity does not keep it off edge nodes",
				awayPatch + "; to an affinity of its own add the terms of manifests/kubeadm/kube-proxy-policy.yaml"},
			row{!leads && !w.waitsForWrapper, Warning, w.Object, "it leaves a node as soon as that is labelled, " +
				"before the wrapper there is ready: until then the node's rules are frozen", awayPatch})
	}
	if everywhere {
		return
	}
	server, known := minor(c.Server.Version)
	policy, read := Object{Kind: kindPolicy, Name: policyName}, c.knows(kindPolicy, kindPolicy+"Binding")
	const undone = ": an upgrade by kubeadm takes away what keeps its kube-proxy off edge nodes"
	r.first(check, "",
		row{read && c.policy, OK, policy, "it keeps kubeadm's kube-proxy off edge nodes, also after an upgrade", ""},
		row{read && known && server < setup.MutatingPolicy, Warning, policy, "an API server of " + c.Server.Version +
			" has no such policies" + undone, "repeat after each upgrade, before anything else: " + awayPatch},
		row{read && known, Failure, policy, "the policy or its binding is missing" + undone,
			"kubectl apply -f manifests/kubeadm/kube-proxy-policy.yaml"})
	r.all(check, "", row{edge == nil, Failure, named(kindDaemonSet, system, "kube-proxy-edge"),
		"edge nodes have no kube-proxy of their own", "apply manifests/kubeadm (docs/kubeadm.md)"})
	if r.clean(check) {
		r.ok(check, edge.Object, "edge nodes have it once their wrapper is ready, and no other kube-proxy")
	}
}

// removed reports whether nothing is installed on nodes, and none is labelled.
func (c *Cluster) removed() bool {
	edge, _ := c.kubeProxySets()
	return c.knows(kindNode, kindDaemonSet) && c.edges() == 0 && len(c.installed(wrapperProgram)) == 0 && edge == nil
}

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
	_, kubeadms := c.kubeProxySets()
	for _, w := range kubeadms {
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
	const alone = "a wrapper that restarts serves nothing new"
	hubs, wrappers := c.running(hubProgram), c.installed(wrapperProgram)
	api, about := Object{Kind: kindAPIService, Name: hubAPIName}, named(kindDeployment, system, string(hubProgram))
	ready := false
	for _, hub := range hubs {
		about, ready = hub.Object, ready || hub.ready > 0
	}
	asks := c.asksHub()
	r.first(check, "",
		row{c.hubAPI && len(hubs) == 0, Failure, api, "it points to a hub that does not exist: deletions of " +
			"namespaces and lists of all resources fail", "kubectl delete apiservice " + hubAPIName},
		row{asks && len(hubs) == 0, Failure, about, "the wrappers ask a hub (--hub), and none is installed: " + alone,
			"install manifests/application-grid-hub, or take --hub from the wrapper's arguments (docs/hub.md)"},
		row{asks && !ready, Failure, about, "the wrappers ask it, and none of its pods is available: " + alone,
			fmt.Sprintf("kubectl -n %s describe deployment %s", about.Namespace, about.Name)},
		row{asks && !c.hubAPI, Failure, api, "it does not exist, so no wrapper reaches the hub: " + alone,
			"kubectl apply -k manifests/application-grid-hub"},
		row{asks && c.hubAway != "", Failure, api, fmt.Sprintf("it is not available (%s), so no wrapper reaches the "+
			"hub: %s", c.hubAway, alone), "kubectl describe apiservice " + hubAPIName},
		row{len(hubs) > 0 && !asks && len(wrappers) > 0, Warning, about, "the hub is installed, and no wrapper asks it",
			"give the wrapper's DaemonSet --hub, or remove the hub (docs/hub.md)"},
		row{asks, OK, about, "the wrappers ask it", ""})
}
