package check

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// node is what is kept of a Node.
type node struct {
	name, edge               string
	os, arch, kubelet        string
	ready                    bool
	distribution, because    string
	proxyArgs                []string // those of a kube-proxy inside of the node's agent, where the node tells them
	tellsArgs, proxyDisabled bool
	ciliumURLs               string // what a CiliumNodeConfig has of the API servers that its agent asks
}

func (n *node) about() Object { return Object{Kind: "Node", Name: n.name} }

// isEdge reports whether the node asked for the wrapper.
func (n *node) isEdge() bool { return v1.IsEdgeNode(n.edge) }

// nodeOf reduces a Node.
func nodeOf(n *corev1.Node) node {
	info := n.Status.NodeInfo
	reduced := node{name: n.Name, edge: n.Labels[v1.LabelEdgeNode], os: info.OperatingSystem, arch: info.Architecture,
		kubelet: info.KubeletVersion}
	for _, condition := range n.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			reduced.ready = condition.Status == corev1.ConditionTrue
		}
	}
	reduced.distribution, reduced.because = distributionOf(n)
	for _, annotation := range []string{"k3s.io/node-args", "rke2.io/node-args"} {
		var args []string
		if text, ok := n.Annotations[annotation]; ok && json.Unmarshal([]byte(text), &args) == nil {
			reduced.tellsArgs = true
			reduced.proxyArgs = append(reduced.proxyArgs, proxyArgs(args)...)
			reduced.proxyDisabled = reduced.proxyDisabled || slices.Contains(args, "--disable-kube-proxy") ||
				slices.Contains(args, "--disable-kube-proxy=true")
		}
	}
	return reduced
}

// proxyArgs are the values of --kube-proxy-arg among the arguments of k3s, as flags.
func proxyArgs(args []string) []string {
	var flags []string
	for i, arg := range args {
		name, value, hasValue := strings.Cut(arg, "=")
		if name != "--kube-proxy-arg" {
			continue
		}
		if !hasValue && i+1 < len(args) {
			value = args[i+1]
		}
		flags = append(flags, "--"+strings.TrimLeft(value, "-"))
	}
	return flags
}

// pod is what is kept of a pod in the node's network.
type pod struct {
	namespace, name, node string
	program               Program
	image, owner          string
	// ready is that it is; why is why not, in words.
	ready bool
	why   string
	// ending is that it is being deleted. waitsFor is the node that a pod without a node is meant for.
	ending   bool
	waitsFor string
	started  time.Time
	// port is the wrapper's; takesPort is that the pod declares defaultPort.
	port      int32
	takesPort bool
	proxy     *proxyConfig
}

func (p *pod) about() Object { return Object{"Pod", p.namespace, p.name} }

// workload is what is kept of a DaemonSet, Deployment or StatefulSet.
type workload struct {
	kind, namespace, name string
	program               Program
	image                 string
	desired, ready        int32
	takesPort             bool
	// selectsEdge is that its pods go to edge nodes, avoidsEdge that they do not, requiresNodes that it has a required
	// node affinity.
	selectsEdge, avoidsEdge, requiresNodes bool
	env                                    map[string]string
	proxy                                  *proxyConfig
}

func (w *workload) about() Object { return Object{w.kind, w.namespace, w.name} }

// placement fills in where the pods of a workload go.
func (w *workload) placement(spec *corev1.PodSpec) {
	_, w.selectsEdge = spec.NodeSelector[v1.LabelEdgeNode]
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	w.requiresNodes, w.avoidsEdge = true, len(terms) > 0
	for _, term := range terms {
		avoids := false
		for _, e := range term.MatchExpressions {
			if e.Key != v1.LabelEdgeNode {
				continue
			}
			switch e.Operator {
			case corev1.NodeSelectorOpDoesNotExist:
				avoids = true
			case corev1.NodeSelectorOpNotIn:
				avoids = slices.Contains(e.Values, v1.EdgeNodePods) && slices.Contains(e.Values, v1.EdgeNodeSystemd)
			case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpExists:
				w.selectsEdge = true
			default:
			}
		}
		w.avoidsEdge = w.avoidsEdge && avoids // terms are alternatives
	}
}

// definition is one of the grids' CRDs.
type definition struct {
	name        string
	found       bool
	version     int
	established bool
}

// grid is a grid that is not well, or a Service whose annotation is not.
type grid struct {
	about   Object
	message string
}

// unread is something that could not be read.
type unread struct {
	about       Object
	err         error
	consequence string
}

// Cluster is what was read of a cluster.
type Cluster struct {
	now time.Time
	// version is the API server's, certificateEnd when its serving certificate ends.
	version        string
	certificateEnd time.Time

	nodes     []node
	pods      []pod
	workloads []workload
	documents *documents
	// carries are the ConfigMaps and Secrets that the programs' pods have, and kube-proxy's.
	carries map[Object]bool

	kubeadm  bool   // kubeadm-config is there
	policy   bool   // kube-proxy-policy.yaml is, with its binding
	felixBPF string // bpfEnabled of Calico's FelixConfiguration, if that is there and says so

	ciliumConfigs []ciliumConfig
	ciliumGlobal  string // what cilium-config has of the API servers of all nodes

	definitions []definition
	grids       []grid
	gridCounts  map[string]int
	services    []grid
	rights      []right

	failed []unread
	// missing are the kinds that could not be read.
	missing map[string]bool
}

// knows reports whether all of these kinds were read.
func (c *Cluster) knows(kinds ...string) bool {
	return !slices.ContainsFunc(kinds, func(kind string) bool { return c.missing[kind] })
}

// running are the workloads that run a program.
func (c *Cluster) running(program Program) []*workload {
	var found []*workload
	for i := range c.workloads {
		if c.workloads[i].program == program {
			found = append(found, &c.workloads[i])
		}
	}
	return found
}

// installed are the workloads that run a program on edge nodes, or anywhere: not those of SuperEdge that give way to
// this project's, as docs/migrate.md has it.
func (c *Cluster) installed(program Program) []*workload {
	return slices.DeleteFunc(c.running(program), func(w *workload) bool {
		return w.avoidsEdge || (w.kind == kindDeployment && w.desired == 0 && w.namespace != system)
	})
}

// byNode are the pods of a program by node, without those that are ending.
func (c *Cluster) byNode(program Program) map[string][]*pod {
	found := map[string][]*pod{}
	for i := range c.pods {
		if p := &c.pods[i]; p.program == program && !p.ending && p.node != "" {
			found[p.node] = append(found[p.node], p)
		}
	}
	return found
}
