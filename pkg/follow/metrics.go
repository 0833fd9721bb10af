package follow

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type collector struct {
	states                                           func() []State
	up, synced, contact, lists, fromCache, forbidden *prometheus.Desc
}

// Metrics collects the metrics of followed sources. Their names begin with namespace. It calls states at every scrape;
// no two states may have the same name.
func Metrics(namespace string, states func() []State) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "upstream", name), help, []string{"source"}, nil)
	}
	return &collector{
		states: states,
		up: desc("up",
			"1 while the source is followed: its last list or watch succeeded, and came from no cache."),
		synced: desc("synced", "1 once the source was listed completely."),
		contact: desc("last_contact_seconds",
			"Seconds since the last contact of the source with the upstream (a list, an event, or a bookmark, which "+
				"arrives about every minute). Answers from a cache do not count."),
		lists:     desc("lists_total", "Complete lists taken from the upstream."),
		fromCache: desc("from_cache", "1 while the upstream answers from a cache, because what is behind it is away."),
		forbidden: desc("forbidden",
			"1 while the upstream has been refusing the source for a while (401 or 403): its credentials have ended, "+
				"or lack a permission."),
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.up, c.synced, c.contact, c.lists, c.fromCache, c.forbidden} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.states() {
		if !s.Started {
			continue
		}
		gauge := func(desc *prometheus.Desc, value float64) {
			ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.Name)
		}
		gauge(c.up, number(s.Err == nil && s.Synced))
		gauge(c.synced, number(s.Synced))
		gauge(c.fromCache, number(s.FromCache))
		gauge(c.forbidden, number(s.Forbidden))
		ch <- prometheus.MustNewConstMetric(c.lists, prometheus.CounterValue, float64(s.Lists), s.Name)
		if !s.LastContact.IsZero() {
			gauge(c.contact, time.Since(s.LastContact).Seconds())
		}
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
