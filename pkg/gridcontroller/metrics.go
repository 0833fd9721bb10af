package gridcontroller

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// figures are the metrics of one grid.
type figures struct {
	units, ready, failed, stalled, unreachable, held, conflicts int
	// rolling, halted and waiting are 1 if the grid's rollout goes on, has halted, or waits for an approval.
	rolling, halted, waiting int
	// waves are those of a rollout that is not complete.
	waves []v1.WaveStatus
}

// gauges is a prometheus.Collector of the sums over all grids of a kind.
type gauges struct {
	mu sync.Mutex // guards grids
	// grids has the figures of every grid, by its kind and name.
	grids map[string]map[types.NamespacedName]figures

	grid, unit, unitReady, unitFailed, unitStalled, unitUnreachable, held, conflict *prometheus.Desc
	rolling, halted, waiting, waveUnits                                             *prometheus.Desc
}

func newGauges() *gauges {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("application_grid_controller_"+name, help, []string{"kind"}, nil)
	}
	return &gauges{
		grids:           map[string]map[types.NamespacedName]figures{},
		grid:            describe("grids", "Grids, by kind."),
		unit:            describe("units", "Units of all grids of the kind."),
		unitReady:       describe("units_ready", "Units whose workload is as the grid says, with all pods available."),
		unitFailed:      describe("units_failed", "Units whose workload cannot be made as the grid says."),
		unitStalled:     describe("units_stalled", "Units whose workload makes no progress any more."),
		unitUnreachable: describe("units_unreachable", "Units whose nodes are all unreachable."),
		held: describe("removals_held",
			"Grids of which so many units have vanished that their removal waits for an approval."),
		rolling: describe("rollouts_in_progress", "Grids whose units are being given a change."),
		halted: describe("rollouts_halted",
			"Grids whose rollout has halted or gone back, because too many units have failed, or because of an "+
				"outage."),
		waiting: describe("rollouts_awaiting_approval",
			"Grids whose rollout waits for a person to approve of a wave."),
		waveUnits: prometheus.NewDesc("application_grid_controller_rollout_units",
			"Units of the waves of a rollout that is not complete, by what became of them: all, updated (which "+
				"includes those that are ready), ready, proven, failed, suspects, deferred.",
			[]string{"kind", "namespace", "name", "wave", "state"}, nil),
		conflict: describe("conflicts", "Children whose name belongs to an object that is not the grid's."),
	}
}

func (g *gauges) set(kind string, name types.NamespacedName, f figures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.grids[kind] == nil {
		g.grids[kind] = map[types.NamespacedName]figures{}
	}
	g.grids[kind][name] = f
}

func (g *gauges) forget(kind string, name types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.grids[kind], name)
}

// Describe is part of prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		g.grid, g.unit, g.unitReady, g.unitFailed, g.unitStalled, g.unitUnreachable, g.held, g.conflict,
		g.rolling, g.halted, g.waiting, g.waveUnits,
	} {
		out <- desc
	}
}

// Collect is part of prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for kind, grids := range g.grids {
		var sum figures
		for name, f := range grids {
			g.collectWaves(out, kind, name, f.waves)
			sum.units += f.units
			sum.ready += f.ready
			sum.failed += f.failed
			sum.stalled += f.stalled
			sum.unreachable += f.unreachable
			sum.held += f.held
			sum.conflicts += f.conflicts
			sum.rolling += f.rolling
			sum.halted += f.halted
			sum.waiting += f.waiting
		}
		for desc, value := range map[*prometheus.Desc]int{
			g.grid: len(grids), g.unit: sum.units, g.unitReady: sum.ready, g.unitFailed: sum.failed,
			g.unitStalled: sum.stalled, g.unitUnreachable: sum.unreachable, g.held: sum.held, g.conflict: sum.conflicts,
			g.rolling: sum.rolling, g.halted: sum.halted, g.waiting: sum.waiting,
		} {
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), kind)
		}
	}
}

// collectWaves sends the units of the waves of a grid's rollout.
func (g *gauges) collectWaves(
	out chan<- prometheus.Metric, kind string, name types.NamespacedName, waves []v1.WaveStatus,
) {
	for i := range waves {
		wave := &waves[i]
		for state, units := range map[string]int32{
			"all": wave.Units, "updated": wave.Updated, "ready": wave.Ready, "proven": wave.Proven,
			"failed": wave.Failed, "suspects": wave.Suspects, "deferred": wave.Deferred,
		} {
			out <- prometheus.MustNewConstMetric(g.waveUnits, prometheus.GaugeValue, float64(units), kind,
				name.Namespace, name.Name, wave.Name, state)
		}
	}
}
