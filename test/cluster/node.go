package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
	"github.com/application-grid/application-grid/test/netns"
)

const (
	// wrapperPort is the wrapper's default port.
	wrapperPort = 51006
	// proxyHealthPort and proxyMetricsPort are kube-proxy's defaults.
	proxyHealthPort  = 10256
	proxyMetricsPort = 10249
)

// Node is a node with a data plane (with APIViewOnly: with a wrapper only).
type Node struct {
	// Spec is how the node was made, with the cluster's defaults filled in.
	Spec NodeSpec
	// KubeProxy is nil with APIViewOnly, Wrapper if the node is direct.
	KubeProxy, Wrapper *Component
	// LiteAPIServer is set if the node's spec asks for it.
	LiteAPIServer *Component
	// DNSDaemon, CoreDNS and HostsFile are set if the cluster has Options.DNSDaemon.
	DNSDaemon, CoreDNS *Component
	HostsFile          string
	// StateDir is the wrapper's state directory. It outlives the wrapper, as a disk does, and goes with the node.
	StateDir string
	// Interposer is set if the node's spec asks for one.
	Interposer *Interposer
	// Lite is set if the Interposer stands in for a lite-apiserver.
	Lite *Lite
	// Address is the node's internal address and PodCIDR the range of its pods' addresses.
	Address, PodCIDR string

	cluster   *Cluster
	index     int
	namespace *netns.Namespace // nil with APIViewOnly
	// runtime is set if the node's spec asks for one. unpowered are the pods that PowerOff has ended; newAddresses
	// counts the addresses that PowerOn has given.
	runtime      *containerRuntime
	unpowered    []*corev1.Pod
	newAddresses int
	// wrapperAddress is host:port in the node's namespace.
	wrapperAddress string
}

// AddNode creates a node: its namespace, its Node object, the wrapper and kube-proxy. It returns as soon as
// all of them are ready. If it fails nothing of the node stays.
func (c *Cluster) AddNode(ctx context.Context, spec NodeSpec) (*Node, error) {
	if err := c.options.completeNode(&spec); err != nil {
		return nil, err
	}
	node, err := c.reserveNode(spec)
	if err != nil {
		return nil, err
	}
	if err := c.startNode(ctx, node); err != nil {
		return nil, err
	}
	return node, nil
}

// reserveNode reserves the node's name and the lowest free index.
func (c *Cluster) reserveNode(spec NodeSpec) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, exists := c.nodes[spec.Name]; exists {
		return nil, fmt.Errorf("node %s exists already", spec.Name)
	}
	index := 0
	for c.taken[index] {
		index++
	}
	if index >= maxNodes {
		return nil, fmt.Errorf("node %s: there are addresses for %d nodes only", spec.Name, maxNodes)
	}
	c.taken[index] = true
	c.nodes[spec.Name] = nil
	return &Node{Spec: spec, cluster: c, index: index, Address: nodeAddress(index), PodCIDR: podCIDR(index)}, nil
}

// enterNode makes a reserved node visible to Node and Nodes, and with them to the echo servers.
func (c *Cluster) enterNode(node *Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[node.Spec.Name] = node
}

// startNode makes a reserved node. If that fails the node is removed and free again.
func (c *Cluster) startNode(ctx context.Context, node *Node) error {
	if err := c.populateNode(ctx, node); err != nil {
		return errors.Join(fmt.Errorf("node %s: %w", node.Spec.Name, err), c.stopNode(node))
	}
	return nil
}

