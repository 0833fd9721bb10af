package cluster

import (
	"context"
	"fmt"
	"net/http"

	"github.com/application-grid/application-grid/internal/testkit/freeport"
)

// Controller is an application-grid-controller beside the control plane.
type Controller struct {
	*Component

	cluster       *Cluster
	health        string
	metricsServer string
}

// NewController describes a controller that is started from the program at path, with the permissions of
// RoleController; name tells replicas apart. Nothing is started yet. The cluster does not stop it, but it dies
// with the supervisor.
func (c *Cluster) NewController(ctx context.Context, name, path string, args ...string) (*Controller, error) {
	if err := executable(path); err != nil {
		return nil, fmt.Errorf("application-grid-controller binary: %w", err)
	}
	kubeconfig, err := c.credentials.writeKubeconfig("controller.kubeconfig", RoleController,
		"https://"+local(c.ports.apiserver))
	if err != nil {
		return nil, err
	}
	health, err := freeport.Find(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := freeport.Find(ctx)
	if err != nil {
		return nil, err
	}
	controller := &Controller{cluster: c, health: local(health), metricsServer: local(metrics)}
	args = append([]string{
		"--kubeconfig=" + kubeconfig, "--health-bind-address=" + controller.health, "--metrics-bind-address=" +
			controller.metricsServer,
	}, args...)
	controller.Component = c.program("application-grid-controller@"+name, path, c.thread,
		c.httpReady("http://"+controller.health+"/readyz"), args...)
	return controller, nil
}

// Metrics is what the controller says under /metrics.
func (c *Controller) Metrics(ctx context.Context) (string, error) {
	reply, err := get(ctx, c.cluster.freshClient(nil), "http://"+c.metricsServer+"/metrics")
	if err != nil {
		return "", fmt.Errorf("the controller's metrics: %w", err)
	}
	if reply.Status != http.StatusOK {
		return "", fmt.Errorf("the controller's metrics: status %d", reply.Status)
	}
	return reply.Body, nil
}
