package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/health"
	"github.com/application-grid/application-grid/pkg/quota"
)

const namespace = "application_grid_hub"

// metrics are the hub's own, besides those of k8s.io/apiserver. They implement serve.Observer, and collect what the
// shares and the sources know when they are asked.
type metrics struct {
	*health.Watches

	all []prometheus.Collector
}

func newMetrics(answers *shareServer, memory *quota.Quota, states func() []follow.State) *metrics {
	m := &metrics{
		Watches: health.NewWatches(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams", Help: "Streams of shares under way.",
		}, prometheus.HistogramOpts{
			Namespace: namespace,
			Name:      "event_delay_seconds",
			Help:      "Time from the arrival of a change to the write of its event to a stream.",
		}),
	}
	m.all = append(m.Collectors(),
		shareCollector{answers, memory}, health.Sources(namespace, states))
	return m
}

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, nil, nil)
}

var (
	descNodes = desc("nodes",
		"Nodes whose share somebody follows.")
	descClasses = desc("classes",
		"Classes of these nodes: those with the same values of a set of keys that Services have together.")
	descKeySets = desc("key_sets",
		"Sets of topology keys that Services have together. Beyond 16 of them Services are matched node by node.")
	descQueued = desc("queued_bytes", "Memory of what streams have not been sent yet.")
	descBehind = desc("streams_behind_total",
		"Streams that were ended because their clients did not take what they were sent.")
	descRefused = desc("streams_refused_total",
		"Streams that were answered 429 because their caller had too many.")
	descListBytes = desc("list_bytes", "Memory that lists under way take; --max-list-bytes bounds it.")
	descMayHave   = desc("streams_allowed",
		"Streams that this replica may have; it ends some when there are more. 0 if there may be any "+
			"number, as there is no other replica.")
	descShed         = desc("streams_shed_total", "Streams that were ended because they are another replica's part.")
	descListsRefused = desc("lists_refused_total", "Lists that were answered 429 because there was no room for them.")
)

// shareCollector reads the shares when it is scraped.
type shareCollector struct {
	answers *shareServer
	memory  *quota.Quota
}

// Describe implements prometheus.Collector.
func (c shareCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descNodes, descClasses, descKeySets, descQueued, descBehind, descRefused, descMayHave, descShed, descListBytes,
		descListsRefused,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c shareCollector) Collect(ch chan<- prometheus.Metric) {
	shares, memory := c.answers.shares.stats(), c.memory.Stats()
	ch <- prometheus.MustNewConstMetric(descNodes, prometheus.GaugeValue, float64(shares.nodes))
	ch <- prometheus.MustNewConstMetric(descClasses, prometheus.GaugeValue, float64(shares.classes))
	ch <- prometheus.MustNewConstMetric(descKeySets, prometheus.GaugeValue, float64(shares.sets))
	ch <- prometheus.MustNewConstMetric(descQueued, prometheus.GaugeValue, float64(shares.queued))
	ch <- prometheus.MustNewConstMetric(descBehind, prometheus.CounterValue, float64(shares.behind))
	ch <- prometheus.MustNewConstMetric(descRefused, prometheus.CounterValue, float64(c.answers.refusals()))
	may, ended := c.answers.shedder.stats()
	ch <- prometheus.MustNewConstMetric(descMayHave, prometheus.GaugeValue, float64(may))
	ch <- prometheus.MustNewConstMetric(descShed, prometheus.CounterValue, float64(ended))
	ch <- prometheus.MustNewConstMetric(descListBytes, prometheus.GaugeValue, float64(memory.Taken))
	ch <- prometheus.MustNewConstMetric(descListsRefused, prometheus.CounterValue, float64(memory.Refused))
}
