package grid

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// grace is the controller's --site-removal-grace.
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
		Name: "e2e/grid", Parallel: 6, Options: cluster.Options{
			APIViewOnly: true, AuditLog: true,
			ControllerManagerArgs: cluster.PatientWithNodes, // the tests say themselves which nodes are lost
		}, Cluster: &shared,
		Prepare: startController, Finish: func() { controller.Kill() },
	}.Main(m)
}

func startController(ctx context.Context) (err error) {
	if program, err = suite.Program("application-grid-controller"); err != nil {
		return err
	}
	if controller, err = shared.NewController(ctx, "shared", program, arguments()...); err != nil {
		return err
	}
	return controller.Start(ctx)
}

// arguments are the controller's in all tests. Its Lease outlasts what a busy machine's disk may stall: a controller
// that loses it ends.
func arguments() []string {
	return []string{
		"--site-removal-grace=" + grace.String(), "-v=4",
		"--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=25s", "--leader-elect-retry-period=500ms",
	}
}

// shortLease are further arguments of a replica whose Lease is to be over soon.
var shortLease = []string{"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s"}

// killController kills the controller, and ends its Lease, for which the next one would wait. The error says why the
// Lease is still there.
func killController(ctx context.Context) error {
	controller.Kill()
	err := shared.Client().CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, "application-grid-controller",
		metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