func (c *Cluster) populateNode(ctx context.Context, node *Node) error {
	var err error
	thread := c.thread
	node.wrapperAddress = local(wrapperPort)
	if c.options.APIViewOnly {
		port, err := freeport.Find(ctx)
		if err != nil {
			return err
		}
		node.wrapperAddress = local(port)
	} else {
		if node.namespace, err = c.linkNode(node.Spec.Name, node.index); err != nil {
			return err
		}
		thread = node.namespace.Thread
	}
	c.enterNode(node)
	if err := c.createNodeObject(ctx, node); err != nil {
		return err
	}
	if node.Spec.Runtime {
		node.runtime = newContainerRuntime(node)
		if err := node.runtime.start(ctx); err != nil {
			return err
		}
	}
	if node.Spec.LiteAPIServer != "" {
		if err := c.startLiteAPIServer(ctx, node, thread); err != nil {
			return err
		}
	}
	if !node.Spec.Direct {
		if err := c.startWrapper(ctx, node, thread); err != nil {
			return err
		}
	}
	if c.options.APIViewOnly {
		return nil
	}
	if err := c.startKubeProxy(ctx, node); err != nil {
		return err
	}
	if c.options.DNSDaemon == "" || node.Spec.Direct {
		return nil
	}
	return c.startDNS(ctx, node, thread)
}

// apiServerURL is how a node reaches kube-apiserver.
func (c *Cluster) apiServerURL() string {
	if c.options.APIViewOnly {
		return "https://" + local(c.ports.apiserver)
	}
	return fmt.Sprintf("https://%s:%d", bridgeAddress, c.ports.apiserver)
}

func (c *Cluster) startWrapper(ctx context.Context, node *Node, thread *netns.Thread) error {
	server := c.apiServerURL()
	if node.Spec.Interposed {
		var err error
		if node.Interposer, err = c.Interpose(ctx); err != nil {
			return err
		}
		server = node.Interposer.URL()
		if node.Spec.Lite {
			node.Lite = newLite(node.Interposer.proxy)
			node.Interposer.Behave(node.Lite.Online())
		}
	}
	kubeconfig, err := c.credentials.writeKubeconfig(node.wrapperKubeconfig(), RoleWrapper, server)
	if err != nil {
		return err
	}
	if err := c.makeStateDir(node); err != nil {
		return err
	}
	args := append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname=" + node.Spec.Name, "--bind-address=" + node.wrapperAddress,
		"--state-dir=" + node.StateDir,
	}, slices.Concat(c.options.WrapperArgs, node.Spec.WrapperArgs)...)
	if node.runtime != nil {
		args = append(args, "--cri=unix://"+node.runtime.socket)
	}
	if c.options.WrapperTLS {
		args = append(args, "--insecure=false", "--cert-file="+c.credentials.file("apiserver.crt"),
			"--key-file="+c.credentials.file("apiserver.key"))
	}
	ready := func(ctx context.Context) error {
		return expectOK(ctx, newClient(node.dial(), c.tlsConfig(true)), node.WrapperURL()+"/readyz")
	}
	node.Wrapper = c.program("application-grid-wrapper@"+node.Spec.Name, c.options.Wrapper, thread, ready, args...)
	return c.startStep(ctx, node.Wrapper)
}

func (n *Node) wrapperKubeconfig() string { return "wrapper-" + n.Spec.Name + ".kubeconfig" }

// GiveWrapperToken writes the kubeconfig of the node's wrapper again, with this token in it. The wrapper is not
// restarted.
func (n *Node) GiveWrapperToken(token string) error {
	server := n.cluster.apiServerURL()
	if n.Interposer != nil {
		server = n.Interposer.URL()
	}
	_, err := n.cluster.credentials.writeKubeconfigWith(n.wrapperKubeconfig(), RoleWrapper, server, token)
	return err
}

