package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ProxyMode is a value of kube-proxy's --proxy-mode.
type ProxyMode string

// The proxy modes that work in a network namespace.
const (
	NFTables ProxyMode = "nftables"
	IPTables ProxyMode = "iptables"
)

// Protocol is how kube-proxy's informers get their objects.
type Protocol string

const (
	// WatchList is one streaming watch that begins with the existing objects, the default since
	// Kubernetes 1.35.
	WatchList Protocol = "watchlist"
	// ListThenWatch is the classic LIST followed by a WATCH.
	ListThenWatch Protocol = "list-then-watch"
	// Unasked is whatever kube-proxy does when no flag tells it. Those before 1.30 have no such flag.
	Unasked Protocol = "unasked"
)

// PatientWithNodes are ControllerManagerArgs with which a node is called lost after 10 minutes. kwok, which is starved
// on a busy machine, does not make pods ready again that were called not ready with their node.
var PatientWithNodes = []string{"--node-monitor-grace-period=10m"}

// Options say what Start starts. Only Components is required.
type Options struct {
	// Components is the path of the binary built from cmd/components.
	Components string
	// Wrapper is the path of application-grid-wrapper. If it is empty every kube-proxy talks to
	// kube-apiserver directly.
	Wrapper string
	// WrapperArgs are given to every wrapper after the arguments that the cluster sets.
	WrapperArgs []string

	// WrapperTLS lets every wrapper serve TLS, with the certificate of kube-apiserver. Clients that know no more
	// than a kubeconfig send credentials over TLS only.
	WrapperTLS bool

	// Hub is the path of application-grid-hub. If it is set, it runs behind kube-apiserver's aggregation.
	Hub string
	// HubLater leaves it to StartHub to start it.
	HubLater bool
	// HubReplicas is how many of it run. Default 1.
	HubReplicas int
	// HubInterposed puts an Interposer between every replica and kube-apiserver.
	HubInterposed bool

	// DNSDaemon is the path of statefulset-grid-daemon. If it is set, every node that has a wrapper runs it and
	// CoreDNS. Not with APIViewOnly, where CoreDNS would have no port.
	DNSDaemon string
	// DNSFromAPIServer has the daemons ask kube-apiserver, with the rights of manifests/, rather than their wrappers.
	DNSFromAPIServer bool
	// DualStack gives nodes IPv6 addresses, and lets Services and pods have them too: those of a pod's status that are
	// in the node's range are served.
	DualStack bool

	// Nodes are the nodes to begin with; more can be added later. Nodes that only the API knows, created with
	// Cluster.Client, do not belong here.
	Nodes []NodeSpec
	// ProxyMode is the mode of every kube-proxy whose NodeSpec has none. Default NFTables.
	ProxyMode ProxyMode
	// Protocol is the protocol of every kube-proxy whose NodeSpec has none. Default WatchList.
	Protocol Protocol

	// ControllerManagerArgs are given to kube-controller-manager after the arguments that the cluster sets.
	ControllerManagerArgs []string
	// Kubelets has kube-apiserver know kubelets by certificates of the cluster's CA, and let each see what is of its
	// own pods (the Node authorizer), as kubeadm has it. See KubeletKubeconfig.
	Kubelets bool
	// NoKwok leaves out kwok: pods stay Pending.
	NoKwok bool
	// NoScheduler leaves out kube-scheduler: pods need spec.nodeName.
	NoScheduler bool
	// APIViewOnly runs everything on this machine's loopback, without namespaces, kube-proxy and echo
	// servers. It needs no root.
	APIViewOnly bool
	// AuditLog makes kube-apiserver write every request, at level Metadata, to the file audit.log in the
	// directory.
	AuditLog bool

	// Dir is the directory for data, credentials and logs. It is created if it is missing, and stays. If it is
	// empty a temporary one is made, which Stop removes.
	Dir string
	// Progress receives a line for every step. Default: nobody.
	Progress io.Writer
	// ReadyTimeout limits the time that one component has to become ready. Default 90 s.
	ReadyTimeout time.Duration
}

