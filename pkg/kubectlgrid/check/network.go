package check

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/application-grid/application-grid/pkg/gridview"
)

// checkReplacements looks for programs that implement Services in place of kube-proxy. If they do not ask the wrapper,
// Services reach every site.
func (r *Report) checkReplacements(c *Cluster) {
	const check = gridview.CheckReplacement
	found := false
	for _, cilium := range c.onEdge(ciliumProgram) {
		found = true
		r.checkCilium(c, cilium)
	}
	for _, calico := range c.onEdge(calicoProgram) {
		found = true
		enabled, where := calico.env["FELIX_BPFENABLED"], "FELIX_BPFENABLED" // overrides the object
		if enabled == "" {
			enabled, where = c.felixBPF, "FelixConfiguration default, bpfEnabled"
		}
		r.first(check, "",
			row{strings.EqualFold(enabled, "true"), Failure, calico.about(), "Calico's eBPF data plane takes " +
				"kube-proxy's place (" + where + "), and does not ask the wrapper: Services would reach every site",
				"set bpfEnabled to false and run kube-proxy; application-grid cannot work with it otherwise"},
			row{enabled == "" && !c.knows(kindFelix), Unknown, calico.about(), "Calico runs, and its " +
				"FelixConfiguration could not be read: whether it takes kube-proxy's place is not known",
				"look for bpfEnabled in it; it has to be false"},
			row{otherwise, OK, calico.about(), "Calico leaves Services to kube-proxy", ""})
	}
	for _, program := range dataPlanes {
		for _, w := range c.onEdge(program) {
			found = true
			r.add(Unknown, check, w.about(), string(program)+" may send pods' connections to Services on itself, and "+
				"does not ask the wrapper then: Services would reach every site",
				"see docs/compatibility.md, What programs Services")
		}
	}
	about := Object{Kind: kindDaemonSet}
	r.first(check, "",
		row{!c.knows(kindDaemonSet), Unknown, about, "whether a program takes kube-proxy's place could not be read",
			"ask again as somebody who may read them"},
		row{!found, OK, about, "neither Cilium nor Calico is there to take kube-proxy's place", ""})
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