func (c *Cluster) startKubeProxy(ctx context.Context, node *Node) error {
	server := c.apiServerURL()
	if node.Spec.Configured {
		server = node.WrapperURL()
	}
	kubeconfig, err := c.credentials.writeKubeconfig("kube-proxy-"+node.Spec.Name+".kubeconfig", RoleKubeProxy, server)
	if err != nil {
		return err
	}
	args := []string{
		"--kubeconfig=" + kubeconfig,
		"--hostname-override=" + node.Spec.Name,
		"--proxy-mode=" + string(node.Spec.ProxyMode),
		"--cluster-cidr=" + c.podNetworks(),
		"--conntrack-max-per-core=0", // the limit is the machine's, not the namespace's
		"--healthz-bind-address=" + local(proxyHealthPort),
		"--metrics-bind-address=" + local(proxyMetricsPort),
	}
	if !node.Spec.Direct {
		args = append(args, "--master="+node.WrapperURL())
	}
	switch {
	case node.Spec.Protocol == ListThenWatch:
		args = append(args, "--feature-gates=WatchListClient=false")
	case node.Spec.Protocol == WatchList && node.Spec.KubeProxyBinary != "": // the components' has it on by itself
		args = append(args, "--feature-gates=WatchListClient=true")
	}
	if node.Spec.Configured {
		file := filepath.Join(c.dir, "kube-proxy-"+node.Spec.Name+".yaml")
		if err := os.WriteFile(file, []byte(kubeProxyConfiguration(node, kubeconfig)), 0o600); err != nil {
			return fmt.Errorf("writing kube-proxy's configuration: %w", err)
		}
		args = []string{"--config=" + file, "--hostname-override=" + node.Spec.Name}
	}
	name := "kube-proxy@" + node.Spec.Name
	if node.Spec.KubeProxyBinary != "" {
		node.KubeProxy = c.program(name, node.Spec.KubeProxyBinary, node.namespace.Thread, node.rulesProgrammed,
			args...)
	} else {
		node.KubeProxy = c.component(name, node.namespace.Thread, node.rulesProgrammed, args...)
	}
	return c.startStep(ctx, node.KubeProxy)
}

// kubeProxyConfiguration says what the flags of startKubeProxy do.
func kubeProxyConfiguration(node *Node, kubeconfig string) string {
	return fmt.Sprintf(`apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %q}
mode: %s
clusterCIDR: %s
conntrack: {maxPerCore: 0}
healthzBindAddress: %s
metricsBindAddress: %s
featureGates: {WatchListClient: %t}
`, kubeconfig, node.Spec.ProxyMode, node.cluster.podNetworks(), local(proxyHealthPort), local(proxyMetricsPort), node.Spec.Protocol == WatchList)
}

// rulesProgrammed asks kube-proxy's healthz when it last wrote rules: its status is 200 also before the first
// time.
func (n *Node) rulesProgrammed(ctx context.Context) error {
	reply, err := n.Get(ctx, "http://"+local(proxyHealthPort)+"/healthz")
	if err != nil {
		return err
	}
	var health struct {
		LastUpdated string `json:"lastUpdated"`
	}
	if err := json.Unmarshal([]byte(reply.Body), &health); err != nil {
		return fmt.Errorf("reading kube-proxy's healthz: %w", err)
	}
	updated, err := time.Parse(time.RFC3339Nano, health.LastUpdated)
	if err != nil {
		// Old kube-proxies (1.29) write the time in another form, and say the present one before the first rules.
		return n.rulesCounted(ctx)
	}
	if reply.Status != http.StatusOK || updated.IsZero() {
		return fmt.Errorf("no rules programmed yet: status %d: %s", reply.Status, reply.Body)
	}
	return nil
}

