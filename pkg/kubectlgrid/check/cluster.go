package check

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/topology"
)

// node is a reduced Node.
type node struct {
	Object

	edge              string
	os, arch, kubelet string
	// ready is set if its kubelet says so, and silent if it has said nothing for a while.
	ready, silent            bool
	distribution, because    string
	proxyArgs                []string // those of a kube-proxy inside of the node's agent, where the node tells them
	tellsArgs, proxyDisabled bool
	labels                   topology.Labels
	// labelled is when someone last wrote the label of edge nodes, as far as managedFields show.
	labelled time.Time
	alone    *corev1.NodeCondition
	// pods are those on it that are not ending.
	pods []*pod
}

func (n *node) podsOf(program Program) []*pod {
	return slices.DeleteFunc(slices.Clone(n.pods), func(p *pod) bool { return p.program != program })
}

// pod returns the first pod of a program on the node; without any an empty one, which has the wrapper's defaults.
func (n *node) pod(program Program) *pod {
	return append(n.podsOf(program), &pod{port: defaultPort, scheme: "http"})[0]
}

func (n *node) isEdge() bool { return v1.IsEdgeNode(n.edge) }

func nodeOf(n *corev1.Node) *node {
	info := n.Status.NodeInfo
	reduced := &node{Object: Object{Kind: kindNode, Name: n.Name}, edge: n.Labels[v1.LabelEdgeNode],
		os: info.OperatingSystem, arch: info.Architecture, kubelet: info.KubeletVersion,
		labels: gridview.LabelsOf(n), alone: v1.StartsAlone(n)}
	for _, entry := range n.ManagedFields {
		if entry.Time != nil && entry.FieldsV1 != nil &&
			strings.Contains(entry.FieldsV1.GetRawString(), `"f:`+v1.LabelEdgeNode+`"`) {
			reduced.labelled = entry.Time.Time
		}
	}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			reduced.ready = condition.Status == corev1.ConditionTrue
			reduced.silent = condition.Status == corev1.ConditionUnknown
		}
	}
	reduced.distribution, reduced.because = distributionOf(n)
	for _, annotation := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
		var args []string
		if text, ok := n.Annotations[annotation]; ok && json.Unmarshal([]byte(text), &args) == nil {
			reduced.tellsArgs = true
			for _, value := range valuesOf(args, "--kube-proxy-arg") {
				reduced.proxyArgs = append(reduced.proxyArgs, "--"+strings.TrimLeft(value, "-"))
			}
			for _, value := range valuesOf(args, "--disable-kube-proxy") {
				disabled, err := strconv.ParseBool(value)
				reduced.proxyDisabled = disabled || err != nil // without a value it has the next flag's name
			}
		}
	}
	return reduced
}

// valuesOf returns the values of a flag among the arguments of k3s. It writes --flag=value as two arguments, and also
// a value that looks so itself.
func valuesOf(args []string, flag string) []string {
	var values []string
	for i, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		if name != flag {
			continue
		}
		if next := args[i+1:]; !hasValue && len(next) > 0 {
			value = next[0]
			if strings.HasPrefix(value, "--") && !strings.Contains(value, "=") && len(next) > 1 {
				value += "=" + next[1]
			}
		}
		values = append(values, value)
	}
	return values
}

// master returns the URL that kube-proxy inside of the node's agent is given. The agent gives it an authority, too.
func (n *node) master() (server string, given bool) {
	master, given := flagOf(n.proxyArgs, "master", "")
	if given {
		server, _ = serverOf(&clientcmdapi.Cluster{Server: master, CertificateAuthority: "the agent's"})
	}
	return cmp.Or(server, master), given
}

// part is a container that matters here, of a pod or of the pods of a workload.
type part struct {
	Object // the pod or the workload

	program Program
	image   string
	// takesPort is set if it declares defaultPort.
	takesPort bool
	proxy     *proxyConfig // that of kube-proxy
}

// pod is a part of a pod in the node's network.
type pod struct {
	part

	node  string
	owner Object
	// ready is set if it is ready; why is why not, in words.
	ready bool
	why   string
	// ending is set if it is being deleted. waitsFor is the intended node of a pod without a node.
	ending   bool
	waitsFor string
	// unreadySince is since when it is not ready.
	started, created, unreadySince time.Time
	// port and scheme are the wrapper's. hostname is the name of the node from its flag, as far as that is known.
	port             int32
	scheme, hostname string
	// upstream is the Service of kube-system that NodeLocal DNSCache asks.
	upstream string
}

// workload is a part of the pods of a DaemonSet, Deployment or StatefulSet.
type workload struct {
	part

	desired, ready int32
	// selectsEdge is set if its pods run on edge nodes only, avoidsEdge if they do not run there, waitsForWrapper if
	// they run there until the wrapper is ready. requiresNodes is set if it has a required node affinity.
	selectsEdge, avoidsEdge, waitsForWrapper, requiresNodes bool
	affinity                                                nodeaffinity.RequiredNodeAffinity
	// onDelete is set if its pods are replaced only when they are deleted. hub is the wrapper's flag --hub. bypass is
	// the program in it that reads endpoints itself. problem is the problem of the first pod of a controller.
	onDelete bool
	hub      bool
	bypass   *bypass
	problem  string
	env      map[string]string
}

