package hub

import (
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
	*health.Watches

	all []prometheus.Collector
}

func newMetrics(shares *view.Shares, memory *quota.Quota, shedder *shedder, states func() []follow.State) *metrics {
	m := &metrics{
		Watches: health.NewWatches(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams", Help: "Watches of shares under way, by resource.",
		}, prometheus.HistogramOpts{
			Namespace: namespace,
			Name:      "event_delay_seconds",
			Help:      "Time from the arrival of a change to the write of its event to a stream.",
		}),
	}
	m.all = append(m.Collectors(),
		shareCollector{shares, memory, shedder}, health.Sources(namespace, states))
	return m
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, nil, nil)
}

var (
	descNodes = desc("nodes",
		"Nodes whose share somebody asks for, or asked for in the last quarter of an hour.")
	descClasses = desc("classes",
		"Classes of these nodes: those with the same values of all topology keys in use.")
	descListBytes = desc("list_bytes", "Memory that lists under way take; --max-list-bytes bounds it.")
	descMayHave   = desc("streams_allowed",
		"Requests under way that this replica may have; it ends some when there are more. 0 if there may be any "+
			"number, as there is no other replica.")
	descShed         = desc("streams_shed_total", "Streams that were ended because they are another replica's part.")
	descListsRefused = desc("lists_refused_total", "Lists that were answered 429 because there was no room for them.")
)

// shareCollector reads the shares when it is scraped.
type shareCollector struct {
	shares  *view.Shares
	memory  *quota.Quota
	shedder *shedder
}

// Describe implements prometheus.Collector.
func (c shareCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descNodes, descClasses, descMayHave, descShed, descListBytes, descListsRefused,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c shareCollector) Collect(ch chan<- prometheus.Metric) {
	shares, memory := c.shares.Stats(), c.memory.Stats()
	ch <- prometheus.MustNewConstMetric(descNodes, prometheus.GaugeValue, float64(shares.Nodes))
	ch <- prometheus.MustNewConstMetric(descClasses, prometheus.GaugeValue, float64(shares.Classes))
	may, ended := c.shedder.stats()
	ch <- prometheus.MustNewConstMetric(descMayHave, prometheus.GaugeValue, float64(may))
	ch <- prometheus.MustNewConstMetric(descShed, prometheus.CounterValue, float64(ended))
	ch <- prometheus.MustNewConstMetric(descListBytes, prometheus.GaugeValue, float64(memory.Taken))
	ch <- prometheus.MustNewConstMetric(descListsRefused, prometheus.CounterValue, float64(memory.Refused))
}
