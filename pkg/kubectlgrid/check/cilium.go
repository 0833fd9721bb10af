package check

import (
	"cmp"
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/program/pages"
)

var ciliumConfigKind = schema.GroupVersionKind{Group: "cilium.io", Version: "v2", Kind: "CiliumNodeConfig"}

// apiServerURLs is the setting with the API servers that an agent of Cilium asks.
const apiServerURLs = "k8s-api-server-urls"

// ciliumConfig has the API servers that a CiliumNodeConfig sets for some nodes.
type ciliumConfig struct {
	namespace string
	nodes     labels.Selector
	urls      string
}

// whomCiliumAsks is the consequence of a configuration of Cilium that could not be read.
const whomCiliumAsks = "whom the agents of Cilium ask is not known"

// readCiliumConfigs reads the CiliumNodeConfigs. A cluster without Cilium has none.
func (c *Cluster) readCiliumConfigs(ctx context.Context) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(ciliumConfigKind.GroupVersion().WithKind(ciliumConfigKind.Kind + "List"))
	var err error
	c.ciliumConfigs, err = pages.Keep(ctx, c.API, list, func(u *unstructured.Unstructured) (ciliumConfig, bool) {
		var config struct {
			Spec struct {
				NodeSelector *metav1.LabelSelector `json:"nodeSelector"`
				Defaults     map[string]string     `json:"defaults"`
			} `json:"spec"`
		}
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &config)
		nodes, invalid := metav1.LabelSelectorAsSelector(config.Spec.NodeSelector) // nil selects none
		urls, found := config.Spec.Defaults[apiServerURLs]
		return ciliumConfig{u.GetNamespace(), nodes, urls}, found && err == nil && invalid == nil
	})
	c.lost(Object{Kind: ciliumConfigKind.Kind}, client.IgnoreNotFound(err), whomCiliumAsks)
}

// ciliumDefaults names the ConfigMap with the settings of all agents.
func ciliumDefaults(cilium *workload) Object {
	return named(kindConfigMap, cilium.Namespace, "cilium-config")
}

// ciliumAlone reports whether Cilium runs in the place of kube-proxy.
func (c *Cluster) ciliumAlone() bool {
	return len(c.running(ciliumProgram)) > 0 && len(c.running(kubeProxyProgram)) == 0 &&
		!slices.ContainsFunc(c.nodes, func(n *node) bool { return ownProxy[n.distribution] && !n.proxyDisabled })
}

// ciliumAsks returns whom the agent of Cilium on an edge node asks: the first row that holds. The CiliumNodeConfigs
// beside Cilium say that, its ConfigMap, or its environment. Of several for the node, which are in the order of their
// names, the last one counts.
func (c *Cluster) ciliumAsks(cilium *workload, n *node, about Object) []row {
	const fix = "add manifests/cilium to your kustomization, or set cilium.enabled of the chart, and restart the " +
		"node's agent of Cilium (docs/cilium.md)"
	urls := ""
	if doc := c.documents[ciliumDefaults(cilium)]; doc != nil {
		urls = doc.data[apiServerURLs]
	}
	for _, config := range c.ciliumConfigs {
		if config.namespace == cilium.Namespace && config.nodes.Matches(labels.Set(n.labels)) {
			urls = config.urls
		}
	}
	servers := strings.FieldsFunc(cmp.Or(urls, inClusterServer(cilium.env)),
		func(r rune) bool { return r == ',' || r == ' ' })
	server, wrapper := strings.Join(servers, ", "), n.pod(wrapperProgram)
	const asks, leaves = "its agent of Cilium asks ", ": Services reach every site from there"
	return []row{
		{!n.isEdge(), Warning, about, "Cilium sends pods' connections to Services on itself, also beside a " +
			"kube-proxy: on edge nodes its agent has to ask the wrapper", fix},
		{!c.knows(ciliumConfigKind.Kind) || server == "" && !c.knows(kindConfigMap), Unknown, about,
			"whom its agent of Cilium asks could not be read", wrapper.onNode()},
		{len(servers) > 1, Failure, about, "its agent of Cilium has several API servers (" + server + "): it moves " +
			"on past the wrapper, and may hear of no change from then on",
			"name the wrapper alone in " + apiServerURLs},
		{server == "", Failure, about, asks + "the API server" + leaves, fix},
		{!leadsToWrapper(server, wrapper.port), Failure, about, asks + server + ", past the wrapper" + leaves, fix},
		{wrapper.otherScheme(server) != "", Failure, about, asks + server + wrapper.otherScheme(server) +
			": it never gets an answer", fix},
	}
}
