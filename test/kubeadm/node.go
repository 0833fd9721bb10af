package kubeadm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/netns"
)

// machinePath is the PATH on a node: first its own programs, then the host's.
const machinePath = "/opt/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Node is a machine of the cluster.
type Node struct {
	cluster *Cluster
	name    string
	index   int
	// disk is the directory with what the node keeps over a reboot.
	disk string

	// These are set while the node is on.
	namespace *netns.Namespace
	process   *exec.Cmd
	ended     chan struct{}
}

// Name is the node's name in the cluster.
func (n *Node) Name() string { return n.name }

// Address is the node's address.
func (n *Node) Address() string { return address(n.index) }

// dual reports whether pods, and Services that ask for it, have addresses of both families: in clusters of kubeadm.
func (c *Cluster) dual() bool { return c.options.Distribution == nil }

// addresses are the node's addresses, as the kubelet's --node-ip has them.
func (n *Node) addresses() string {
	if !n.cluster.dual() {
		return n.Address()
	}
	return n.Address() + "," + address6(n.index)
}

// SetPodFamilies gives pods that start on the node from now on addresses of both families, or of IPv4 only.
func (n *Node) SetPodFamilies(dual bool) error {
	return n.WriteFile(podNetworkFile, networkConfig(n.index, dual))
}

// Namespace is the name of the node's network namespace.
func (n *Node) Namespace() string { return n.cluster.id + "-" + n.name }

// log is where what a node says is written: its outer process, and process 1 before it has entered its root.
func (n *Node) log() string { return filepath.Join(n.cluster.dir, n.name+".log") }

// PowerOn starts the node. It does not wait for anything that runs on it.
func (n *Node) PowerOn() error {
	namespace, err := createUplink(n.cluster.bridge, n.Namespace(), n.index, len(n.cluster.nodes), n.cluster.dual())
	if err != nil {
		return err
	}
	log, err := os.OpenFile(n.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Join(err, namespace.Close())
	}
	defer log.Close()
	process := exec.Command(n.cluster.options.Program, PowerOn, n.disk, n.name) //nolint:gosec,noctx // it ends with the node
	process.Stdout, process.Stderr = log, log
	if err := namespace.Start(process); err != nil {
		return errors.Join(fmt.Errorf("starting node %s: %w", n.name, err), namespace.Close())
	}
	n.namespace, n.process, n.ended = namespace, process, make(chan struct{})
	go func() {
		defer close(n.ended)
		_ = process.Wait() // it is killed
	}()
	return nil
}

// PowerCut ends everything on the node at once, and takes its network with all rules in it. What it has written to its
// disk is all that it finds again.
func (n *Node) PowerCut() error {
	if n.process == nil {
		return nil
	}
	if err := n.process.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("node %s: %w", n.name, err)
	}
	<-n.ended
	n.process = nil
	// What is in the node's cgroups may still be ending; they are gone when all of it has ended.
	if err := removeCgroups(n.Namespace()); err != nil {
		return err
	}
	if err := n.namespace.Close(); err != nil {
		return err
	}
	return awaitNoPort(n.cluster.bridge, n.index)
}

// CutLink takes the node's link down; JoinLink brings it up again.
func (n *Node) CutLink() error {
	return setPort(n.cluster.bridge, n.index, (*netlink.Handle).LinkSetDown)
}

// JoinLink ends CutLink.
func (n *Node) JoinLink() error {
	return setPort(n.cluster.bridge, n.index, (*netlink.Handle).LinkSetUp)
}

// Get requests a URL from the node's network, on a new connection.
func (n *Node) Get(ctx context.Context, url string) (*cluster.Reply, error) {
	return cluster.Get(ctx, n.namespace.DialContext, url)
}

// DialContext opens a connection from the node's network.
func (n *Node) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return n.namespace.DialContext(ctx, network, address)
}

// Install copies a file of the host to a place below /etc, /var or /opt of the node.
func (n *Node) Install(file, name string) error {
	target := filepath.Join(n.disk, name)
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil { //nolint:gosec // as on any node
		return err
	}
	if err := copyFile(file, target+".new"); err != nil {
		return err
	}
	return os.Rename(target+".new", target) // also over a program that runs
}

