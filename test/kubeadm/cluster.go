package kubeadm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/netns"
)

// Options say what a cluster is made of.
type Options struct {
	// Bin is the directory with components, pod, image, containerd, containerd-shim-runc-v2 and ctr.
	Bin string
	// Program runs RunPowerOn and RunMachine as the commands PowerOn and Machine.
	Program string
	// Distribution makes the cluster of nodes that are on; without one kubeadm does.
	Distribution *Distribution
	// Images are archives that every node imports beside those of Kubernetes, which are made.
	Images []string
	// Nodes are the names, the control plane's first.
	Nodes []string
	// Progress, if set, is called with what has been done, and how long it took.
	Progress func(what string, took time.Duration)
}

// Distribution is a way to make a cluster of nodes that are on, other than kubeadm.
type Distribution struct {
	// Name is what the progress calls it.
	Name string
	// Links are further names of the program components in the nodes' PATH.
	Links []string
	// Scripts are further programs in the nodes' PATH, by name.
	Scripts map[string]string
	// Runtime is the path of the socket of the nodes' containerd.
	Runtime string
	// Make starts Kubernetes on all nodes, and calls Connect. It does not wait until nodes are ready.
	Make func(ctx context.Context, c *Cluster) error
}

// Cluster is a cluster that kubeadm, or another distribution, has made.
type Cluster struct {
	options Options
	id, dir string
	bridge  *netns.Namespace
	nodes   []*Node
	relay   *cluster.Relay
	config  *rest.Config
	client  kubernetes.Interface
}

// Start makes a cluster and waits until all nodes are ready, and what they need for Services; see awaitReady. ctx
// limits only the start.
func Start(ctx context.Context, options Options) (_ *Cluster, err error) {
	if err := removeLeftovers(); err != nil {
		return nil, err
	}
	id, err := cluster.NewID()
	if err != nil {
		return nil, err
	}
	c := &Cluster{options: options, id: id, dir: filepath.Join(os.TempDir(), id)}
	for index, name := range options.Nodes {
		c.nodes = append(c.nodes, &Node{cluster: c, name: name, index: index, disk: filepath.Join(c.dir, name)})
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.Stop())
		}
	}()
	begin := time.Now()
	for _, step := range c.steps() {
		before := time.Now()
		if err := step.do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.what, err)
		}
		c.progress(step.what, time.Since(before))
	}
	c.progress("all of it", time.Since(begin))
	return c, nil
}

// step is a part of the start.
type step struct {
	what string
	do   func(context.Context) error
}

func (c *Cluster) steps() []step {
	if d := c.options.Distribution; d != nil {
		return []step{
			{"nodes are on", c.powerOn},
			{d.Name + " starts", func(ctx context.Context) error { return d.Make(ctx, c) }},
			{"containerd answers", c.awaitRuntime},
			{"images are made and imported", c.importImages},
			{"nodes are ready", c.awaitReady},
		}
	}
	return []step{
		{"nodes are on", c.powerOn},
		{"containerd answers", c.awaitRuntime},
		{"images are made and imported", c.importImages},
		{"kubeadm init", c.initialize},
		{"kubeadm join", c.join},
		{"nodes are ready", c.awaitReady},
	}
}

func (c *Cluster) progress(what string, took time.Duration) {
	if c.options.Progress != nil {
		c.options.Progress(what, took)
	}
}