// placement sets the fields about where the pods of a workload run, as far as its node selector and its node affinity
// use the labels of edge nodes.
func (w *workload) placement(spec *corev1.PodSpec) {
	w.affinity = nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: *spec})
	terms := requiredTerms(spec)
	w.requiresNodes = len(terms) > 0
	ours := func(key string) bool { return key == v1.LabelEdgeNode || key == v1.LabelKubeProxy }
	goesTo := func(labels map[string]string) bool {
		for key, value := range spec.NodeSelector {
			if ours(key) && labels[key] != value {
				return false
			}
		}
		return len(terms) == 0 || slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
			return !slices.ContainsFunc(term.MatchExpressions, func(e corev1.NodeSelectorRequirement) bool {
				return ours(e.Key) && !meets(labels, e)
			})
		})
	}
	moved := goesTo(map[string]string{v1.LabelEdgeNode: v1.EdgeNodePods, v1.LabelKubeProxy: v1.KubeProxyEdge})
	w.selectsEdge = moved && !goesTo(nil)
	w.avoidsEdge = !moved && !goesTo(map[string]string{v1.LabelEdgeNode: v1.EdgeNodeSystemd})
	w.waitsForWrapper = w.avoidsEdge && goesTo(map[string]string{v1.LabelEdgeNode: v1.EdgeNodePods})
}

func meets(labels map[string]string, e corev1.NodeSelectorRequirement) bool {
	selector := nodeaffinity.NewLazyErrorNodeSelector(&corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
		{MatchExpressions: []corev1.NodeSelectorRequirement{e}}}})
	met, err := selector.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}})
	return met || err != nil
}

// runsOn reports whether the pods of a DaemonSet may run on a node.
func (w *workload) runsOn(n *node) bool {
	runs, err := w.affinity.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.labels}})
	return runs || err != nil
}

// grid is a reduced grid: its problem and, for one of workloads, its key.
type grid struct {
	about        Object
	key, trouble string
}

// service is a reduced Service with topologyKeys: these, or why its annotation does not parse.
type service struct {
	about      Object
	keys       topology.Keys
	annotation string
	err        error
	// tally counts the endpoints that nodes reach; nil if it is not governed, or if EndpointSlices were not read.
	tally *gridview.Tally
}

// byKubeProxy reports whether kube-proxy is meant to keep the Service to sites.
func (s *service) byKubeProxy() bool { return s.tally != nil && s.tally.ByKubeProxy() }

// Cluster is the data that was read from a cluster.
type Cluster struct {
	Source

	nodes     []*node
	pods      []*pod
	workloads []*workload
	documents map[Object]*document
	// carries are the ConfigMaps and Secrets of the programs' pods and of kube-proxy.
	carries map[Object]bool
	// proxies are the configurations of kube-proxies by workload, by pod, or by the revision of a DaemonSet's pods.
	proxies map[string]*proxyConfig

	kubeadm  bool              // kubeadm-config is there
	policy   bool              // kube-proxy-policy.yaml is, with its binding
	felixBPF map[string]string // bpfEnabled of Calico's FelixConfigurations that set it, by their names

	services   []service
	reachKnown bool            // their endpoints were read
	coreDNS    map[string]bool // the nodes with a ready CoreDNS
	dns        []string        // the Services of CoreDNS
	// ofGrids has the metadata of the Services with the name of a ServiceGrid's.
	ofGrids       map[Object]metav1.Object
	hubAPI        bool   // the hub's APIService is there
	hubAway       string // why that is not available
	leads         bool   // a controller holds the Lease, wherever it runs
	ciliumConfigs []ciliumConfig

	definitions map[string]*unstructured.Unstructured // the grids' CRDs by name
	grids       []grid

	// unread are the findings about objects that could not be read, and missing are their kinds.
	unread  []Finding
	missing map[string]bool
}

// knows reports whether all of these kinds were read.
func (c *Cluster) knows(kinds ...string) bool {
	return !slices.ContainsFunc(kinds, func(kind string) bool { return c.missing[kind] })
}

func (c *Cluster) knowsGrids() bool {
	unread := func(kind v1.GridKind) bool { return !c.knows(kind.Kind) }
	return c.knows(kindCRD) && !slices.ContainsFunc(v1.Kinds, unread)
}

// diagnosis returns what was read of the nodes, with some findings.
func (c *Cluster) diagnosis(found []Finding) *gridview.Diagnosis {
	d := &gridview.Diagnosis{Findings: found, Nodes: make(map[string]topology.Labels, len(c.nodes)),
		Wrapped: map[string]bool{}, Silent: map[string]bool{}, Unread: c.unread}
	d.HubAway = c.asksHub() && slices.ContainsFunc(found, func(f Finding) bool {
		return f.Check == gridview.CheckHub && f.Severity == Failure
	})
	for _, n := range c.nodes {
		d.Nodes[n.Name], d.Silent[n.Name] = n.labels, n.silent
		d.Wrapped[n.Name] = n.pod(wrapperProgram).program != "" &&
			!slices.ContainsFunc(n.podsOf(kubeProxyProgram), func(p *pod) bool {
				return p.proxy.serverErr == nil && !c.leadsToWrappers(p.proxy.server)
			})
	}
	return d
}

func (c *Cluster) running(program Program) []*workload {
	return slices.DeleteFunc(slices.Clone(c.workloads), func(w *workload) bool { return w.program != program })
}

// installed returns the workloads that run a program on edge nodes, or anywhere, without those of SuperEdge that this
// project's replace (docs/migrate.md).
func (c *Cluster) installed(program Program) []*workload {
	return slices.DeleteFunc(c.running(program), func(w *workload) bool {
		return w.avoidsEdge || (w.Kind == kindDeployment && w.desired == 0 && w.Namespace != system)
	})
}

func (c *Cluster) asksHub() bool {
	return slices.ContainsFunc(c.installed(wrapperProgram), func(w *workload) bool { return w.hub })
}

// hasPod reports whether the cluster has a pod of a program that is not ending.
func (c *Cluster) hasPod(program Program) bool {
	return slices.ContainsFunc(c.pods, func(p *pod) bool { return p.program == program && !p.ending })
}
