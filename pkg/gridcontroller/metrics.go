package gridcontroller

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// sums are the sums over all grids of a kind, with their help.
var sums = map[string]string{
	"grids":                "Grids, by kind.",
	"sites":                "Sites of all grids of the kind.",
	"sites_ready":          "Sites whose workload is as the grid says, with all pods available.",
	"sites_failed":         "Sites whose workload cannot be made as the grid says.",
	"sites_stalled":        "Sites whose workload has stopped making progress.",
	"sites_unreachable":    "Sites whose nodes are all unreachable.",
	"removals_held":        "Grids that have lost so many sites that the removal waits for an approval.",
	"conflicts":            "Children whose name belongs to an object that is not the grid's.",
	"rollouts_in_progress": "Grids whose sites are being given a change.",
	"rollouts_halted": "Grids whose rollout has halted or gone back, because too many sites have failed, or because " +
		"of an outage.",
	"rollouts_awaiting_approval": "Grids whose rollout waits for a person to approve of a wave.",
}

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("application_grid_controller_"+name, help, []string{"kind"}, nil)
}

// collector is a prometheus.Collector of figures from the statuses of all grids.
type collector struct{ grids client.Reader }

func (c collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

func (c collector) Collect(out chan<- prometheus.Metric) {
	for _, k := range v1.Kinds {
		total, grids := map[string]int{}, k.NewList()
		if err := c.grids.List(context.Background(), grids, client.UnsafeDisableDeepCopy); err != nil {
			out <- prometheus.NewInvalidMetric(describe("grids", sums["grids"]), err)
			continue
		}
		_ = meta.EachListItem(grids, func(object runtime.Object) error { // it returns no errors
			if grid, ok := object.(v1.Object); ok {
				count(statusOf(grid), total)
			}
			return nil
		})
		for name, help := range sums {
			sum := float64(total[name])
			out <- prometheus.MustNewConstMetric(describe(name, help), prometheus.GaugeValue, sum, k.Kind)
		}
	}
}

// statusOf returns the status of a grid, that of a ServiceGrid as if its Service were the workload of a site.
func statusOf(grid v1.Object) *v1.WorkloadGridStatus {
	service, ok := grid.(*v1.ServiceGrid)
	if !ok {
		_, status := v1.SpecAndStatus(grid)
		return status
	}
	status := &v1.WorkloadGridStatus{Sites: service.Status.Sites, ReadySites: service.Status.Sites}
	degraded := meta.FindStatusCondition(service.Status.Conditions, v1.ConditionDegraded)
	if degraded != nil && degraded.Status == metav1.ConditionTrue {
		status.ReadySites, status.FailedSites = 0, 1
		status.States = map[string]v1.SiteState{"": {Reason: degraded.Reason}}
	}
	return status
}

func count(status *v1.WorkloadGridStatus, total map[string]int) {
	total["grids"]++
	total["sites"] += int(status.Sites)
	total["sites_ready"] += int(status.ReadySites)
	total["sites_failed"] += int(status.FailedSites) // with those that are stalled
	total["sites_unreachable"] += int(status.UnreachableSites)
	for _, state := range status.States {
		if state.Phase == v1.SiteStalled {
			total["sites_stalled"]++
			total["sites_failed"]--
		}
		if state.Reason == v1.ReasonNameConflict {
			total["conflicts"]++
		}
	}
	degraded := meta.FindStatusCondition(status.Conditions, v1.ConditionDegraded)
	if degraded != nil && degraded.Reason == v1.ReasonMassRemoval {
		total["removals_held"]++
	}
	switch rollout := status.Rollout; {
	case rollout == nil:
	case halted(rollout), rollout.Phase == v1.RolloutComplete && rollout.HaltTime != nil: // sites failed later
		total["rollouts_halted"]++
	case progresses(rollout):
		total["rollouts_in_progress"]++
	case rollout.Phase == v1.RolloutAwaitingApproval:
		total["rollouts_awaiting_approval"]++
	}
}
