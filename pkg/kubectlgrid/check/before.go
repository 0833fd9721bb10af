package check

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/setup"
)

// Before checks whether application-grid can be installed on a cluster, and how.
func Before(ctx context.Context, source Source, images setup.Images) *Report {
	c := readCluster(ctx, source)
	c.readEndpoints(ctx)
	r := &Report{}
	r.checkVersions(c)
	r.checkPlatforms(c)
	r.checkDistribution(c)
	r.checkProxyThere(c)
	r.checkReplacements(c)
	r.checkBypasses(c)
	r.checkNodeLocal(c)
	r.checkPort(c)
	r.checkOthers(c)
	r.checkLater(c)
	r.all("Images", "", row{true, Unknown, Object{Kind: kindNode}, "whether the nodes can pull images from " +
		images.Registry + " cannot be known from the API: no request makes a node try",
		fmt.Sprintf("try it on a node, where crictl is: crictl pull %s/%s:%s; without a registry import the images on "+
			"each node (docs/install.md, Images)", images.Registry, wrapperProgram, images.Tag)})
	r.checkRights(ctx, c)
	r.finish("Preflight", c.unread)
	if !r.Failed() && c.knows(kindNode, kindDaemonSet) {
		r.Install = setup.For(c.kind(), images)
	}
	return r
}

// checkDistribution reports the distribution of the cluster, and its consequences.
func (r *Report) checkDistribution(c *Cluster) {
	const check = "Distribution"
	if !c.knows(kindNode) {
		return
	}
	about := Object{Kind: kindNode}
	name, because := c.distribution()
	server, known := minor(c.Server.Version)
	is := fmt.Sprintf("the cluster is %s (%s)", name, because)
	r.first(check, "",
		row{name == "", Warning, about, "its nodes do not show which distribution this cluster is",
			"find out how each node's kube-proxy is started, and see docs/other-clusters.md"},
		row{managed[name], Failure, about, is + ": its provider owns kube-proxy and writes it back",
			"it was not tried there; use nodes whose kube-proxy you configure, such as edge nodes of your own"},
		row{name == setup.Kubeadm || name == setup.K3s, OK, about, is, ""},
		row{true, Warning, about, is + ", which was not tried",
			"try it on one node; what is printed below follows from that distribution's documentation"})
	r.all(check, "",
		row{name == setup.Kubeadm && known && server < setup.MutatingPolicy, Warning, Object{Kind: kindPolicy},
			"an API server of " + c.Server.Version + " has no such policies, to keep its kube-proxy off edge nodes",
			"one command has to be repeated after each upgrade: docs/kubeadm.md, Before 1.36"},
		row{slices.ContainsFunc(c.nodes, func(n *node) bool { return n.distribution != "" && n.distribution != name }),
			Warning, about, "the nodes are of different distributions",
			"label only the nodes of the one that you install for"})
}

// checkProxyThere checks kube-proxy: its mode, its version, and how it gets its server.
func (r *Report) checkProxyThere(c *Cluster) {
	const check = "KubeProxy"
	name, _ := c.distribution()
	sets, cilium := c.running(kubeProxyProgram), len(c.running(ciliumProgram)) > 0
	for _, w := range sets {
		r.proxyConfig(c, &w.part)
		r.all(check, "", row{w.requiresNodes && !w.avoidsEdge && !w.selectsEdge && name == setup.Kubeadm, Warning,
			w.Object, "it has a required node affinity of its own, which manifests/kubeadm leaves as it is",
			"add the terms of manifests/kubeadm/kube-proxy-policy.yaml to it"})
	}
	static := map[string]bool{} // by image
	for _, p := range c.pods {
		if p.program == kubeProxyProgram && p.owner.Kind != kindDaemonSet && len(sets) == 0 && !static[p.image] {
			static[p.image] = true
			r.proxyConfig(c, &p.part)
		}
	}
	switch {
	case len(sets)+len(static) > 0:
	case ownProxy[name]:
		r.ok(check, Object{Kind: kindNode}, "kube-proxy is a part of %s's own process", name)
		for _, n := range c.nodes {
			r.all(check, n.Name, row{n.proxyDisabled && !cilium, Failure, n.Object,
				"its agent runs with --disable-kube-proxy, and no pod runs kube-proxy",
				"run kube-proxy: it is what asks the wrapper"})
			mode, _ := flagOf(n.proxyArgs, "proxy-mode", "")
			r.mode(n.Object, mode)
		}
	case cilium:
		r.ok(check, Object{Kind: kindDaemonSet}, "Cilium runs in kube-proxy's place")
	case c.knows(kindDaemonSet, kindPod):
		r.all(check, "", row{true, Failure, named(kindDaemonSet, system, "kube-proxy"),
			"the API server knows of no kube-proxy in this cluster",
			"run kube-proxy, which asks the wrapper. If it is started outside of Kubernetes, as a unit of systemd or " +
				"as part of another program, follow docs/other-clusters.md"})
	}
}

// proxyConfig reports the configuration of a kube-proxy.
func (r *Report) proxyConfig(c *Cluster, p *part) {
	const check = "KubeProxy"
	about, config := p.Object, p.proxy
	mode, tag := cmp.Or(config.mode, "the default, iptables"), tagOf(p.image)
	r.mode(about, mode)
	severity, wrong := c.skew(tag)
	r.all(check, "",
		row{mode == unknownMode, Unknown, about, "its mode is not known",
			"on a node: curl localhost:10249/proxyMode must print iptables or nftables"},
		row{config.serverErr != nil, Unknown, about, fmt.Sprintf("how it gets its server is not known: %v",
			config.serverErr), "find out where its kubeconfig is; on edge nodes its server has to be the wrapper"},
		row{config.serverErr == nil, OK, about, "it is " + tag + ", in mode " + mode + ", and " + config.asks(), ""},
		row{severity != OK, severity, about, "its version " + tag + " " + wrong, "give it the API server's version"})
}

