package check

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/application-grid/application-grid/pkg/gridview"
)

// bypass is a program that reads endpoints itself, and connects to pods past kube-proxy.
type bypass struct {
	name string
	// known are the names of a workload, a container or an image by which it is recognised.
	known []string
	// advice says what to do about it.
	advice string
}

const meshAdvice = "do not rely on site-local Services for workloads in the mesh; its own locality settings prefer a " +
	"site, and do not keep to it"

const askWrapper = "run one in each site that asks the node's wrapper in place of the API server"

// bypasses are the known ones. docs/compatibility.md has the same list.
var bypasses = []bypass{
	{"Traefik", []string{"traefik"},
		"run one on edge nodes that asks the node's wrapper in place of the API server, or annotate Services behind " +
			"it with traefik.ingress.kubernetes.io/service.nativelb, and run one in each site"},
	{"ingress-nginx", []string{"ingress-nginx-controller", "nginx-ingress-controller"},
		"annotate Ingresses with nginx.ingress.kubernetes.io/service-upstream: \"true\", and run one in each site"},
	{"Envoy Gateway", []string{"envoy-gateway"},
		"set routingType: Service in its EnvoyProxy, and run a gateway in each site"},
	{"HAProxy's ingress controller", []string{"haproxy-ingress", "haproxy-kubernetes-ingress", "kubernetes-ingress"},
		askWrapper},
	{"NGINX Inc.'s ingress controller", []string{"nginx-ingress", "nginx-plus-ingress"},
		"annotate Ingresses with nginx.org/use-cluster-ip: \"true\", and run one in each site"},
	{"Kong", []string{"kong", "kong-ingress-controller", "kubernetes-ingress-controller"},
		"annotate Services behind it with ingress.kubernetes.io/service-upstream: \"true\", and run one in each site"},
	{"Contour", []string{"contour"}, askWrapper},
	{"Emissary", []string{"emissary", "emissary-ingress", "ambassador", "aes"},
		"route by its KubernetesServiceResolver, not by endpoints, and run one in each site"},
	{"Skipper", []string{"skipper", "skipper-ingress"}, askWrapper},
	{"Kuma", []string{"kuma-control-plane", "kuma-cp"}, meshAdvice},
	{"Istio", []string{"istiod", "pilot"}, meshAdvice},
	{"Linkerd", []string{"linkerd-destination"}, meshAdvice},
	{"Cilium's Envoy", []string{"cilium-envoy"}, "put no site-local Services behind its ingress, gateways or policies"},
}

// bypassOf returns the program of a workload if it reads endpoints itself, and nil otherwise.
func bypassOf(workload string, spec *corev1.PodSpec) *bypass {
	names := append(make([]string, 0, 1+3*len(spec.Containers)), workload)
	for _, c := range spec.Containers {
		names = append(names, c.Name, path.Base(repository(c.Image)), executable(commandLine(&c)))
	}
	i := slices.IndexFunc(bypasses, func(b bypass) bool {
		return slices.ContainsFunc(b.known, func(known string) bool { return slices.Contains(names, known) })
	})
	if i < 0 || slices.ContainsFunc(spec.Containers, asksWrapper) {
		return nil
	}
	return &bypasses[i]
}

// asksWrapper reports whether a container uses the node's wrapper as its API server: as the in-cluster one, or by an
// argument.
func asksWrapper(c corev1.Container) bool {
	return leadsToWrapper(inClusterServer(envOf(&c)), defaultPort) ||
		slices.ContainsFunc(slices.Concat(c.Command, c.Args), func(argument string) bool {
			return leadsToWrapper(argument[strings.Index(argument, "=")+1:], defaultPort)
		})
}

// checkBypasses reports workloads that read endpoints themselves.
func (r *Report) checkBypasses(c *Cluster) {
	const check = gridview.CheckBypass
	for _, w := range c.workloads {
		if w.bypass != nil {
			r.all(check, "", row{true, Warning, w.Object, w.bypass.name + " reads endpoints itself and connects to " +
				"pods: what comes through it reaches every site", w.bypass.advice})
		}
	}
	r.well(check, c.knows(kindDaemonSet, kindDeployment), Object{Kind: kindDeployment},
		"no ingress controller or mesh that is known reads endpoints itself")
}