// NodeSpec describes a node with a data plane.
type NodeSpec struct {
	// Name is the name of the Node object.
	Name string
	// Labels are its labels, for example its site.
	Labels map[string]string
	// ProxyMode and Protocol, if set, take the place of the cluster's.
	ProxyMode ProxyMode
	Protocol  Protocol
	// KubeProxyBinary, if set, is the path of the kube-proxy to run in place of the one among the components: one
	// of another release.
	KubeProxyBinary string
	// Direct lets this node's kube-proxy talk to kube-apiserver directly; the node has no wrapper.
	Direct bool
	// Configured gives this node's kube-proxy a configuration file, whose clientConnection.kubeconfig leads to the
	// wrapper, in place of flags and --master.
	Configured bool
	// Interposed puts an Interposer between this node's wrapper and kube-apiserver.
	Interposed bool
	// Lite, with Interposed, lets that stand in for SuperEdge's lite-apiserver from the start.
	Lite bool
	// LiteAPIServer, if set, is the path of lite-apiserver, which the node runs for a kubelet that the test plays. It
	// needs Options.Kubelets.
	LiteAPIServer string
	// Runtime gives the node a container runtime that says which pods it runs, and which its wrapper asks (--cri).
	Runtime bool
	// WrapperArgs are added to those of the cluster.
	WrapperArgs []string
	// StateDirSize, if not 0, gives the wrapper's state directory a file system of its own of so many bytes.
	StateDirSize int64
}

func (o *Options) complete() error {
	if o.ProxyMode == "" {
		o.ProxyMode = NFTables
	}
	if o.Protocol == "" {
		o.Protocol = WatchList
	}
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 90 * time.Second
	}
	if o.HubReplicas == 0 {
		o.HubReplicas = 1
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Components == "" {
		return errors.New("no components binary given: build ./cmd/components and set Options.Components")
	}
	for name, path := range map[string]string{"components": o.Components, "application-grid-wrapper": o.Wrapper,
		"application-grid-hub": o.Hub, "statefulset-grid-daemon": o.DNSDaemon} {
		if path == "" {
			continue // it is not to run
		}
		if err := executable(path); err != nil {
			return fmt.Errorf("%s binary: %w", name, err)
		}
	}
	seen := map[string]bool{}
	for i := range o.Nodes {
		if err := o.completeNode(&o.Nodes[i]); err != nil {
			return err
		}
		if seen[o.Nodes[i].Name] {
			return fmt.Errorf("node %s is given twice", o.Nodes[i].Name)
		}
		seen[o.Nodes[i].Name] = true
	}
	return nil
}

// completeNode sets what the spec leaves to the cluster, and checks the rest.
func (o *Options) completeNode(spec *NodeSpec) error {
	if problems := validation.IsDNS1123Subdomain(spec.Name); len(problems) > 0 {
		return fmt.Errorf("node name %q: %s", spec.Name, problems[0])
	}
	if spec.ProxyMode == "" {
		spec.ProxyMode = o.ProxyMode
	}
	if spec.Protocol == "" {
		spec.Protocol = o.Protocol
	}
	if spec.ProxyMode != NFTables && spec.ProxyMode != IPTables {
		return fmt.Errorf("node %s: proxy mode %q is not one of %s, %s", spec.Name, spec.ProxyMode, NFTables, IPTables)
	}
	if spec.Protocol != WatchList && spec.Protocol != ListThenWatch && spec.Protocol != Unasked {
		return fmt.Errorf("node %s: protocol %q is not one of %s, %s, %s", spec.Name, spec.Protocol, WatchList,
			ListThenWatch, Unasked)
	}
	if spec.KubeProxyBinary != "" {
		if err := executable(spec.KubeProxyBinary); err != nil {
			return fmt.Errorf("node %s: kube-proxy: %w", spec.Name, err)
		}
	}
	if o.Wrapper == "" {
		spec.Direct = true
	}
	if spec.Direct && (spec.Interposed || spec.StateDirSize != 0) {
		return fmt.Errorf("node %s: an interposer and a state directory belong to a wrapper, and it has none",
			spec.Name)
	}
	return nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not an executable file", path)
	}
	return nil
}
