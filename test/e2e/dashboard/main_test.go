package dashboard

import (
	"context"
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
		Name: "e2e/dashboard", Cluster: &shared, Options: cluster.Options{
			APIViewOnly: true, AuditLog: true,
			// Nodes that are objects only never send a heartbeat, and would be silent after a minute.
			ControllerManagerArgs: []string{"--node-startup-grace-period=1h"},
		},
		Prepare: startController, Finish: func() { controller.Kill() },
	}.Main(m)
}

func startController(ctx context.Context) error {
	program, err := suite.Program("application-grid-controller")
	if err != nil {
		return err
	}
	if controller, err = shared.NewController(ctx, "shared", program); err != nil {
		return err
	}
	return controller.Start(ctx)
}