// lastRules is kube-proxy's metric of when it last wrote rules, 0 before the first time.
var lastRules = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds(?:\{.*\})? [1-9]`)

// rulesCounted asks kube-proxy's metrics whether it has written rules.
func (n *Node) rulesCounted(ctx context.Context) error {
	reply, err := n.Get(ctx, "http://"+local(proxyMetricsPort)+"/metrics")
	if err != nil {
		return err
	}
	if reply.Status != http.StatusOK || !lastRules.MatchString(reply.Body) {
		return fmt.Errorf("no rules programmed yet: kube-proxy's metrics, status %d, do not say when", reply.Status)
	}
	return nil
}

// object is the Node as it is created, without status.
func (n *Node) object() *corev1.Node {
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        n.Spec.Name,
			Labels:      map[string]string{corev1.LabelHostname: n.Spec.Name, corev1.LabelOSStable: "linux"},
			Annotations: map[string]string{KwokAnnotation: "fake"},
		},
		Spec: corev1.NodeSpec{PodCIDR: n.PodCIDR, PodCIDRs: []string{n.PodCIDR}},
	}
	for key, value := range n.Spec.Labels {
		object.Labels[key] = value
	}
	return object
}

// createNodeObject creates the Node as its kubelet would have, and waits until pods can be scheduled to it.
func (c *Cluster) createNodeObject(ctx context.Context, node *Node) error {
	if _, err := c.client.CoreV1().Nodes().Create(ctx, node.object(), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the Node: %w", err)
	}
	resources := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("256Gi"),
		corev1.ResourcePods:   resource.MustParse("250"),
	}
	addresses := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: node.Address},
		{Type: corev1.NodeHostName, Address: node.Spec.Name},
	}
	if c.options.DualStack {
		addresses = append(addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: nodeAddress6(node.index)})
	}
	now := metav1.Now()
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Capacity:    resources,
		Allocatable: resources,
		Phase:       corev1.NodeRunning, // kwok's heartbeat stage asks for it
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Registered",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}},
		Addresses: addresses,
	}})
	if err != nil {
		return fmt.Errorf("encoding the Node's status: %w", err)
	}
	// A patch, not an update: the node lifecycle controller and kwok write the object as well.
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, node.Spec.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("setting the Node's status: %w", err)
	}
	return c.poll(ctx, func(ctx context.Context) error { return c.nodeReady(ctx, node.Spec.Name) })
}

// nodeReady asks whether the node is Ready and takes pods.
func (c *Cluster) nodeReady(ctx context.Context, name string) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, taint := range node.Spec.Taints {
		return fmt.Errorf("node %s has taint %s", name, taint.Key)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("node %s is not Ready", name)
}

// RemoveNode deletes the Node object and ends everything on the node.
func (c *Cluster) RemoveNode(ctx context.Context, name string) error {
	node, err := c.Node(name)
	if err != nil {
		return err
	}
	// kube-proxy ends by itself as soon as its Node is gone; here that is asked for.
	err = c.stopNode(node)
	deletion := c.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(deletion) {
		deletion = nil
	}
	return errors.Join(err, deletion)
}

// stopNode ends the node's processes and removes its network. The Node object stays.
func (c *Cluster) stopNode(node *Node) error {
	for _, component := range node.components() {
		component.Kill()
	}
	err := node.removeStateDir()
	if node.runtime != nil {
		node.runtime.stop()
	}
	if node.Interposer != nil {
		err = errors.Join(err, node.Interposer.Close())
	}
	if node.namespace != nil {
		if c.echo != nil {
			c.echo.leave(node)
		}
		err = errors.Join(err, node.RestoreLink(context.Background()), c.unlinkNode(node.index), node.namespace.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.nodes, node.Spec.Name)
	delete(c.taken, node.index)
	return err
}

// Node returns a node by its name.
func (c *Cluster) Node(name string) (*Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	node := c.nodes[name]
	if node == nil {
		return nil, fmt.Errorf("there is no node %s with a data plane", name)
	}
	return node, nil
}

// Nodes returns the nodes in the order of their names.
func (c *Cluster) Nodes() []*Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes := make([]*Node, 0, len(c.nodes))
	for _, node := range c.nodes {
		if node != nil {
			nodes = append(nodes, node)
		}
	}
	sort.Slice(nodes, func(i, j int) bool { return nodes[i].Spec.Name < nodes[j].Spec.Name })
	return nodes
}

// RelabelNode sets one label of a Node object, which need not have a data plane; an empty value removes it.
func (c *Cluster) RelabelNode(ctx context.Context, name, key, value string) error {
	var label any
	if value != "" {
		label = value
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: label}}})
	if err != nil {
		return fmt.Errorf("relabelling node %s: %w", name, err)
	}
	if _, err := c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("relabelling node %s: %w", name, err)
	}
	return nil
}

// Name is the node's name in the cluster.
func (n *Node) Name() string { return n.Spec.Name }

// Namespace is the name of the node's network namespace, for `ip netns exec`; empty with Options.APIViewOnly.
func (n *Node) Namespace() string {
	if n.namespace == nil {
		return ""
	}
	return n.namespace.Name()
}

// APIServerURL is kube-apiserver's URL in the node's namespace.
func (n *Node) APIServerURL() string { return n.cluster.apiServerURL() }

// WrapperURL is the wrapper's URL in the node's namespace.
func (n *Node) WrapperURL() string {
	if n.cluster.options.WrapperTLS {
		return "https://" + n.wrapperAddress
	}
	return "http://" + n.wrapperAddress
}

// WrapperConfig is a client configuration that goes through this node's wrapper as the role.
func (n *Node) WrapperConfig(role Role) *rest.Config {
	config := &rest.Config{
		Host:        n.WrapperURL(),
		BearerToken: n.cluster.Token(role),
		Dial:        n.dial(),
		QPS:         -1,
	}
	if n.cluster.options.WrapperTLS {
		config.CAData = n.cluster.credentials.caPEM
	}
	return config
}

func (n *Node) dial() dialer {
	if n.namespace == nil {
		return new(net.Dialer).DialContext
	}
	return n.namespace.DialContext
}

// PodAddress6 is the first IPv6 address that a pod of the node may have, with Options.DualStack.
func (n *Node) PodAddress6() string { return strings.TrimSuffix(podCIDR6(n.index), "/64") + "1" }

// Get requests a URL from the node's namespace on a new connection. The host of the URL must be an address.
func (n *Node) Get(ctx context.Context, url string) (*Reply, error) {
	return get(ctx, newClient(n.dial(), nil), url)
}

// Listen opens a TCP listener in the node's namespace.
func (n *Node) Listen(ctx context.Context, address string) (net.Listener, error) {
	if n.namespace == nil {
		return nil, fmt.Errorf("node %s has no namespace", n.Spec.Name)
	}
	return n.namespace.Listen(ctx, address)
}

// Start starts a command in the node's namespace, without waiting. It is killed when the node is removed.
func (n *Node) Start(cmd *exec.Cmd) error {
	if n.namespace == nil {
		return fmt.Errorf("node %s has no namespace", n.Spec.Name)
	}
	return n.namespace.Start(cmd)
}

// Run runs a program in the node's namespace and returns its output, of which the error has a copy.
func (n *Node) Run(ctx context.Context, name string, args ...string) (string, error) {
	if n.namespace == nil {
		return "", fmt.Errorf("node %s has no namespace", n.Spec.Name)
	}
	output, err := run(ctx, n.namespace.Thread, name, args...)
	if err != nil {
		return output, fmt.Errorf("node %s: %w", n.Spec.Name, err)
	}
	return output, nil
}

// run runs a program on a namespace's thread and returns its output, of which the error has a copy.
func run(ctx context.Context, thread *netns.Thread, name string, args ...string) (string, error) {
	var output strings.Builder
	cmd := exec.Command(name, args...) //nolint:gosec,noctx // what the caller says; ctx is heeded below
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := thread.Start(cmd); err != nil {
		return "", fmt.Errorf("starting %s: %w", name, err)
	}
	// Not exec.CommandContext: Start ran elsewhere, on the namespace's thread.
	stop := context.AfterFunc(ctx, func() {
		_ = cmd.Process.Kill() // it fails only if the process has ended already
	})
	defer stop()
	if err := cmd.Wait(); err != nil {
		return output.String(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, output.String())
	}
	return output.String(), nil
}

// Cluster is the cluster that the node belongs to.
func (n *Node) Cluster() *Cluster { return n.cluster }
