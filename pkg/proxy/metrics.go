package proxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/application-grid/application-grid/pkg/quota"
	"github.com/application-grid/application-grid/pkg/snapshot"
	"github.com/application-grid/application-grid/pkg/storage"
	"github.com/application-grid/application-grid/pkg/upstream"
)

const namespace = "application_grid_wrapper"

// metrics are the wrapper's. They implement serve.Observer, filters.RequestObserver and autonomy.Observer, and collect what the
// Store and the upstream know when they are asked.
type metrics struct {
	registry *prometheus.Registry

	requests        *prometheus.CounterVec
	requestDuration *prometheus.HistogramVec
	watchers        *prometheus.GaugeVec
	eventDelay      *prometheus.HistogramVec
	autonomyPolls   *prometheus.CounterVec
}

func newMetrics(store *storage.Store, up *upstream.Upstream, snapshots *snapshot.Writer) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "requests_total", Help: "Requests answered, by resource, verb and status code.",
		}, []string{"resource", "verb", "code"}),
		requestDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "request_duration_seconds", Help: "Time to answer a request that is not a watch.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"resource", "verb"}),
		watchers: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: namespace, Name: "watchers", Help: "Watches under way, by resource.",
		}, []string{"resource"}),
		eventDelay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "event_delay_seconds", Help: "Time from the arrival of an upstream change to the write of its event to a client.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"resource"}),
		autonomyPolls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "autonomy_polls_total", Help: "Polls of the health service that tells which neighbours are dead, by result: ok, unreachable, timeout, status (not 200) or invalid (not the JSON that it should be). After all but ok no node is dead.",
		}, []string{"result"}),
	}
	m.registry.MustRegister(m.requests, m.requestDuration, m.watchers, m.eventDelay, m.autonomyPolls,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		storeCollector{store}, upstreamCollector{up})
	if snapshots != nil {
		m.registry.MustRegister(snapshotCollector{snapshots})
	}
	return m
}

// knownVerbs bounds the label's values: a method may be any token.
var knownVerbs = map[string]bool{"get": true, "list": true, "watch": true, "create": true, "update": true, "patch": true, "delete": true, "deletecollection": true, "post": true, "put": true, "head": true, "options": true}

// RequestDone implements filters.RequestObserver. Resources that are not the wrapper's concern are counted
// together, so that no client can make the number of series grow.
func (m *metrics) RequestDone(resource, verb, code string, took time.Duration) {
	if !knownResources[resource] {
		resource = "other"
	}
	if !knownVerbs[verb] {
		verb = "other"
	}
	m.requests.WithLabelValues(resource, verb, code).Inc()
	if verb != "watch" {
		m.requestDuration.WithLabelValues(resource, verb).Observe(took.Seconds())
	}
}

var knownResources = func() map[string]bool {
	known := map[string]bool{"events": true, "servicecidrs": true}
	for _, r := range storage.Resources() {
		known[r.Resource] = true
	}
	return known
}()

// WatchStarted implements serve.Observer.
func (m *metrics) WatchStarted(resource string) func() {
	gauge := m.watchers.WithLabelValues(resource)
	gauge.Inc()
	return gauge.Dec
}

// EventSent implements serve.Observer.
func (m *metrics) EventSent(resource string, delay time.Duration) {
	m.eventDelay.WithLabelValues(resource).Observe(delay.Seconds())
}

// PollDone implements autonomy.Observer.
func (m *metrics) PollDone(result string) { m.autonomyPolls.WithLabelValues(result).Inc() }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
}

var (
	descObjects   = desc("objects", "Objects shown to clients, by resource.", "resource")
	descEndpoints = desc("endpoints", "Endpoints in the objects shown, by resource and by whether this node may see them (kept) or not (hidden).", "resource", "view")
	descLogLength = desc("log_events", "Events in the log that watches resume from, by resource.", "resource")
	descRevision  = desc("revision", "The wrapper's own newest resourceVersion.")
	descNodes     = desc("nodes", "Nodes known.")
	descDead      = desc("dead_nodes", "Nodes that the health service calls dead; endpoints on them are hidden.")
	descInvalid   = desc("invalid_topology_keys", "1 for every Service whose annotation topologyKeys does not parse; all its endpoints are hidden.", "namespace", "service")

	descRestoredAge = desc("snapshot_served_age_seconds", "Age of the snapshot that is served because the upstream was not there when the wrapper started; absent once the upstream's state is served.")

	descConnections        = desc("connections", "Connections of clients that are open; --max-connections bounds them.")
	descConnectionsRefused = desc("connections_refused_total", "Connections that were closed because there was no place for them.")
	descWatches            = desc("watches", "Watches and followed logs under way, those included that are passed on; --max-watches bounds them.")
	descWatchesRefused     = desc("watches_refused_total", "Watches that were answered 429 because there was no place for them.")

	descSnapshotWrites = desc("snapshot_writes_total", "Snapshots written to the state directory, by result.", "result")
	descSnapshotBytes  = desc("snapshot_written_bytes_total", "Bytes written to the state directory.")
	descSnapshotSize   = desc("snapshot_size_bytes", "Size of the snapshot on disk; 0 if there is none.")

	descUpstreamUp      = desc("upstream_up", "1 while the last list or watch of the source succeeded.", "source")
	descUpstreamSynced  = desc("upstream_synced", "1 once the source was listed completely.", "source")
	descUpstreamContact = desc("upstream_last_contact_seconds", "Seconds since the upstream was last heard of on the source (a list, an event, or a bookmark, which comes about every minute).", "source")
	descUpstreamLists   = desc("upstream_lists_total", "Complete lists taken from the upstream.", "source")
)

