package check

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// Before finds out whether application-grid can be installed on a cluster, and how.
func Before(ctx context.Context, source Source, images setup.Images) *Report {
	reader := readCluster(ctx, source)
	c := reader.cluster
	distribution, _ := c.distribution()
	reader.rights(ctx, rightsToInstall(distribution, c))
	r := &report{}
	r.checkVersions(c)
	r.checkPlatforms(c)
	r.checkDistribution(c)
	r.checkProxyThere(c)
	r.checkReplacements(c)
	r.checkNodeLocal(c)
	r.checkPort(c)
	r.checkOthers(c)
	r.checkImages(images)
	r.checkRights(c)
	r.checkRead(c)
	result := r.finish("Preflight")
	if !result.Failed() && c.knows(kindNode, kindDaemonSet) {
		result.Install = setup.For(c.kind(), images)
	}
	return result
}

// checkRead has a finding for everything that could not be read.
func (r *report) checkRead(c *Cluster) {
	for _, lost := range c.failed {
		r.add(Unknown, CheckRead, lost.about, fmt.Sprintf("it could not be read, and %s: %s", lost.consequence,
			whyNot(lost.err)),
			"ask again as somebody who may read it")
	}
}

// checkDistribution says what made the cluster, and what that means.
func (r *report) checkDistribution(c *Cluster) {
	const check = "Distribution"
	if !c.knows(kindNode) {
		return
	}
	about := Object{Kind: kindNode}
	name, because := c.distribution()
	switch {
	case name == "":
		r.add(Warning, check, about, "what made this cluster cannot be told from its nodes",
			"find out how each node's kube-proxy is started, and see docs/install.md, Any other cluster")
	case managed[name]:
		r.add(Failure, check, about,
			fmt.Sprintf("the cluster is %s (%s): its provider owns kube-proxy and writes it back",
				name, because),
			"application-grid was not tried there; it needs nodes whose kube-proxy you configure, such as edge "+
				"nodes of your own")
	case name == kubeadmMade || name == k3sMade:
		r.ok(check, about, "the cluster is %s's (%s)", name, because)
	default:
		r.add(Warning, check, about, fmt.Sprintf("the cluster is %s (%s), which was not tried", name, because),
			"try it on one node; what is printed below follows from that distribution's documentation")
	}
	server, known := minor(c.version)
	if name == kubeadmMade && known && server < setup.MutatingPolicy {
		r.add(Warning, check, Object{Kind: kindPolicy},
			fmt.Sprintf("an API server of %s has no such policies, which keep "+
				"kubeadm's kube-proxy off edge nodes", c.version),
			"one command has to be repeated after each upgrade: docs/install.md, kubeadm before 1.36")
	}
	counts := map[string]int{}
	for i := range c.nodes {
		counts[c.nodes[i].distribution]++
	}
	if len(counts) > 1 && counts[""] == 0 {
		r.add(Warning, check, about, "the nodes are of different distributions",
			"label only the nodes of the one that you install for")
	}
}

