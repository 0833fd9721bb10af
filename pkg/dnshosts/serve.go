package dnshosts

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/program/health"
)

const namespace = "statefulset_grid_daemon"

// manyOverwrites is how often another program must overwrite the block before that is reported.
const manyOverwrites = 3

func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", health.Alive)
	mux.HandleFunc("GET /livez", health.Alive)
	mux.Handle("GET /readyz", health.Ready(d.report))
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// report returns the daemon's current health: it is ready while the file has the right content, as far as is known. The
// details have other facts worth knowing.
func (d *Daemon) report() health.Report {
	var report health.Report
	now := d.lastStatus()
	if now.err != nil {
		report.Fail("%v; trying again every %s", now.err, retryInterval)
	}
	if reason := d.blocked(); reason != "" {
		report.Fail("%s", reason)
	} else if !now.synced && now.err == nil {
		report.Fail("starting: waiting for the API server")
	}
	if now.overwritten >= manyOverwrites {
		report.Fail("another program has overwritten the block in %s %d times: does another statefulset-grid-daemon "+
			"write this file, with another --hostname?", d.config.Path, now.overwritten)
	}
	if err := d.config.Connection.Problem(); err != nil {
		report.Note("kubeconfig: the file has changed and cannot be used; going on with its earlier content: %v", err)
	}
	for _, s := range d.group.States() {
		switch {
		case s.Forbidden:
			report.Fail("%s: the API server refuses the daemon, renew %s or its permissions: %v", s.Name,
				d.config.Connection.Credentials(), s.Err)
		case s.Err != nil && s.Synced && s.LastContact.IsZero():
			report.Note("%s: using what was last known, which came from a cache: %v", s.Name, s.Err)
		case s.Err != nil && s.Synced:
			report.Note("%s: using what was last known, %s ago: %v", s.Name,
				time.Since(s.LastContact).Round(time.Second), s.Err)
		case s.Err != nil:
			report.Note("%s: %v", s.Name, s.Err)
		}
	}
	if now.synced && now.restored {
		report.Note("the API server is away: names that are in the file get the addresses that the wrapper's " +
			"snapshot and its site know; none is added, and none goes unless its address is another pod's")
	}
	if now.synced {
		report.Note("%d lines for the StatefulSets of this node's sites in %s", now.records, d.config.Path)
	}
	return report
}

func (d *Daemon) lastStatus() status {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status
}

type metrics struct {
	registry         *prometheus.Registry
	writes, failures prometheus.Counter
	delay            prometheus.Histogram
}

func newMetrics(d *Daemon) *metrics {
	registry := prometheus.NewRegistry()
	registry.MustRegister(follow.Metrics(namespace, d.group.States),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	with := promauto.With(registry)
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "records", Help: "Lines in the hosts file's block.",
	}, func() float64 { return float64(d.lastStatus().records) })
	with.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: namespace, Name: "in_sync", Help: "1 while the hosts file has the right content.",
	}, func() float64 {
		if now := d.lastStatus(); now.synced && now.err == nil && d.blocked() == "" {
			return 1
		}
		return 0
	})
	return &metrics{
		registry: registry,
		writes: with.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "writes_total", Help: "Times the hosts file was replaced.",
		}),
		failures: with.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "write_failures_total",
			Help: "Times the hosts file could not be read or replaced. Each is tried again.",
		}),
		delay: with.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "change_delay_seconds",
			Help:    "Time from the arrival of a change to the new hosts file.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}),
	}
}