// Run runs a command on the node, once that has booted, and returns what it printed. An error has that, too.
func (n *Node) Run(ctx context.Context, name string, args ...string) (string, error) {
	machine, err := n.awaitBoot(ctx)
	if err != nil {
		return "", err
	}
	enter := append([]string{"--target", strconv.Itoa(machine), "--mount", "--uts", "--ipc", "--net", "--pid",
		"--cgroup", "--", name}, args...)
	command := exec.CommandContext(ctx, "nsenter", enter...) //nolint:gosec // what the caller says
	command.Env = append(n.cluster.environment(), "HOME=/root")
	output, err := command.CombinedOutput()
	if err != nil {
		return string(output), fmt.Errorf("%s: %s %s: %w\n%s", n.name, name, strings.Join(args, " "), err, output)
	}
	return string(output), nil
}

// machine is process 1 of the node, as the host numbers it: the only child of the outer process.
func (n *Node) machine() (int, error) {
	if n.process == nil {
		return 0, fmt.Errorf("node %s is off", n.name)
	}
	pid := n.process.Process.Pid
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		data, err := os.ReadFile(task) //nolint:gosec // a file of the kernel
		if err != nil {
			continue // the thread has ended
		}
		if children := strings.Fields(string(data)); len(children) == 1 {
			return strconv.Atoi(children[0])
		}
	}
	return 0, fmt.Errorf("node %s has no process 1; see %s", n.name, n.log())
}

// bootPatience is how long process 1 of a node may take to enter its root, bootInterval how often that is looked at.
const (
	bootPatience = 30 * time.Second
	bootInterval = 20 * time.Millisecond
)

// awaitBoot waits until process 1 of the node has entered its root, and returns it.
func (n *Node) awaitBoot(ctx context.Context) (machine int, err error) {
	ctx, cancel := context.WithTimeout(ctx, bootPatience)
	defer cancel()
	for {
		if machine, err = n.machine(); err == nil {
			err = n.booted(machine)
		}
		if err == nil || n.process == nil {
			return machine, err
		}
		select {
		case <-ctx.Done():
			return 0, err
		case <-n.ended:
			return 0, err
		case <-time.After(bootInterval):
		}
	}
}

// booted is an error until process 1 of the node has entered its root. Before that, what runs beside it has the host's
// files, and sees the host's processes.
func (n *Node) booted(machine int) error {
	own, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", machine))
	if err != nil {
		return err
	}
	first, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/proc/1/cmdline", machine))
	if err == nil && !bytes.Equal(own, first) {
		err = fmt.Errorf("node %s has not entered its root yet", n.name)
	}
	return err
}

// Runtime connects to the node's containerd.
func (n *Node) Runtime() (*grpc.ClientConn, error) {
	machine, err := n.machine()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(fmt.Sprintf("unix:///proc/%d/root%s", machine, n.cluster.runtime()),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// runtime is the path of containerd's socket on the nodes.
func (c *Cluster) runtime() string {
	if d := c.options.Distribution; d != nil {
		return d.Runtime
	}
	return "/run/containerd/containerd.sock"
}

// environment is what commands on the nodes find: ctr reads the socket's path.
func (c *Cluster) environment() []string {
	return []string{"PATH=" + machinePath, "CONTAINERD_ADDRESS=" + c.runtime()}
}

// makeDisk makes the node's disk: what an installed node has before kubeadm comes.
func (n *Node) makeDisk() error {
	for _, dir := range []string{"etc/cni/net.d", "etc/containerd", "etc/kubernetes/manifests", "var/log", "var/tmp",
		"opt", "data", "usr/lib/modules", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(n.disk, dir), 0o755); err != nil { //nolint:gosec // as on any node
			return err
		}
	}
	// What the host's programs need to run.
	for _, name := range []string{"passwd", "group", "nsswitch.conf", "protocols", "services", "alternatives",
		"ld.so.cache", "ld.so.conf", "ld.so.conf.d"} {
		if output, err := exec.Command("cp", "-a", "/etc/"+name, filepath.Join(n.disk, "etc")).CombinedOutput(); err != nil { //nolint:gosec,noctx // literal
			return fmt.Errorf("copying /etc/%s: %w: %s", name, err, output)
		}
	}
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	for _, other := range n.cluster.nodes {
		fmt.Fprintf(&hosts, "%s %s\n", other.Address(), other.name)
	}
	files := map[string]string{
		"etc/hosts":       hosts.String(),
		"etc/hostname":    n.name + "\n",
		"etc/resolv.conf": "nameserver " + router + "\n", // nobody answers there
		"etc/machine-id":  fmt.Sprintf("%032x\n", n.index+1),
		podNetworkFile:    networkConfig(n.index, n.cluster.dual()),
	}
	if n.cluster.options.Distribution == nil {
		files["etc/containerd/config.toml"] = ContainerdConfig
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(n.disk, name), []byte(content), 0o644); err != nil { //nolint:gosec // as on any node
			return err
		}
	}
	return nil
}