// checkProxyThere looks for kube-proxy, its mode, its version, and how it gets its server.
func (r *report) checkProxyThere(c *Cluster) {
	const check = "KubeProxy"
	name, _ := c.distribution()
	sets := c.running(kubeProxyProgram)
	static := map[string]*pod{} // by what owns them; pods of no set
	for i := range c.pods {
		if p := &c.pods[i]; p.program == kubeProxyProgram && !strings.HasPrefix(p.owner, kindDaemonSet) &&
			len(sets) == 0 {
			static[p.image] = p
		}
	}
	switch {
	case len(sets) > 0:
		for _, w := range sets {
			r.proxyConfig(c, w.about(), w.image, w.proxy)
			if w.requiresNodes && !w.avoidsEdge && !w.selectsEdge && name == kubeadmMade {
				r.add(Warning, check, w.about(), "it has a required node affinity of its own, which the policy of "+
					"manifests/kubeadm leaves as it is",
					"add the expression of manifests/kubeadm/kube-proxy-policy.yaml to each of its terms")
			}
		}
	case len(static) > 0:
		for _, p := range static {
			r.proxyConfig(c, p.about(), p.image, p.proxy)
		}
	case ownProxy[name]:
		r.ok(check, Object{Kind: kindNode}, "kube-proxy is a part of %s's own process", name)
		for i := range c.nodes {
			if n := &c.nodes[i]; n.proxyDisabled {
				r.add(Failure, check, n.about(), "its agent runs with --disable-kube-proxy, and no pod runs kube-proxy",
					"run kube-proxy: it is what asks the wrapper")
			} else if mode, _ := flagOf(n.proxyArgs, "proxy-mode"); mode == "ipvs" {
				r.ipvs(n.about())
			}
		}
	case len(c.running(ciliumProgram)) > 0:
		r.ok(check, Object{Kind: kindDaemonSet}, "Cilium is there in kube-proxy's place")
	case c.knows(kindDaemonSet, kindPod):
		r.add(Failure, check, Object{kindDaemonSet, system, "kube-proxy"},
			"there is no kube-proxy in this cluster that the API server knows of",
			"run kube-proxy: it is what asks the wrapper. If it is started outside of Kubernetes, as a unit of "+
				"systemd or as part of another program, go on with docs/install.md, Any other cluster")
	}
}

// proxyConfig says how a kube-proxy is configured.
func (r *report) proxyConfig(c *Cluster, about Object, image string, config *proxyConfig) {
	const check = "KubeProxy"
	mode := config.mode
	switch {
	case config.modeErr != nil:
		r.add(Unknown, check, about, fmt.Sprintf("its mode is not known: %v", config.modeErr),
			"on a node: curl localhost:10249/proxyMode must print iptables or nftables")
		mode = "unknown"
	case mode == "ipvs":
		r.ipvs(about)
	case mode == "":
		mode = "the default, iptables"
	}
	switch {
	case config.serverErr != nil:
		r.add(Unknown, check, about, fmt.Sprintf("how it gets its server is not known: %v", config.serverErr),
			"find out where its kubeconfig is; on edge nodes its server has to be the wrapper")
	default:
		r.ok(check, about, "it is %s, in mode %s, and asks %s (%s)", tagOf(image), mode, config.server, config.source)
	}
	proxy, ok := minor(tagOf(image))
	server, known := minor(c.version)
	switch {
	case !ok:
		r.add(Unknown, check, about, "its version cannot be told from its image "+image,
			"see that it goes with the API server's version, "+c.version)
	case known && proxy > server:
		r.add(Warning, check, about, fmt.Sprintf("it is %s, newer than the API server's %s", tagOf(image), c.version),
			"give it the API server's version")
	case proxy < oldestTested:
		r.add(Warning, check, about, fmt.Sprintf("it is %s, older than what is tested, 1.%d to 1.%d", tagOf(image),
			oldestTested, newestTested), "upgrade it")
	}
}

func (r *report) ipvs(about Object) {
	r.add(Warning, "KubeProxyMode", about, "its mode is ipvs, which was never tested with the wrapper, and which "+
		"Kubernetes has deprecated since 1.35",
		"set mode: nftables (or iptables) in its configuration, and restart it on every node before an edge node "+
			"relies on it")
}

// checkOthers looks for what is installed already, or selects the same nodes.
func (r *report) checkOthers(c *Cluster) {
	const check = "OtherWorkloads"
	labelled := 0
	for i := range c.nodes {
		if c.nodes[i].isEdge() {
			labelled++
		}
	}
	if labelled > 0 {
		r.add(Warning, check, Object{Kind: kindNode}, fmt.Sprintf("the label %s is on %s already: pods start there as "+
			"soon as you apply", v1.LabelEdgeNode, count(labelled, "node")),
			"remove the label first if you want to go node by node")
	}
	for i := range c.workloads {
		w := &c.workloads[i]
		shipped := w.namespace == system && (w.name == string(w.program) || w.name == "kube-proxy-edge")
		switch {
		case w.program == wrapperProgram || w.program == daemonProgram || w.program == controllerProgram:
			switch {
			case shipped:
				r.add(Warning, check, w.about(), "it is there already, with the image "+w.image,
					"applying changes it; kubectl grid check looks at an installation")
			case w.avoidsEdge || (w.kind == kindDeployment && w.desired == 0):
				r.ok(check, w.about(), "it gives way to this project's")
			default:
				r.add(Failure, check, w.about(),
					"another "+string(w.program)+" is installed: two on one node want the same "+
						"port, and two controllers the same grids",
					"follow docs/migrate.md: manifests/superedge/away.yaml keeps a DaemonSet off edge nodes, and "+
						"the controller is stopped first")
			}
		case w.selectsEdge && !shipped:
			r.add(Warning, check, w.about(), "its pods go to the nodes with the label "+v1.LabelEdgeNode+", too",
				"see that this is meant")
		}
	}
	if r.clean(check) && c.knows(kindDaemonSet, kindNode) {
		r.ok(check, Object{Kind: kindDaemonSet}, "no other workload selects edge nodes")
	}
}

