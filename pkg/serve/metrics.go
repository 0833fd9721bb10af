package serve

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Watches counts the watches that a program serves, and measures how late their events are. It implements Observer.
type Watches struct {
	underWay   *prometheus.GaugeVec
	eventDelay *prometheus.HistogramVec
}

// NewWatches makes Watches of these metrics, by resource. The buckets of the delay are set here.
func NewWatches(underWay prometheus.GaugeOpts, eventDelay prometheus.HistogramOpts) *Watches {
	eventDelay.Buckets = prometheus.ExponentialBuckets(0.0001, 4, 9)
	labels := []string{"resource"}
	return &Watches{prometheus.NewGaugeVec(underWay, labels), prometheus.NewHistogramVec(eventDelay, labels)}
}

// Collectors returns the metrics to register.
func (w *Watches) Collectors() []prometheus.Collector {
	return []prometheus.Collector{w.underWay, w.eventDelay}
}

// WatchStarted implements Observer.
func (w *Watches) WatchStarted(resource string) (ended func()) {
	gauge := w.underWay.WithLabelValues(resource)
	gauge.Inc()
	return gauge.Dec
}

// EventSent implements Observer.
func (w *Watches) EventSent(resource string, delay time.Duration) {
	w.eventDelay.WithLabelValues(resource).Observe(delay.Seconds())
}