// removeLeftovers removes what the kernel keeps of clusters whose program was killed.
func removeLeftovers() error {
	if _, err := cluster.RemoveLeftovers(); err != nil {
		return err
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		entries, err := os.ReadDir(filepath.Join(cgroups, hierarchy))
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if cluster.Abandoned(entry.Name()) {
				if err := removeCgroup(filepath.Join(cgroups, hierarchy, entry.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Stop ends the cluster and removes everything that belonged to it.
func (c *Cluster) Stop() error {
	if c.relay != nil {
		c.relay.Close()
	}
	var failures []error
	for _, node := range c.nodes {
		failures = append(failures, node.PowerCut())
	}
	if c.bridge != nil {
		failures = append(failures, c.bridge.Close())
	}
	return errors.Join(append(failures, os.RemoveAll(c.dir))...)
}

// powerOn makes the nodes and starts them.
func (c *Cluster) powerOn(_ context.Context) error {
	if err := c.installPrograms(); err != nil {
		return err
	}
	var err error
	if c.bridge, err = createBridge(c.id, c.dual()); err != nil {
		return err
	}
	for _, node := range c.nodes {
		if err := node.makeDisk(); err != nil {
			return fmt.Errorf("making the disk of %s: %w", node.name, err)
		}
		if err := node.PowerOn(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) awaitRuntime(ctx context.Context) error {
	for _, node := range c.nodes {
		err := poll(ctx, time.Minute, func() error {
			_, err := node.Run(ctx, "ctr", "version")
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// installPrograms makes the directory that is /opt/bin on all nodes. Those of Kubernetes are one program, which goes by
// the name that it is called by.
func (c *Cluster) installPrograms() error {
	bin := filepath.Join(c.dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil { //nolint:gosec // programs
		return err
	}
	for _, name := range []string{"components", "containerd", "containerd-shim-runc-v2", "ctr"} {
		from := filepath.Join(c.options.Bin, name)
		if err := os.Link(from, filepath.Join(bin, name)); err != nil { // the file system may be another one
			if err := copyFile(from, filepath.Join(bin, name)); err != nil {
				return err
			}
		}
	}
	links := []string{"kubeadm", "kubelet", "kubectl"}
	if d := c.options.Distribution; d != nil {
		links = append(links, d.Links...)
		for name, script := range d.Scripts {
			if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil { //nolint:gosec // a program
				return err
			}
		}
	}
	for _, name := range links {
		if err := os.Symlink("components", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// importImages imports the archives on every node.
func (c *Cluster) importImages(ctx context.Context) error {
	archive := filepath.Join(c.dir, "images.tar")
	if err := MakeImages(ctx, c.options.Bin, archive); err != nil {
		return err
	}
	defer os.Remove(archive)
	for _, node := range c.nodes {
		for _, archive := range append([]string{archive}, c.options.Images...) {
			if err := node.Import(ctx, archive); err != nil {
				return err
			}
		}
	}
	return nil
}

// Import imports an archive of images on the node, as an operator does where there is no registry.
func (n *Node) Import(ctx context.Context, archive string) error {
	inside := filepath.Join("/var/tmp", filepath.Base(archive))
	outside := filepath.Join(n.disk, inside)
	if err := copyFile(archive, outside); err != nil {
		return err
	}
	defer os.Remove(outside)
	_, err := n.Run(ctx, "ctr", "-n", "k8s.io", "images", "import", inside)
	return err
}

// token is what nodes join with. Nobody but they can reach this cluster.
const token = "abcdef.0123456789abcdef"

func (c *Cluster) initialize(ctx context.Context) error {
	node := c.ControlPlane()
	version, err := node.Run(ctx, "kubeadm", "version", "-o", "short")
	if err != nil {
		return err
	}
	config := Configuration(node, strings.TrimSpace(version))
	config = strings.Replace(config, "kind: InitConfiguration\n",
		"kind: InitConfiguration\nbootstrapTokens: [{token: "+token+"}]\n", 1)
	if err := node.WriteFile("/etc/kubeadm.yaml", config); err != nil {
		return err
	}
	if _, err := node.Run(ctx, "kubeadm", "init", "--config=/etc/kubeadm.yaml"); err != nil {
		return err
	}
	return c.Connect(ctx, "/etc/kubernetes/admin.conf")
}

// Connect makes the client, and the kubeconfig for programs on the host, of this kubeconfig of the control
// plane's node:
// through a relay, as the nodes' network is not the host's.
func (c *Cluster) Connect(ctx context.Context, kubeconfig string) error {
	data, err := c.ControlPlane().ReadFile(kubeconfig)
	if err != nil {
		return err
	}
	admin, err := clientcmd.Load(data)
	if err != nil {
		return err
	}
	c.relay, err = cluster.StartRelay(ctx, func(ctx context.Context) (net.Conn, error) {
		return c.bridge.DialContext(ctx, "tcp", c.ControlPlane().Address()+":6443")
	})
	if err != nil {
		return err
	}
	for _, server := range admin.Clusters {
		server.Server = "https://" + c.relay.Address()
	}
	if err := clientcmd.WriteToFile(*admin, c.Kubeconfig()); err != nil {
		return err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig()); err != nil {
		return err
	}
	c.config.QPS = -1
	c.client, err = kubernetes.NewForConfig(c.config)
	return err
}

// join joins all workers at once.
func (c *Cluster) join(ctx context.Context) error {
	results := make(chan error)
	for _, node := range c.Workers() {
		go func() {
			if err := node.WriteFile("/etc/kubeadm.yaml", joinConfig(node, c.ControlPlane(), token)); err != nil {
				results <- err
				return
			}
			_, err := node.Run(ctx, "kubeadm", "join", "--config=/etc/kubeadm.yaml")
			results <- err
		}()
	}
	failures := make([]error, 0, len(c.Workers()))
	for range c.Workers() {
		failures = append(failures, <-results)
	}
	return errors.Join(failures...)
}

// awaitReady waits until every node and all pods that kubeadm made are ready, but CoreDNS: what it asked
// before kube-proxy
// had written rules it asks again after half a minute, and nothing here needs it before that.
func (c *Cluster) awaitReady(ctx context.Context) error {
	return poll(ctx, 3*time.Minute, func() error {
		for _, node := range c.nodes {
			if err := c.NodeReady(ctx, node.name); err != nil {
				return err
			}
		}
		if c.options.Distribution != nil {
			return nil // it has no pods of its own
		}
		return c.PodsReady(ctx, "kube-system", "k8s-app!=kube-dns")
	})
}

// ControlPlane is the node of the control plane.
func (c *Cluster) ControlPlane() *Node { return c.nodes[0] }

// Workers are the other nodes.
func (c *Cluster) Workers() []*Node { return c.nodes[1:] }

// Node is the node with this name. It must exist.
func (c *Cluster) Node(name string) *Node {
	for _, node := range c.nodes {
		if node.name == name {
			return node
		}
	}
	panic("there is no node " + name)
}

// Client is an administrator's.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig is an administrator's, for programs on the host.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "kubeconfig") }

// Dir has the nodes' disks, with their logs in var/log.
func (c *Cluster) Dir() string { return c.dir }

// WriteFile writes a file below /etc, /var or /opt of the node.
func (n *Node) WriteFile(name, content string) error {
	file := filepath.Join(n.disk, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // as on any node
		return err
	}
	return os.WriteFile(file, []byte(content), 0o600)
}

// ReadFile reads a file below /etc, /var or /opt of the node.
func (n *Node) ReadFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(n.disk, name)) //nolint:gosec // what the caller says
}
