package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/serve"
)

const namespace = "application_grid_hub"

// metrics are the hub's own metrics, besides those of k8s.io/apiserver. They implement serve.Observer, and read the
// shares and the sources when they are scraped.
type metrics struct {
	*serve.Watches

	all []prometheus.Collector
}

func newMetrics(s *Server) *metrics {
	m := &metrics{
		Watches: serve.NewWatches(prometheus.GaugeOpts{
			Namespace: namespace, Name: "streams", Help: "Streams of shares under way.",
		}, prometheus.HistogramOpts{
			Namespace: namespace,
			Name:      "event_delay_seconds",
			Help:      "Time from the arrival of a change to the write of its event to a stream.",
		}),
	}
	m.all = append(m.Collectors(), follow.Metrics(namespace, s.group.States))
	gauge := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: namespace, Name: name, Help: help,
		}, value))
	}
	counter := func(name, help string, value func() float64) {
		m.all = append(m.all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: namespace, Name: name, Help: help,
		}, value))
	}
	ofShares := func(figure func(*shares) int) func() float64 {
		return func() float64 {
			s.shares.mu.Lock()
			defer s.shares.mu.Unlock()
			return float64(figure(s.shares))
		}
	}
	gauge("classes",
		"Classes of the nodes of streams: those with the same values of a set of keys that Services have together.",
		ofShares((*shares).classes))
	gauge("key_sets",
		"Sets of topology keys that Services have together. Beyond 16 of them Services are matched node by node.",
		ofShares(func(s *shares) int { return len(s.sets) - 1 })) // without that of single nodes
	gauge("queued_bytes", "Memory of what streams have not been sent yet.",
		func() float64 { return float64(s.shares.queued.Load()) })
	counter("streams_behind_total",
		"Streams that were ended because their clients did not take what they were sent.",
		ofShares(func(s *shares) int { return s.behind }))
	counter("refused_total", "Requests for shares that were answered 429.",
		func() float64 { return float64(s.refused.Load()) })
	return m
}
