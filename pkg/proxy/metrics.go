package proxy

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/application-grid/application-grid/pkg/autonomy/exchange"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/serve"
	"github.com/application-grid/application-grid/pkg/serve/quota"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/served"
)

const namespace = "application_grid_wrapper"

// metrics has the wrapper's metrics. It implements serve.Observer and livepods.Observer. Metrics of the facts, the view
// and the upstream are collected at every scrape.
type metrics struct {
	*serve.Watches

	registry          *prometheus.Registry
	requests          *prometheus.CounterVec
	requestDuration   *prometheus.HistogramVec
	autonomyPolls     *prometheus.CounterVec
	runtimePolls      *prometheus.CounterVec
	messagesIgnored   *prometheus.CounterVec
	neighbourRequests *prometheus.CounterVec
}

func newMetrics(p *Proxy) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: counter("requests_total", "Requests answered, by resource, verb and status code.",
			"resource", "verb", "code"),
		requestDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace,
			Name:      "request_duration_seconds",
			Help:      "Time to answer a request that is not a watch.",
			Buckets:   prometheus.ExponentialBuckets(0.0001, 4, 9),
		}, []string{"resource", "verb"}),
		Watches: serve.NewWatches(prometheus.GaugeOpts{
			Namespace: namespace, Name: "watchers", Help: "Watches under way, by resource.",
		}, prometheus.HistogramOpts{
			Namespace: namespace,
			Name:      "event_delay_seconds",
			Help:      "Time from the arrival of an upstream change to the write of its event to a client.",
		}),
		autonomyPolls: counter("autonomy_polls_total",
			"Polls of the health service that tells which neighbours are dead, by result: ok, "+
				"timeout or error. After all but ok no node is dead.", "result"),
		runtimePolls: counter("runtime_polls_total",
			"Questions to the container runtime which pods this node runs, by result: ok, timeout or error. It "+
				"is asked every second while the upstream is away, and every 10 s otherwise.", "result"),
		messagesIgnored: counter("neighbour_messages_ignored_total",
			"What came to the port of the site exchange and was ignored, by reason: stranger (the address is "+
				"no neighbour's), flood, key (another key or cluster, another's name, or replayed), address (a pod "+
				"with an address that cannot be its own), or format.", "reason"),
		neighbourRequests: counter("neighbour_requests_total",
			"Questions to neighbours how their pods are, by result: ok, timeout or error. They are asked every "+
				"second while the upstream is away, and every 5 minutes otherwise.", "result"),
	}
	if p.config.SiteExchange != nil {
		for _, reason := range exchange.Reasons() {
			m.messagesIgnored.WithLabelValues(reason) // so that a rate includes the first one
		}
	}
	m.registry.MustRegister(m.Collectors()...)
	m.registry.MustRegister(m.requests, m.requestDuration, m.autonomyPolls, m.runtimePolls, m.messagesIgnored,
		m.neighbourRequests, p.panicked.count,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collector{p}, follow.Metrics(namespace, p.upstream.States))
	return m
}

// handler returns the handler of /metrics. It does not compress: a compressor makes a megabyte of garbage at every
// scrape, and the response is small.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{DisableCompression: true})
}

// knownVerbs are the values of the label verb. Others are counted as "other", because a client may send any token as
// its method.
var knownVerbs = map[string]bool{
	"get": true, "list": true, "watch": true, "create": true, "update": true, "patch": true, "delete": true,
	"deletecollection": true, "post": true, "put": true, "head": true, "options": true,
}

// requestDone counts a request. Resources that the wrapper does not serve are counted together, so that clients cannot
// increase the number of series.
func (m *metrics) requestDone(resource, verb, code string, took time.Duration) {
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
	for _, r := range served.All() {
		known[r.Resource] = true
	}
	return known
}()

func (m *metrics) RuntimeAsked(err error) { countAnswer(m.runtimePolls, err) }

func countAnswer(questions *prometheus.CounterVec, err error) {
	result := "ok"
	switch {
	case utilnet.IsTimeout(err):
		result = "timeout"
	case err != nil:
		result = "error"
	}
	questions.WithLabelValues(result).Inc()
}

func (m *metrics) PodsRefused(count int) {
	m.messagesIgnored.WithLabelValues(exchange.ReasonAddress).Add(float64(count))
}

// descriptions are all descriptions that desc made.
var descriptions []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, labels, nil)
	descriptions = append(descriptions, d)
	return d
}

