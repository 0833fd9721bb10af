package dashboard

import (
	"context"
	"os"
	"testing"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// shared is the cluster of all tests, controller its controller.
var (
	shared     *cluster.Cluster
	controller *cluster.Controller
)

func TestMain(m *testing.M) {
	suite.Suite{
		Name: "e2e/dashboard", Options: clusterOptions, Cluster: &shared, Prepare: startController,
		Finish: func() { controller.Kill() },
	}.Main(m)
}

func clusterOptions() (cluster.Options, error) {
	components, err := suite.Program("COMPONENTS_BIN", "components")
	return cluster.Options{
		Components: components, APIViewOnly: true, AuditLog: true, Progress: os.Stdout, Dir: os.Getenv("E2E_DIR"),
	}, err
}

func startController(ctx context.Context) error {
	program, err := suite.Program("CONTROLLER_BIN", "application-grid-controller")
	if err != nil {
		return err
	}
	if controller, err = shared.NewController(ctx, "shared", program); err != nil {
		return err
	}
	return controller.Start(ctx)
}
