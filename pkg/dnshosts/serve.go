package dnshosts

import (
	"fmt"
	"net/http"
	"sort"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/application-grid/application-grid/pkg/follow"
)

const namespace = "statefulset_grid_daemon"

// handler serves /healthz, /livez, /readyz and /metrics.
func (d *Daemon) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", d.ready)
	mux.Handle("GET /metrics", promhttp.HandlerFor(d.metrics.registry, promhttp.HandlerOpts{}))
	return mux
}

// alive answers that the process lives: that the API server is away, or a disk full, is nothing that a restart
// would mend.
func alive(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok"))
}

// ready answers 200 while the file is what it should be, as far as is known here, and 503 otherwise; in both
// cases it says what is wrong.
func (d *Daemon) ready(w http.ResponseWriter, _ *http.Request) {
	reasons, details := d.state()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	var body strings.Builder
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		body.WriteString("not ready\n")
	} else {
		body.WriteString("ok\n")
	}
	for _, reason := range reasons {
		fmt.Fprintf(&body, "[-] %s\n", reason)
	}
	for _, detail := range details {
		fmt.Fprintf(&body, "[+] %s\n", detail)
	}
	_, _ = w.Write([]byte(body.String()))
}

// summary is the state as one line.
func (d *Daemon) summary() string {
	reasons, details := d.state()
	if len(reasons) > 0 {
		return "not ready: " + strings.Join(reasons, "; ")
	}
	return "ready: " + strings.Join(details, "; ")
}

// state says why the file is not what it should be, and what else there is to know.
func (d *Daemon) state() (reasons, details []string) {
	d.mu.Lock()
	now := d.status
	d.mu.Unlock()
	if now.err != nil {
		reasons = append(reasons, fmt.Sprintf("%v; trying again every %s at most", now.err, lastRetry))
	}
	switch {
	case now.blocked != "":
		// The reason may have become another one since the last sync.
		if unlisted := d.unlisted(); unlisted != "" {
			now.blocked = unlisted
		}
		reasons = append(reasons, now.blocked)
	case !now.synced && now.err == nil:
		reasons = append(reasons, "starting: waiting for the API server")
	case now.pending > 0:
		reasons = append(reasons, fmt.Sprintf("the pods of %d StatefulSets are not listed yet; their lines stay as they were", now.pending))
	}
	for _, s := range d.states() {
		switch {
		case s.Err != nil && s.Synced:
			details = append(details, fmt.Sprintf("%s: what was last known holds, %s ago: %v", s.Name, time.Since(s.LastContact).Round(time.Second), s.Err))
		case s.Err != nil:
			details = append(details, fmt.Sprintf("%s: %v", s.Name, s.Err))
		}
	}
	if now.synced {
		details = append(details, fmt.Sprintf("%d lines for %d StatefulSets of this node's units in %s", now.records, now.sets, d.config.Path))
	}
	sort.Strings(details)
	return reasons, details
}

// states are those of all sources.
func (d *Daemon) states() []follow.State {
	var states []follow.State
	for _, s := range d.sources {
		states = append(states, s.State())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	// There may be many of them. One is told of, the worst.
	pods, worst := follow.State{Name: sourcePods, Synced: true}, 0
	for _, p := range d.pods {
		state := p.source.State()
		badness := 1
		if state.Err != nil {
			badness = 2
		}
		if !state.Synced {
			badness += 2
		}
		if badness > worst {
			pods, worst = state, badness
		}
	}
	return append(states, pods)
}

// metrics are the daemon's.
type metrics struct {
	registry         *prometheus.Registry
	writes, failures prometheus.Counter
	delay            prometheus.Histogram
}

func newMetrics(d *Daemon) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		writes: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "writes_total", Help: "Times the hosts file was replaced.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: namespace, Name: "write_failures_total", Help: "Times the hosts file could not be read or replaced. Each is tried again.",
		}),
		delay: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: namespace, Name: "change_delay_seconds", Help: "Time from the arrival of a change to the new hosts file.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
		}),
	}
	gauge := func(name, help string, value func(status) float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, func() float64 {
			d.mu.Lock()
			defer d.mu.Unlock()
			return value(d.status)
		})
	}
	m.registry.MustRegister(m.writes, m.failures, m.delay,
		gauge("records", "Lines in the hosts file's block.", func(s status) float64 { return float64(s.records) }),
		gauge("sets", "StatefulSets of this node's units.", func(s status) float64 { return float64(s.sets) }),
		gauge("in_sync", "1 while the hosts file is what it should be.", func(s status) float64 {
			if s.synced && s.err == nil && s.blocked == "" && s.pending == 0 {
				return 1
			}
			return 0
		}),
		sourceCollector{d},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

var (
	descUp      = prometheus.NewDesc(namespace+"_upstream_up", "1 while the last list or watch of the source succeeded.", []string{"source"}, nil)
	descSynced  = prometheus.NewDesc(namespace+"_upstream_synced", "1 once the source was listed completely.", []string{"source"}, nil)
	descContact = prometheus.NewDesc(namespace+"_upstream_last_contact_seconds", "Seconds since the API server was last heard of on the source.", []string{"source"}, nil)
)

// sourceCollector reads the sources' states when it is scraped.
type sourceCollector struct{ daemon *Daemon }

// Describe implements prometheus.Collector.
func (c sourceCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUp, descSynced, descContact} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c sourceCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, source string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, source)
	}
	for _, s := range c.daemon.states() {
		gauge(descUp, number(s.Err == nil), s.Name)
		gauge(descSynced, number(s.Synced), s.Name)
		if !s.LastContact.IsZero() {
			gauge(descContact, time.Since(s.LastContact).Seconds(), s.Name)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