var (
	descObjects   = desc("objects", "Objects shown to clients, by resource.", "resource")
	descEndpoints = desc("endpoints",
		"Endpoints in the objects shown, by resource and by whether this node may see them (kept) or not (hidden).",
		"resource", "view")
	descLogLength = desc("history_events", "Events in the log that watches resume from, by resource.", "resource")
	descPastBytes = desc("history_bytes",
		"Memory that the log of events holds for watches that resume or lag, by resource.",
		"resource")
	descSites = desc("site_views",
		"Views of sites that are kept because clients request them under /superedge-ingress/.")
	descRevision = desc("revision", "The wrapper's own newest resourceVersion.")
	descNodes    = desc("nodes", "Nodes known.")
	descDead     = desc("dead_nodes",
		"Nodes that the health service calls dead; endpoints on them are hidden where others are ready.")
	descLive = desc("corrected_pods",
		"Pods of this node whose endpoints are shown as its container runtime has them, because the upstream is away "+
			"or has not caught up; absent without --cri.")
	descMembers = desc("neighbours",
		"Other nodes of the site, by state: alive (it takes part in the exchange), suspected (it is reached but does "+
			"not answer), silent (it no longer answers) or unknown (it has not answered since this wrapper started); "+
			"absent without --site-exchange=on.", "state")
	descHidden = desc("silent_nodes",
		"Neighbours whose endpoints are hidden, because they do not answer while the upstream is away.")
	descNeighbourPods = desc("neighbours_corrected_pods",
		"Pods of neighbours whose endpoints are shown as these say themselves, because the upstream is away or has "+
			"not caught up; absent without --site-exchange=on.")
	descInvalid = desc("invalid_topology_keys",
		"1 for every Service whose annotation topologyKeys, or openyurt.io/topologyKeys where that is absent, does "+
			"not parse; all its endpoints are hidden.",
		"namespace", "service")

	descRestoredAge = desc("snapshot_served_age_seconds",
		"Age of the snapshot that is served because the upstream was not there when the wrapper started; absent once "+
			"the upstream's state is served.")

	descSnapshotWrites = desc("snapshot_writes_total", "Snapshots written to the state directory, by result.", "result")
	descSnapshotBytes  = desc("snapshot_written_bytes_total", "Bytes written to the state directory.")
	descSnapshotSize   = desc("snapshot_size_bytes", "Size of the snapshot on disk; 0 without one.")
)

// collector reads the facts, the node's view and the statistics of the state directory when it is scraped.
type collector struct{ p *Proxy }

func (collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	h := c.p.view.History()
	for _, s := range h.Stats() {
		name := s.Resource.Resource
		gauge(descObjects, float64(s.Objects), name)
		gauge(descLogLength, float64(s.LogLength), name)
		gauge(descPastBytes, float64(s.LogBytes), name)
		if s.Resource == served.EndpointSlices || s.Resource == served.Endpoints {
			count := c.p.view.CountEndpoints(s.Resource)
			gauge(descEndpoints, float64(count.Kept), name, "kept")
			gauge(descEndpoints, float64(count.Hidden), name, "hidden")
		}
	}
	gauge(descRevision, float64(h.Revision()))
	gauge(descNodes, float64(c.p.facts.NodeCount()))
	gauge(descSites, float64(c.p.sites.Len()))
	if state := c.p.view.ServedSnapshot(); state != nil {
		gauge(descRestoredAge, age(state.AsOf).Seconds())
	}
	gauge(descDead, float64(len(c.p.facts.Doubted(facts.Dead))))
	if c.p.config.Runtime != nil && c.p.livePods != nil {
		gauge(descLive, float64(c.p.livePods.Status().Corrected))
	}
	if c.p.exchange != nil {
		status := c.p.exchange.Status()
		alive, silent, suspected := len(status.Alive), len(status.Silent), len(status.Suspected)
		gauge(descMembers, float64(alive), "alive")
		gauge(descMembers, float64(silent), "silent")
		gauge(descMembers, float64(suspected), "suspected")
		gauge(descMembers, float64(status.Members-alive-silent-suspected), "unknown")
		gauge(descHidden, float64(len(c.p.facts.Doubted(facts.Silent))))
		gauge(descNeighbourPods, float64(c.p.livePods.Status().NeighboursCorrected))
	}
	for service := range c.p.facts.Invalid() {
		gauge(descInvalid, 1, service.Namespace, service.Name)
	}
	if snapshots := c.p.snapshots.Load(); snapshots != nil {
		counter := func(d *prometheus.Desc, value float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
		}
		written := snapshots.Stats()
		counter(descSnapshotWrites, float64(written.Writes), "ok")
		counter(descSnapshotWrites, float64(written.Errors), "error")
		counter(descSnapshotBytes, float64(written.Bytes))
		gauge(descSnapshotSize, float64(written.Size))
	}
}

// registerQuotas registers how many places are taken, and how often none was free.
func (m *metrics) registerQuotas(p *Proxy) {
	for _, bound := range []struct {
		*quota.Quota
		taken, takenHelp, refused, refusedHelp string
	}{{
		p.connections, "connections", "Connections of clients that are open; --max-connections bounds them.",
		"connections_refused_total", "Connections that were closed because there was no place for them.",
	}, {
		p.watches, "watches",
		"Watches and followed logs under way, those included that are passed on; --max-watches bounds them.",
		"watches_refused_total", "Watches that were answered 429 because there was no place for them.",
	}, {
		p.listBytes, "list_bytes",
		"Memory that lists under way take; --max-list-bytes bounds it.",
		"lists_refused_total", "Lists that were answered 429 because there was no room for them.",
	}} {
		m.registry.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Namespace: namespace, Name: bound.taken, Help: bound.takenHelp,
			}, func() float64 { return float64(bound.Stats().Taken) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Namespace: namespace, Name: bound.refused, Help: bound.refusedHelp,
			}, func() float64 { return float64(bound.Stats().Refused) }))
	}
}
