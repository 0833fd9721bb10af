package grid

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
)

// grace is the controller's --unit-removal-grace.
const grace = 5 * time.Second

var (
	// shared is the cluster of all tests, controller its controller.
	shared     *cluster.Cluster
	controller *cluster.Controller
	// program is the controller's path.
	program string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintf(os.Stderr, "e2e: %v\n", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	components, err := binary("COMPONENTS_BIN", "components")
	if err != nil {
		return 1, err
	}
	if program, err = binary("CONTROLLER_BIN", "application-grid-controller"); err != nil {
		return 1, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	shared, err = cluster.Start(ctx, cluster.Options{
		Components: components, APIViewOnly: true, AuditLog: true, Progress: os.Stdout, Dir: os.Getenv("E2E_DIR"),
	})
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, shared.Stop()) }()
	if controller, err = shared.NewController(ctx, "shared", program, arguments()...); err != nil {
		return 1, err
	}
	if err := controller.Start(ctx); err != nil {
		return 1, err
	}
	defer controller.Kill()
	finished := make(chan struct{})
	go func() {
		select {
		case <-finished:
		case <-ctx.Done():
			fmt.Fprintln(os.Stderr, "e2e: interrupted")
			shared.Stop() // the program ends with an error anyway
			os.Exit(1)
		}
	}()
	code = m.Run()
	close(finished)
	select {
	case err = <-shared.Failed():
	default:
	}
	return code, err
}

// arguments are the controller's in all tests: a Lease that is soon over, for those that kill it.
func arguments() []string {
	return []string{
		"--unit-removal-grace=" + grace.String(), "-v=4",
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
	}
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
