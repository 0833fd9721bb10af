package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
)

// checkReplacements looks for programs that implement Services in place of kube-proxy, on each edge node; without edge
// nodes, anywhere. If they do not ask the wrapper, Services reach every site.
func (r *Report) checkReplacements(c *Cluster) {
	const check = gridview.CheckReplacement
	found, edges, wrappers := false, c.edges(), c.byNode(wrapperProgram)
	for _, program := range dataPlanes {
		for _, w := range c.onEdge(program) {
			found = true
			if edges == 0 {
				r.first(check, "", c.replaces(w, &node{}, w.about(), firstOf(nil))...)
				continue
			}
			for _, n := range c.nodes {
				if n.isEdge() && w.runsOn(n) {
					r.first(check, n.name, c.replaces(w, n, n.about(), firstOf(wrappers[n.name]))...)
				}
			}
		}
	}
	about, each := Object{Kind: kindDaemonSet}, " on each of "+enumerate.Count(edges, "edge node")
	r.first(check, "",
		row{!c.knows(kindDaemonSet, kindNode), Unknown, about,
			"whether a program takes kube-proxy's place could not be read", "ask again as somebody who may read them"},
		row{!found, OK, about, "neither Cilium nor Calico is there to take kube-proxy's place", ""},
		row{r.clean(check) && len(c.onEdge(ciliumProgram)) > 0, OK, about, "Cilium asks the wrapper" + each, ""},
		row{r.clean(check), OK, about, "Calico leaves Services to kube-proxy", ""})
}

// replaces returns what a data plane does to the Services on an edge node: the first row that holds.
func (c *Cluster) replaces(w *workload, n *node, about Object, wrapper *pod) []row {
	switch w.program {
	case ciliumProgram:
		return c.ciliumAsks(w, n, about, wrapper)
	case calicoProgram:
		enabled, where := w.env["FELIX_BPFENABLED"], "FELIX_BPFENABLED" // overrides the objects
		for _, name := range []string{"node." + n.name, "default"} {
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
	return []row{{otherwise, Unknown, about, string(w.program) + " runs there, and may send pods' connections to " +
		"Services on itself, without asking the wrapper: Services would reach every site from there",
		"see docs/compatibility.md, What programs Services"}}
}

func (r *Report) checkNodeLocal(c *Cluster) {
	const check = "NodeLocalDNS"
	for _, cache := range c.running(nodeLocalProgram) {
		r.add(Warning, check, cache.about(), "NodeLocal DNSCache answers the pods of its node, and keeps answers for "+
			"up to 30 s", "if you have StatefulSetGrids, remove the cache of cluster.local from its Corefile "+
			"(docs/coredns.md); otherwise nothing")
	}
	r.well(check, c.knows(kindDaemonSet), Object{Kind: kindDaemonSet}, "NodeLocal DNSCache is not installed")
}

// checkPort looks for other programs that use the wrapper's port.
func (r *Report) checkPort(c *Cluster) {
	const check = gridview.CheckPort
	wrappers, needed := c.byNode(wrapperProgram), map[string]bool{} // by node
	for _, n := range c.nodes {
		needed[n.name] = n.isEdge() && firstOf(wrappers[n.name]).port == defaultPort
	}
	for _, p := range c.pods {
		r.all(check, p.node, row{p.takesPort && p.program != wrapperProgram && !p.ending && needed[p.node], Failure,
			p.about(), fmt.Sprintf("it takes port %d of the edge node %s, which the wrapper needs", defaultPort,
				p.node),
			"give it another port, keep it off edge nodes, or give the wrapper another port (--bind-address, and " +
				"kube-proxy's server)"})
	}
	anywhere := c.edges() == 0 || slices.Contains(slices.Collect(maps.Values(needed)), true)
	for _, w := range c.workloads {
		r.all(check, "", row{w.takesPort && w.program != wrapperProgram && anywhere, Warning, w.about(),
			fmt.Sprintf("its pods take port %d of their nodes: where one runs, the wrapper cannot", defaultPort),
			"give it another port, or keep it off edge nodes"})
	}
	r.well(check, c.knows(kindPod, kindDaemonSet, kindDeployment, "StatefulSet"), Object{Kind: kindPod},
		"no pod declares port %d of its node; programs outside of pods are not seen", defaultPort)
}