// checkImages says what no API server knows.
func (r *report) checkImages(images setup.Images) {
	r.add(Unknown, "Images", Object{Kind: kindNode},
		fmt.Sprintf("whether the nodes can pull images from %s cannot be known from the API: no request makes a "+
			"node try",
			images.Registry),
		fmt.Sprintf("try it on a node, where crictl is: crictl pull %s/%s:%s; without a registry import the images on "+
			"each node (docs/install.md, Images)",
			images.Registry, wrapperProgram, images.Tag))
}

// rightsToInstall are what the commands of docs/install.md take.
func rightsToInstall(distribution string, c *Cluster) []right {
	var rights []right
	add := func(group, resource, namespace string) {
		for _, verb := range []string{"create", "patch"} {
			rights = append(rights, right{verb: verb, group: group, resource: resource, namespace: namespace})
		}
	}
	add("apiextensions.k8s.io", "customresourcedefinitions", "")
	for _, resource := range []string{"clusterroles", "clusterrolebindings"} {
		add("rbac.authorization.k8s.io", resource, "")
	}
	for _, resource := range []string{"roles", "rolebindings"} {
		add("rbac.authorization.k8s.io", resource, system)
	}
	// Who may not escalate may only grant what he may do himself.
	rights = append(rights, right{verb: "escalate", group: "rbac.authorization.k8s.io", resource: "clusterroles"})
	for _, resource := range []string{"serviceaccounts", "configmaps"} {
		add("", resource, system)
	}
	for _, resource := range []string{"daemonsets", "deployments"} {
		add("apps", resource, system)
	}
	add("policy", "poddisruptionbudgets", system)
	add("coordination.k8s.io", "leases", system)
	server, known := minor(c.version)
	if !known || server >= setup.FlowControl {
		add("flowcontrol.apiserver.k8s.io", "flowschemas", "")
		add("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", "")
	}
	if !known || server >= setup.ValidatingPolicy {
		add("admissionregistration.k8s.io", "validatingadmissionpolicies", "")
		add("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "")
	}
	if distribution == kubeadmMade && (!known || server >= setup.MutatingPolicy) {
		add("admissionregistration.k8s.io", "mutatingadmissionpolicies", "")
		add("admissionregistration.k8s.io", "mutatingadmissionpolicybindings", "")
	}
	return append(rights, right{verb: "patch", resource: "nodes"})
}

// checkRights says what is missing of the rights that installing takes.
func (r *report) checkRights(c *Cluster) {
	const check = "Rights"
	about := Object{Kind: "SelfSubjectAccessReview"}
	for _, right := range c.rights {
		switch {
		case right.allowed:
		case right.verb == "escalate":
			r.add(Warning, check, about,
				"you may not "+right.String()+": the roles can be created only if you have every "+
					"right yourself that they give", "install as a cluster administrator")
		default:
			message := "you may not " + right.String()
			if right.reason != "" {
				message += " (" + right.reason + ")"
			}
			r.add(Failure, check, about, message, "install as a cluster administrator, or have this right granted")
		}
	}
	if len(c.rights) > 0 && r.clean(check) {
		r.ok(check, about, "you may do all that installing takes")
	}
}