// mode reports a mode of kube-proxy that was never tested.
func (r *Report) mode(about Object, mode string) {
	r.all("KubeProxyMode", "", row{mode == "ipvs", Warning, about, "its mode is ipvs, which was never tested with " +
		"the wrapper, and which Kubernetes has deprecated since 1.35", "set mode: nftables (or iptables) in its " +
		"configuration, and restart it on every node before an edge node relies on it"})
}

// checkOthers looks for workloads that are installed already, or select the same nodes.
func (r *Report) checkOthers(c *Cluster) {
	const check = "OtherWorkloads"
	r.all(check, "", row{c.edges() > 0, Warning, Object{Kind: kindNode}, fmt.Sprintf("the label %s is on %s already: "+
		"pods start there as soon as you apply", v1.LabelEdgeNode, enumerate.Count(c.edges(), "node")),
		"remove the label first if you want to go node by node"})
	for _, w := range c.workloads {
		shipped := w.Namespace == system && (w.Name == string(w.program) || w.Name == "kube-proxy-edge")
		ours := w.program == wrapperProgram || w.program == daemonProgram || w.program == controllerProgram
		r.first(check, "",
			row{ours && shipped, Warning, w.Object, "it is there already, with the image " + w.image,
				"applying changes it; kubectl grid check looks at an installation"},
			row{ours && (w.avoidsEdge || w.Kind == kindDeployment && w.desired == 0), OK, w.Object,
				"it gives way to this project's", ""},
			row{ours, Failure, w.Object, "another " + string(w.program) + " is installed: two on one node want the " +
				"same port, and two controllers the same grids", "follow docs/migrate.md: " +
				"manifests/superedge/away.yaml keeps a DaemonSet off edge nodes, and the controller is stopped first"},
			row{w.selectsEdge && !shipped, Warning, w.Object, "its pods go to the nodes with the label " +
				v1.LabelEdgeNode + ", too", "see that this is meant"})
	}
	r.well(check, c.knows(kindDaemonSet, kindNode), Object{Kind: kindDaemonSet},
		"no other workload selects edge nodes")
}

// checkLater reports which Services with topologyKeys, such as kube-dns, some sites do not reach once the wrapper keeps
// the Services to them.
func (r *Report) checkLater(c *Cluster) {
	_, found := c.reach(nil)
	for _, f := range found {
		f.Severity, f.Message = Warning, "once its nodes are edge nodes: "+f.Message
		r.Findings = append(r.Findings, f)
	}
}

// checkRights reports which rights are missing of those that the commands of docs/install.md take.
func (r *Report) checkRights(ctx context.Context, c *Cluster) {
	const check = "Rights"
	about := Object{Kind: "SelfSubjectAccessReview"}
	server, known := minor(c.Server.Version)
	ask := func(verb, namespace, resource string) {
		of := schema.ParseGroupResource(resource)
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: of.Group, Resource: of.Resource,
				Namespace: namespace},
		}}
		if !c.knows(about.Kind) {
			return
		}
		if err := c.API.Create(ctx, review); err != nil {
			c.lost(about, err, "what you may do is not known")
			return
		}
		message := fmt.Sprintf("you may not %s %s", verb, resource)
		if namespace != "" {
			message += " in " + namespace
		}
		if review.Status.Reason != "" {
			message += " (" + review.Status.Reason + ")"
		}
		r.first(check, "",
			row{!review.Status.Allowed && verb == "escalate", Warning, about, message + ": the roles can be created " +
				"only if you have every right yourself that they give", "install as a cluster administrator"},
			row{!review.Status.Allowed, Failure, about, message,
				"install as a cluster administrator, or have this right granted"})
	}
	apply := func(since int, namespace, group string, resources ...string) {
		for _, resource := range resources {
			if !known || server >= since {
				ask("create", namespace, resource+group)
				ask("patch", namespace, resource+group)
			}
		}
	}
	const rbac, admission = ".rbac.authorization.k8s.io", ".admissionregistration.k8s.io"
	apply(0, "", ".apiextensions.k8s.io", "customresourcedefinitions")
	apply(0, "", rbac, "clusterroles", "clusterrolebindings")
	apply(0, system, rbac, "roles", "rolebindings")
	apply(0, system, "", "serviceaccounts", "configmaps", "daemonsets.apps", "deployments.apps",
		"poddisruptionbudgets.policy", "leases.coordination.k8s.io")
	apply(setup.FlowControl, "", ".flowcontrol.apiserver.k8s.io", "flowschemas", "prioritylevelconfigurations")
	apply(setup.ValidatingPolicy, "", admission, "validatingadmissionpolicies", "validatingadmissionpolicybindings")
	if distribution, _ := c.distribution(); distribution == setup.Kubeadm {
		apply(setup.MutatingPolicy, "", admission, "mutatingadmissionpolicies", "mutatingadmissionpolicybindings")
	}
	ask("escalate", "", "clusterroles"+rbac) // who may not escalate can only grant rights of his own
	ask("patch", "", "nodes")
	r.well(check, c.knows(about.Kind), about, "you may do all that installing takes")
}