// storeCollector reads the Store when it is scraped.
type storeCollector struct{ store *storage.Store }

// Describe implements prometheus.Collector.
func (c storeCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descObjects, descEndpoints, descLogLength, descRevision, descNodes, descDead, descInvalid, descRestoredAge} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c storeCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for _, s := range c.store.Stats() {
		name := s.Resource.Resource
		gauge(descObjects, float64(s.Objects), name)
		gauge(descLogLength, float64(s.LogLength), name)
		if s.Resource == storage.EndpointSlices || s.Resource == storage.Endpoints {
			gauge(descEndpoints, float64(s.Endpoints.Kept), name, "kept")
			gauge(descEndpoints, float64(s.Endpoints.Hidden), name, "hidden")
		}
	}
	gauge(descRevision, float64(c.store.Revision()))
	gauge(descNodes, float64(c.store.NodeCount()))
	if asOf, restored := c.store.Restored(); restored {
		gauge(descRestoredAge, age(asOf).Seconds())
	}
	gauge(descDead, float64(len(c.store.DeadNodes())))
	for service := range c.store.Invalid() {
		gauge(descInvalid, 1, service.Namespace, service.Name)
	}
}

// quotaCollector reads how many places are taken when it is scraped.
type quotaCollector struct{ connections, watches *quota.Quota }

// Describe implements prometheus.Collector.
func (c quotaCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descConnections, descConnectionsRefused, descWatches, descWatchesRefused} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c quotaCollector) Collect(ch chan<- prometheus.Metric) {
	connections, watches := c.connections.Stats(), c.watches.Stats()
	ch <- prometheus.MustNewConstMetric(descConnections, prometheus.GaugeValue, float64(connections.Taken))
	ch <- prometheus.MustNewConstMetric(descConnectionsRefused, prometheus.CounterValue, float64(connections.Refused))
	ch <- prometheus.MustNewConstMetric(descWatches, prometheus.GaugeValue, float64(watches.Taken))
	ch <- prometheus.MustNewConstMetric(descWatchesRefused, prometheus.CounterValue, float64(watches.Refused))
}

// snapshotCollector reads what was written when it is scraped.
type snapshotCollector struct{ snapshots *snapshot.Writer }

// Describe implements prometheus.Collector.
func (c snapshotCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descSnapshotWrites, descSnapshotBytes, descSnapshotSize} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c snapshotCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.snapshots.Stats()
	ch <- prometheus.MustNewConstMetric(descSnapshotWrites, prometheus.CounterValue, float64(s.Writes), "ok")
	ch <- prometheus.MustNewConstMetric(descSnapshotWrites, prometheus.CounterValue, float64(s.Errors), "error")
	ch <- prometheus.MustNewConstMetric(descSnapshotBytes, prometheus.CounterValue, float64(s.Bytes))
	ch <- prometheus.MustNewConstMetric(descSnapshotSize, prometheus.GaugeValue, float64(s.Size))
}

// upstreamCollector reads the sources' states when it is scraped.
type upstreamCollector struct{ upstream *upstream.Upstream }

// Describe implements prometheus.Collector.
func (c upstreamCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descUpstreamUp, descUpstreamSynced, descUpstreamContact, descUpstreamLists} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c upstreamCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.upstream.States() {
		if !s.Started {
			continue
		}
		ch <- prometheus.MustNewConstMetric(descUpstreamUp, prometheus.GaugeValue, number(s.Err == nil && !s.LastContact.IsZero()), s.Name)
		ch <- prometheus.MustNewConstMetric(descUpstreamSynced, prometheus.GaugeValue, number(s.Synced), s.Name)
		ch <- prometheus.MustNewConstMetric(descUpstreamLists, prometheus.CounterValue, float64(s.Lists), s.Name)
		if !s.LastContact.IsZero() {
			ch <- prometheus.MustNewConstMetric(descUpstreamContact, prometheus.GaugeValue, time.Since(s.LastContact).Seconds(), s.Name)
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
