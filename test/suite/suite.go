// Package suite runs a package's tests on one embedded cluster, or on two: it finds the programs, starts the clusters
// before the tests and stops them after the tests, and gives every test a namespace; or it gives a test a cluster of
// its own. What is on the cluster is the package's own.
// Only tests import it.
package suite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/netns"
)

// Suite is a package's tests with the cluster that they share.
type Suite struct {
	// Name is the package's, in messages.
	Name string
	// Options are what the cluster is started with. Where its programs are is found.
	Options cluster.Options
	// Programs are those that the cluster runs besides its components.
	Programs []string
	// Parallel is how many of the parallel tests run at the same time: more than there are processors, if they wait for
	// most of their time. 0 leaves it to `go test`, whose flag -parallel overrides it.
	Parallel int
	// Cluster is set when the cluster has started, before Prepare.
	Cluster **cluster.Cluster
	// Second, if not nil, is set to a second cluster of the same options.
	Second **cluster.Cluster
	// Prepare, if set, makes what all tests need. The tests do not run if it fails.
	Prepare func(ctx context.Context) error
	// Finish, if set, is called after the tests, while the cluster still runs.
	Finish func()
}

// Main runs the tests and exits: it is what a TestMain calls. It fails also if a component of the cluster fails, if
// the cluster cannot be stopped, and when interrupted.
func (s Suite) Main(m *testing.M) {
	code, err := s.run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.Name, err)
		code = 1
	}
	os.Exit(code)
}

func (s Suite) run(m *testing.M) (code int, err error) {
	if s.Options.Dir == "" {
		s.Options.Dir = os.Getenv("E2E_DIR") // to keep the logs
	}
	if err := complete(&s.Options, s.Programs); err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	stopClusters, err := s.start(ctx)
	if err != nil {
		return 1, err
	}
	finished := context.AfterFunc(ctx, func() {
		fmt.Fprintf(os.Stderr, "%s: interrupted\n", s.Name)
		_ = stopClusters() // the program ends with an error anyway
		os.Exit(1)
	})
	defer func() {
		finished()
		err = errors.Join(err, stopClusters())
	}()
	if s.Prepare != nil {
		if err := s.Prepare(ctx); err != nil {
			return 1, err
		}
	}
	if s.Parallel > 0 {
		if err := flag.Set("test.parallel", strconv.Itoa(s.Parallel)); err != nil {
			return 1, err
		}
	}
	code = m.Run()
	if s.Finish != nil {
		s.Finish()
	}
	for _, set := range s.clusters() {
		select {
		case failure := <-(*set).Failed():
			err = errors.Join(err, failure)
		default:
		}
	}
	return code, err
}

// clusters are where the clusters are set.
func (s Suite) clusters() []**cluster.Cluster {
	if s.Second == nil {
		return []**cluster.Cluster{s.Cluster}
	}
	return []**cluster.Cluster{s.Cluster, s.Second}
}

// start starts the clusters, both at once, and returns what stops them. If one does not start, none is left.
func (s Suite) start(ctx context.Context) (stop func() error, err error) {
	sets := s.clusters()
	failures := make([]error, len(sets))
	var group sync.WaitGroup
	for i, set := range sets {
		options := s.Options
		options.Nodes = slices.Clone(options.Nodes) // each cluster completes its own
		if i > 0 && options.Dir != "" {
			options.Dir = filepath.Join(options.Dir, "second")
		}
		group.Go(func() { *set, failures[i] = cluster.Start(ctx, options) })
	}
	group.Wait()
	stop = func() error {
		var failures []error
		for _, set := range sets {
			if *set != nil {
				failures = append(failures, (*set).Stop())
			}
		}
		return errors.Join(failures...)
	}
	if err := errors.Join(failures...); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

// complete checks that this process may make such a cluster, and finds the programs that it runs.
func complete(o *cluster.Options, programs []string) error {
	if !o.APIViewOnly {
		if err := Privileged(); err != nil {
			return err
		}
	}
	if o.Progress == nil {
		o.Progress = os.Stdout
	}
	paths := map[string]*string{"components": &o.Components, "application-grid-wrapper": &o.Wrapper,
		"application-grid-hub": &o.Hub, "statefulset-grid-daemon": &o.DNSDaemon}
	if o.Components == "" {
		programs = append([]string{"components"}, programs...)
	}
	for _, name := range programs {
		path, err := Program(name)
		if err != nil {
			return err
		}
		*paths[name] = path
	}
	return nil
}

// Start starts a cluster for one test, which runs these programs besides its components. The test stops it at its end
// and fails if a component has failed by then, or if it cannot be stopped.
func Start(t *testing.T, options cluster.Options, programs ...string) *cluster.Cluster {
	t.Helper()
	if err := complete(&options, programs); err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		expectNoFailure(t, c)
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// expectNoFailure fails the test if a component of the cluster has failed.
func expectNoFailure(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	select {
	case err := <-c.Failed():
		t.Errorf("a component failed: %v", err)
	default:
	}
}

// Privileged is nil if this process may make a cluster with nodes, or says why it may not.
func Privileged() error {
	if os.Geteuid() != 0 {
		return errors.New("these tests make network namespaces: run them as root")
	}
	if err := netns.Supported(); err != nil {
		return err
	}
	return netns.MountsSupported()
}

// variables name programs that are not where `make build cluster` writes them.
var variables = map[string]string{
	"components": "COMPONENTS_BIN", "application-grid-wrapper": "WRAPPER_BIN",
	"application-grid-controller": "CONTROLLER_BIN", "application-grid-hub": "HUB_BIN",
	"statefulset-grid-daemon": "DNS_DAEMON_BIN", "lite-apiserver": "LITE_BIN", "kubectl-grid": "KUBECTL_GRID_BIN",
	"helm": "HELM_BIN", "traefik": "TRAEFIK_BIN", "cilium/daemon": "CILIUM_BIN",
}

// Program is the path in the program's environment variable, or the one of the program in bin/ of the repository,
// where `make build cluster` writes it. It is an error if there is no such file.
func Program(name string) (string, error) {
	variable := variables[name]
	path := os.Getenv(variable)
	if path == "" {
		root, err := Root()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", name)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil { //nolint:gosec // who runs the tests names it
		return "", fmt.Errorf("there is no %s at %s: run `make build cluster` first, or name it in %s", name, path,
			variable)
	}
	return path, nil
}

// Root is the repository's directory: the one above that of the test's module.
func Root() (string, error) {
	begin, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := begin; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Dir(dir), nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is in no Go module: run the tests with `go test`", begin)
		}
	}
}

// Namespace makes a namespace in which pods are admitted, named prefix and something, and returns its name. It is
// deleted after the test, which fails if a component of the cluster has failed by then.
func Namespace(t *testing.T, c *cluster.Cluster, prefix string) string {
	t.Helper()
	client := c.Client().CoreV1()
	created, err := client.Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// If it fails: the cluster goes in the end.
		_ = client.Namespaces().Delete(context.Background(), created.Name, metav1.DeleteOptions{})
		expectNoFailure(t, c)
	})
	await.Patience{Within: time.Minute, Between: 20 * time.Millisecond}.Until(t, "the default service account exists",
		func() error {
			_, err := client.ServiceAccounts(created.Name).Get(t.Context(), "default", metav1.GetOptions{})
			return err
		})
	return created.Name
}
