package dns

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/netns"
)

const unitLabel = "zone1"

// units are the units, by node.
var units = map[string]string{"east1": "east", "north1": "north", "west1": "west"}

// shared is the cluster of all tests.
var shared *cluster.Cluster

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	options, err := clusterOptions()
	if err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	shared, err = cluster.Start(ctx, options)
	if err != nil {
		return 1, err
	}
	finished := context.AfterFunc(ctx, func() {
		fmt.Fprintln(os.Stderr, "e2e: interrupted")
		shared.Stop() // the program ends with an error anyway
		os.Exit(1)
	})
	if err := prepare(ctx); err != nil {
		finished()
		return 1, errors.Join(err, shared.Stop())
	}
	code = m.Run()
	finished()
	select {
	case err = <-shared.Failed():
	default:
	}
	return code, errors.Join(err, shared.Stop())
}

func clusterOptions() (cluster.Options, error) {
	var options cluster.Options
	if os.Geteuid() != 0 {
		return options, errors.New("these tests make network namespaces: run them as root")
	}
	if err := netns.Supported(); err != nil {
		return options, err
	}
	components, err := binary("COMPONENTS_BIN", "components")
	if err != nil {
		return options, err
	}
	wrapper, err := binary("WRAPPER_BIN", "application-grid-wrapper")
	if err != nil {
		return options, err
	}
	daemon, err := binary("DNS_DAEMON_BIN", "statefulset-grid-daemon")
	if err != nil {
		return options, err
	}
	options = cluster.Options{
		Components: components, Wrapper: wrapper, WrapperTLS: true, DNSDaemon: daemon,
		Progress: os.Stdout,
		Dir:      os.Getenv("E2E_DIR"), // to keep the logs
	}
	for _, name := range []string{"east1", "north1", "west1"} {
		options.Nodes = append(options.Nodes, cluster.NodeSpec{Name: name, Labels: map[string]string{unitLabel: units[name]}})
	}
	return options, nil
}

// binary is the path in the environment variable, or the one that `make build` writes.
func binary(variable, name string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join("..", "..", "..", "bin", name)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("there is no %s at %s: run `make build cluster` first, or name it in %s", name, path, variable)
	}
	return path, nil
}
