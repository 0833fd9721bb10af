package hub

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/health"
	"github.com/application-grid/application-grid/pkg/quota"
	"github.com/application-grid/application-grid/pkg/storage/view"
)

const namespace = "application_grid_hub"

// metrics are the hub's own, besides those of k8s.io/apiserver. They implement serve.Observer, and collect what the
// shares and the sources know when they are asked.
type metrics struct {
	streams    *prometheus.GaugeVec
	eventDelay *prometheus.HistogramVec
	all        []prometheus.Collector
}

func newMetrics(shares *view.Shares, memory *quota.Quota, states func() []follow.State) *metrics {
	m := &metrics{
		streams: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams", Help: "Watches of shares under way, by resource.",
		}, []string{"resource"}),
		eventDelay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "event_delay_seconds", Help: "Time from the arrival of a change to the write of its event to a stream.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"resource"}),
	}
	m.all = []prometheus.Collector{m.streams, m.eventDelay, shareCollector{shares, memory}, health.Sources(namespace, states)}
	return m
}

// WatchStarted implements serve.Observer.
func (m *metrics) WatchStarted(resource string) func() {
	gauge := m.streams.WithLabelValues(resource)
	gauge.Inc()
	return gauge.Dec
}

// EventSent implements serve.Observer.
func (m *metrics) EventSent(resource string, delay time.Duration) {
	m.eventDelay.WithLabelValues(resource).Observe(delay.Seconds())
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, nil, nil)
}

var (
	descNodes        = desc("nodes", "Nodes whose share somebody asks for, or asked for in the last quarter of an hour.")
	descClasses      = desc("classes", "Classes of these nodes: those with the same values of all topology keys in use.")
	descListBytes    = desc("list_bytes", "Memory that lists under way take; --max-list-bytes bounds it.")
	descListsRefused = desc("lists_refused_total", "Lists that were answered 429 because there was no room for them.")
)

// shareCollector reads the shares when it is scraped.
type shareCollector struct {
	shares *view.Shares
	memory *quota.Quota
}

// Describe implements prometheus.Collector.
func (c shareCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descNodes, descClasses, descListBytes, descListsRefused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c shareCollector) Collect(ch chan<- prometheus.Metric) {
	shares, memory := c.shares.Stats(), c.memory.Stats()
	ch <- prometheus.MustNewConstMetric(descNodes, prometheus.GaugeValue, float64(shares.Nodes))
	ch <- prometheus.MustNewConstMetric(descClasses, prometheus.GaugeValue, float64(shares.Classes))
	ch <- prometheus.MustNewConstMetric(descListBytes, prometheus.GaugeValue, float64(memory.Taken))
	ch <- prometheus.MustNewConstMetric(descListsRefused, prometheus.CounterValue, float64(memory.Refused))
}
