package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// checkReplacements looks for programs that implement Services in place of kube-proxy, on each edge node; without edge
// nodes, anywhere. If they do not ask the wrapper, Services reach every site.
func (r *Report) checkReplacements(c *Cluster) {
	const check = gridview.CheckReplacement
	found, edges := map[Program]bool{}, c.edges()
	// One may have several containers with the same image.
	for _, w := range slices.CompactFunc(slices.Clone(c.workloads), func(a, b *workload) bool {
		return a.Object == b.Object && a.program == b.program
	}) {
		for _, n := range c.nodes {
			if !w.isDataPlaneOn(n) || edges > 0 && !n.isEdge() {
				continue
			}
			if edges > 0 {
				r.first(check, n.Name, c.replaces(w, n, n.Object)...)
			} else if !found[w.program] {
				r.first(check, "", c.replaces(w, &node{}, w.Object)...)
			}
			found[w.program] = true
		}
	}
	about, each := Object{Kind: kindDaemonSet}, " on each of "+enumerate.Count(edges, "edge node")
	r.first(check, "",
		row{!c.knows(kindDaemonSet, kindNode), Unknown, about,
			"whether a program takes kube-proxy's place could not be read", "ask again as somebody who may read them"},
		row{len(found) == 0, OK, about, "neither Cilium nor Calico is there to take kube-proxy's place", ""},
		row{r.clean(check) && found[ciliumProgram], OK, about, "Cilium asks the wrapper" + each, ""},
		row{r.clean(check), OK, about, "Calico leaves Services to kube-proxy", ""})
}

// isDataPlaneOn reports whether a workload may take kube-proxy's place on a node.
func (w *workload) isDataPlaneOn(n *node) bool {
	return w.Kind == kindDaemonSet && slices.Contains(dataPlanes, w.program) && w.runsOn(n)
}

// replaces returns what a data plane does to the Services on an edge node: the first row that holds.
func (c *Cluster) replaces(w *workload, n *node, about Object) []row {
	switch w.program {
	case ciliumProgram:
		return c.ciliumAsks(w, n, about)
	case calicoProgram:
		enabled, where := w.env["FELIX_BPFENABLED"], "FELIX_BPFENABLED" // overrides the objects
		for _, name := range []string{"node." + n.Name, "default"} {
			if value, set := c.felixBPF[name]; set && enabled == "" {
				enabled, where = value, "FelixConfiguration "+name+", bpfEnabled"
			}
		}
		return []row{
			{strings.EqualFold(enabled, "true"), Failure, about, "Calico's eBPF data plane takes kube-proxy's place " +
				"there (" + where + "), and does not ask the wrapper: Services reach every site from there",
				"set bpfEnabled to false and run kube-proxy; application-grid cannot work with it otherwise"},
			{enabled == "" && !c.knows(kindFelix), Unknown, about, "Calico runs there, and its FelixConfiguration " +
				"could not be read: whether it takes kube-proxy's place is not known",
				"look for bpfEnabled in it; it has to be false"},
		}
	default:
	}
	return []row{{true, Unknown, about, string(w.program) + " runs there, and may send pods' connections to " +
		"Services on itself, without asking the wrapper: Services would reach every site from there",
		"see docs/compatibility.md, What programs Services"}}
}

func (r *Report) checkNodeLocal(c *Cluster) {
	const check = "NodeLocalDNS"
	for _, cache := range c.running(nodeLocalProgram) {
		r.all(check, "", row{true, Warning, cache.Object, "NodeLocal DNSCache answers the pods of its node, and " +
			"keeps answers for up to 30 s", "if you have StatefulSetGrids, remove the cache of cluster.local from " +
			"its Corefile (docs/coredns.md); otherwise nothing"})
	}
	r.well(check, c.knows(kindDaemonSet), Object{Kind: kindDaemonSet}, "NodeLocal DNSCache is not installed")
}

// checkPort looks for other programs that use the wrapper's port.
func (r *Report) checkPort(c *Cluster) {
	const check = gridview.CheckPort
	needed := c.edges() == 0 // somewhere
	for _, n := range c.nodes {
		needs := n.isEdge() && n.pod(wrapperProgram).port == defaultPort
		needed = needed || needs
		for _, p := range n.pods {
			r.all(check, n.Name, row{p.takesPort && p.program != wrapperProgram && needs, Failure, p.Object,
				fmt.Sprintf("it takes port %d, which the wrapper needs", defaultPort),
				"give it another port, keep it off edge nodes, or give the wrapper and its clients another port"})
		}
	}
	for _, w := range c.workloads {
		r.all(check, "", row{w.takesPort && w.program != wrapperProgram && needed, Warning, w.Object,
			fmt.Sprintf("its pods take port %d of their nodes: where one runs, the wrapper cannot", defaultPort),
			"give it another port, or keep it off edge nodes"})
	}
	r.well(check, c.knows(kindPod, kindDaemonSet, kindDeployment, "StatefulSet"), Object{Kind: kindPod},
		"no pod declares port %d of its node; programs outside of pods are not seen", defaultPort)
}
