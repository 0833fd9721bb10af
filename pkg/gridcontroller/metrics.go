package gridcontroller

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// The sums are over all grids of a kind.
const (
	sumGrids = iota
	sumUnits
	sumReady
	sumFailed
	sumStalled
	sumUnreachable
	sumHeld
	sumConflicts
	sumRolling
	sumHalted
	sumWaiting
	sums
)

// figures are the metrics of one grid.
type figures struct {
	sums [sums]int
	// waves are those of a rollout that is not complete.
	waves []v1.WaveStatus
}

var (
	sumDescs = [sums]*prometheus.Desc{
		sumGrids:       describe("grids", "Grids, by kind."),
		sumUnits:       describe("units", "Units of all grids of the kind."),
		sumReady:       describe("units_ready", "Units whose workload is as the grid says, with all pods available."),
		sumFailed:      describe("units_failed", "Units whose workload cannot be made as the grid says."),
		sumStalled:     describe("units_stalled", "Units whose workload makes no progress any more."),
		sumUnreachable: describe("units_unreachable", "Units whose nodes are all unreachable."),
		sumHeld: describe("removals_held",
			"Grids of which so many units have vanished that their removal waits for an approval."),
		sumConflicts: describe("conflicts", "Children whose name belongs to an object that is not the grid's."),
		sumRolling:   describe("rollouts_in_progress", "Grids whose units are being given a change."),
		sumHalted: describe("rollouts_halted",
			"Grids whose rollout has halted or gone back, because too many units have failed, or because of an "+
				"outage."),
		sumWaiting: describe("rollouts_awaiting_approval",
			"Grids whose rollout waits for a person to approve of a wave."),
	}
	waveDesc = describe("rollout_units", "Units of the waves of a rollout that is not complete, by what became of "+
		"them: all, updated (which includes those that are ready), ready, proven, failed, suspects, deferred.",
		"namespace", "name", "wave", "state")
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("application_grid_controller_"+name, help, append([]string{"kind"}, labels...), nil)
}

// gauges is a prometheus.Collector of the sums over all grids of a kind.
type gauges struct {
	mu    sync.Mutex // guards grids
	grids map[gridName]figures
}

// gridName is the kind of a grid, and its name.
type gridName struct {
	kind string
	types.NamespacedName
}

func newGauges() *gauges { return &gauges{grids: map[gridName]figures{}} }

func (g *gauges) set(kind string, name types.NamespacedName, f figures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grids[gridName{kind, name}] = f
}

func (g *gauges) forget(kind string, name types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.grids, gridName{kind, name})
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, out) }

// Collect is part of prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	totals := map[string]*[sums]int{}
	for _, k := range v1.Kinds {
		totals[k.Kind] = &[sums]int{}
	}
	for grid, f := range g.grids {
		total := totals[grid.kind]
		total[sumGrids]++
		for i, n := range f.sums {
			total[i] += n
		}
		for i := range f.waves {
			wave := &f.waves[i]
			for state, units := range map[string]int32{
				"all": wave.Units, "updated": wave.Updated, "ready": wave.Ready, "proven": wave.Proven,
				"failed": wave.Failed, "suspects": wave.Suspects, "deferred": wave.Deferred,
			} {
				out <- prometheus.MustNewConstMetric(waveDesc, prometheus.GaugeValue, float64(units), grid.kind,
					grid.Namespace, grid.Name, wave.Name, state)
			}
		}
	}
	for kind, total := range totals {
		for i, n := range total {
			out <- prometheus.MustNewConstMetric(sumDescs[i], prometheus.GaugeValue, float64(n), kind)
		}
	}
}
