package grid

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
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
	suite.Suite{
		Name: "e2e/grid", Options: clusterOptions, Cluster: &shared, Prepare: startController,
		Finish: func() { controller.Kill() },
	}.Main(m)
}

func clusterOptions() (cluster.Options, error) {
	var options cluster.Options
	components, err := suite.Program("COMPONENTS_BIN", "components")
	if err != nil {
		return options, err
	}
	if program, err = suite.Program("CONTROLLER_BIN", "application-grid-controller"); err != nil {
		return options, err
	}
	return cluster.Options{
		Components: components, APIViewOnly: true, AuditLog: true, Progress: os.Stdout, Dir: os.Getenv("E2E_DIR"),
	}, nil
}

func startController(ctx context.Context) error {
	var err error
	if controller, err = shared.NewController(ctx, "shared", program, arguments()...); err != nil {
		return err
	}
	return controller.Start(ctx)
}

// arguments are the controller's in all tests: a Lease that is soon over, for those that kill it.
func arguments() []string {
	return []string{
		"--unit-removal-grace=" + grace.String(), "-v=4",
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s", "--leader-elect-retry-period=500ms",
	}
}
