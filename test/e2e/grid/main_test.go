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

// installation is a cluster with a controller.
type installation struct {
	cluster    *cluster.Cluster
	controller *cluster.Controller
	// places are for the tests that run in it at the same time.
	places chan struct{}
}

var (
	// shared is of the tests that run at the same time, each in its own namespace. alone is of those that restart the
	// controller, change CRDs, roles or webhooks, or in which something must happen within a few seconds: they run one
	// after the other, beside those of shared.
	shared = &installation{places: make(chan struct{}, 4)}
	alone  = &installation{places: make(chan struct{}, 1)}
	// program is the controller's path.
	program string
)

func TestMain(m *testing.M) {
	suite.Suite{
		Name: "e2e/grid", Options: cluster.Options{
			APIViewOnly: true, AuditLog: true,
			ControllerManagerArgs: cluster.PatientWithNodes, // the tests say themselves which nodes are lost
		}, Cluster: &shared.cluster, Second: &alone.cluster,
		Parallel: 100, // all: they wait for a place
		Prepare:  startControllers, Finish: func() {
			shared.controller.Kill()
			alone.controller.Kill()
		},
	}.Main(m)
}

func startControllers(ctx context.Context) (err error) {
	if program, err = suite.Program("application-grid-controller"); err != nil {
		return err
	}
	for _, i := range []*installation{shared, alone} {
		if i.controller, err = i.cluster.NewController(ctx, "shared", program, arguments()...); err != nil {
			return err
		}
		if err := i.controller.Start(ctx); err != nil {
			return err
		}
	}
	return nil
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
func (i *installation) killController(ctx context.Context) error {
	i.controller.Kill()
	err := i.cluster.Client().CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, "application-grid-controller",
		metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
