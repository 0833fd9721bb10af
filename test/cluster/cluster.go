package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/application-grid/application-grid/test/netns"
)

const (
	// controlPlaneKubeconfig reaches kube-apiserver from the control plane's loopback, adminKubeconfigFile
	// from the host.
	controlPlaneKubeconfig = "control-plane.kubeconfig"
	adminKubeconfigFile    = "admin.kubeconfig"
)

// Cluster is a running cluster. Its methods may be called from any goroutine, except that Stop must be the
// last one.
type Cluster struct {
	// Etcd to Kwok are the control plane's components; Scheduler and Kwok are nil if Options leave them out.
	Etcd, APIServer, ControllerManager, Scheduler, Kwok *Component
	// Hubs are the replicas of the hub, and HubFront is what is before them, if Options have it.
	Hubs     []*HubReplica
	HubFront *HubFront

	options     Options
	id          string
	dir         string
	credentials *credentials
	ports       controlPlanePorts
	// namespace is the control plane's; nil with APIViewOnly.
	namespace *netns.Namespace
	// thread is where the control plane is started: namespace's, or one of the host.
	thread *netns.Thread
	// dial opens connections on the control plane's side.
	dial   dialer
	etcd   *http.Client
	relay  *Relay
	client *kubernetes.Clientset
	config *rest.Config
	echo   *echo
	failed chan error

	progressMu sync.Mutex // lines of components that start at the same time

	mu sync.Mutex
	// nodes has a nil for a name that is reserved; guarded by mu.
	nodes map[string]*Node
	// taken are the indexes of nodes, from which their addresses follow; guarded by mu.
	taken map[int]bool
}

// Start starts a cluster and waits until its nodes are Ready and every kube-proxy has programmed its rules. If
// it fails, or ctx ends, nothing stays behind; the error contains the end of the log of the component that
// failed. Once Start has returned, ctx has no further meaning.
func Start(ctx context.Context, options Options) (*Cluster, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	removed, err := RemoveLeftovers()
	c := &Cluster{options: options, failed: make(chan error, 1), nodes: map[string]*Node{}, taken: map[int]bool{}}
	if len(removed) > 0 {
		c.progress("removed leftovers of clusters whose supervisor is gone: %v", removed)
	}
	if err != nil { // they are in nobody's way
		c.progress("some leftovers could not be removed: %v", err)
	}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	begin := time.Now()
	if err := c.prepare(ctx); err != nil {
		return err
	}
	if err := c.startControlPlane(ctx); err != nil {
		return err
	}
	if !c.options.APIViewOnly {
		c.echo = startEcho(c) //nolint:contextcheck // it lives as long as the cluster, not as the call
	}
	// Reserved in order first, so that the addresses of a cluster's first nodes are always the same.
	var nodes []*Node
	for _, spec := range c.options.Nodes {
		node, err := c.reserveNode(spec)
		if err != nil {
			return err
		}
		nodes = append(nodes, node)
	}
	if err := concurrently(nodes, func(node *Node) error { return c.startNode(ctx, node) }); err != nil {
		return err
	}
	c.progress("cluster is ready (%s)", elapsed(begin))
	return nil
}

// prepare makes the directory, the namespace, the credentials and the clients: all that needs no process.
func (c *Cluster) prepare(ctx context.Context) error {
	var err error
	if c.id, err = NewID(); err != nil {
		return err
	}
	c.dir = c.options.Dir
	if c.dir == "" {
		c.dir = filepath.Join(os.TempDir(), c.id)
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return fmt.Errorf("directory %s: %w", c.dir, err)
	}
	for _, dir := range []string{c.dir, filepath.Join(c.dir, "logs"), filepath.Join(c.dir, "tmp")} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return fmt.Errorf("creating the cluster's directory: %w", err)
		}
	}
	if c.options.APIViewOnly {
		c.thread = netns.NewThread()
		c.dial = new(net.Dialer).DialContext
		if c.ports, err = freePorts(ctx); err != nil {
			return err
		}
	} else {
		if c.namespace, err = c.createBridgeNamespace(); err != nil {
			return err
		}
		c.thread = c.namespace.Thread
		c.dial = c.namespace.DialContext
		c.ports = namespacePorts
	}
	c.credentials, err = newCredentials(filepath.Join(c.dir, "credentials"),
		[]net.IP{net.ParseIP("127.0.0.1"), net.ParseIP(bridgeAddress), net.ParseIP(kubernetesServiceIP),
			net.ParseIP(LiteAddress)})
	if err != nil {
		return err
	}
	return c.connect(ctx)
}

// connect writes the kubeconfigs and makes the client of tests, which does not depend on the relay.
func (c *Cluster) connect(ctx context.Context) error {
	inside := local(c.ports.apiserver)
	path, err := c.credentials.writeKubeconfig(controlPlaneKubeconfig, RoleAdmin, "https://"+inside)
	if err != nil {
		return err
	}
	outside := inside
	if c.namespace != nil {
		c.relay, err = StartRelay(ctx, func(ctx context.Context) (net.Conn, error) { return c.dial(ctx, "tcp", inside) })
		if err != nil {
			return err
		}
		outside = c.relay.Address()
	}
	if _, err := c.credentials.writeKubeconfig(adminKubeconfigFile, RoleAdmin, "https://"+outside); err != nil {
		return err
	}
	if c.config, err = clientcmd.BuildConfigFromFlags("", path); err != nil {
		return fmt.Errorf("reading kubeconfig %s: %w", path, err)
	}
	c.config.QPS = -1 // no limit: the load of tests is deliberate
	c.config.Dial = c.dial
	c.etcd = &http.Client{Transport: &http.Transport{DialContext: c.dial, MaxIdleConnsPerHost: 16}}
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return fmt.Errorf("creating the client: %w", err)
	}
	return nil
}

// Stop ends every process, removes the namespaces and, unless Options.Dir named it, the directory.
func (c *Cluster) Stop() error {
	var failures []error
	for _, node := range c.Nodes() {
		failures = append(failures, c.stopNode(node))
	}
	if c.echo != nil {
		c.echo.close()
	}
	// Killed, etcd last: nobody will read their data again, and graceful ends take seconds.
	for _, replica := range c.Hubs {
		replica.Kill()
		if replica.Interposer != nil {
			failures = append(failures, replica.Interposer.Close())
		}
	}
	if c.HubFront != nil {
		c.HubFront.relay.Close()
	}
	for _, component := range []*Component{c.Kwok, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd} {
		if component != nil {
			component.Kill()
		}
	}
	if c.relay != nil {
		c.relay.Close()
	}
	switch {
	case c.namespace != nil:
		failures = append(failures, c.namespace.Close())
	case c.thread != nil:
		c.thread.Close()
	}
	if c.options.Dir == "" && c.dir != "" {
		if err := os.RemoveAll(c.dir); err != nil {
			failures = append(failures, fmt.Errorf("removing the cluster's directory: %w", err))
		}
	}
	return errors.Join(failures...)
}

// Failed receives the first exit of a component that was not asked for through its Component.
func (c *Cluster) Failed() <-chan error { return c.failed }

// Client is an administrator's client. It talks to kube-apiserver, not through a wrapper.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// RESTConfig is a copy of Client's configuration, for clients of other kinds and for other roles.
func (c *Cluster) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Token is the bearer token of a role.
func (c *Cluster) Token(role Role) string { return c.credentials.tokens[role] }

// Kubeconfig is the path of an administrator's kubeconfig that works from the host.
func (c *Cluster) Kubeconfig() string { return c.credentials.file(adminKubeconfigFile) }

// Dir is the directory with the cluster's data, credentials and logs.
func (c *Cluster) Dir() string { return c.dir }

// Namespace is the name of the control plane's network namespace, empty with Options.APIViewOnly.
func (c *Cluster) Namespace() string {
	if c.namespace == nil {
		return ""
	}
	return c.namespace.Name()
}

// component describes a component of the components binary; nothing is started yet.
func (c *Cluster) component(name string, thread *netns.Thread, ready func(context.Context) error,
	args ...string) *Component {
	program, _, _ := strings.Cut(name, "@")
	component := c.program(name, c.options.Components, thread, ready, append([]string{program}, args...)...)
	for _, name := range []string{"GOGC", "GOMEMLIMIT"} { // as the Makefile's tests have them
		component.AddEnv(name + "=" + os.Getenv(name))
	}
	return component
}

// program describes a component that is a program of its own.
func (c *Cluster) program(name, path string, thread *netns.Thread, ready func(context.Context) error,
	args ...string) *Component {
	return &Component{
		name:   name,
		thread: thread,
		path:   path,
		args:   args,
		// A HOME and TMPDIR in the cluster's directory: what components write there goes with it, and
		// nothing of the user's configuration gets in.
		env: []string{
			"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin",
			"HOME=" + c.dir,
			"TMPDIR=" + filepath.Join(c.dir, "tmp"),
		},
		logFile:      filepath.Join(c.dir, "logs", name+".log"),
		ready:        ready,
		readyTimeout: c.options.ReadyTimeout,
		crashed: func(err error) {
			select {
			case c.failed <- err:
			default: // only the first one is told; the others tend to follow from it
			}
		},
	}
}

// startStep starts a component as a step.
func (c *Cluster) startStep(ctx context.Context, component *Component) error {
	return c.step(component.Name(), func() error { return component.Start(ctx) })
}

// step runs f and tells how long it took.
func (c *Cluster) step(name string, f func() error) error {
	begin := time.Now()
	if err := f(); err != nil {
		return err
	}
	c.progress("%s is ready (%s)", name, elapsed(begin))
	return nil
}

// poll is poll for as long as a component may take to become ready.
func (c *Cluster) poll(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.options.ReadyTimeout)
	defer cancel()
	return poll(ctx, ask)
}

// unlessThere is the error of creating an object, other than that it is there: an attempt that was given up may have
// made it nevertheless.
func unlessThere(err error) error {
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (c *Cluster) progress(format string, args ...any) {
	c.progressMu.Lock()
	defer c.progressMu.Unlock()
	fmt.Fprintf(c.options.Progress, format+"\n", args...)
}

func elapsed(begin time.Time) time.Duration { return time.Since(begin).Round(10 * time.Millisecond) }

// concurrently calls f for all items at the same time and returns all errors joined.
func concurrently[T any](items []T, f func(T) error) error {
	failures := make([]error, len(items))
	var group sync.WaitGroup
	for i, item := range items {
		group.Go(func() { failures[i] = f(item) })
	}
	group.Wait()
	return errors.Join(failures...)
}
