package proxy

import (
	"net/http"

	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/health"
	"github.com/application-grid/application-grid/pkg/serve"
)

// chain puts the filters in order. A request meets them from the top down; what none of them answers goes
// upstream with the caller's own credentials.
func (p *Proxy) chain() http.Handler {
	viewing := filters.Viewing{Own: p.view, Units: p.units, OwnOnly: p.ownOnly}
	chain := []filters.Filter{
		filters.WithUnit(),
		filters.WithRequestInfo(),
		filters.WithRequestLog(p.metrics),
		filters.WithRecover(),
		p.door(),
		filters.WithLocalEndpoints(filters.LocalEndpoints{
			Alive:   http.HandlerFunc(health.Alive),
			Ready:   health.Ready(p.readiness().report),
			Metrics: p.metricsHandler(),
			Explain: http.HandlerFunc(p.explain),
			Debug:   p.config.Debug,
		}),
		filters.WithUpgrades(),
		filters.WithBodyLimit(filters.BodyTimeout),
		filters.WithWatchLimit(p.watches),
		filters.WithServed(&serve.Server{
			HistoryOf: viewing.History,
			Demand:    p.demand.of,
			Observer:  p.metrics,
			Admit: func(r *http.Request, bytes int) (done func(), ok bool) {
				return p.memory.AcquireN(filters.Caller(r), bytes)
			},
			Stopping: p.stopping.Done(),
		}, p.config.NodeName),
		filters.WithWrites(viewing, p.memory),
	}
	if p.lendsIdentity {
		chain = append(chain, filters.WithLentIdentity(filters.Forward(p.asWrapper), p.config.NodeName))
	}
	return wrap(filters.Forward(p.asCaller), chain...)
}

// door refuses requests of web pages. On a loopback address, and wherever names are allowed explicitly, it refuses
// those that name another host, too. Elsewhere TLS makes that needless: a browser that reaches the wrapper by a name
// that its certificate does not have sends no request at all.
func (p *Proxy) door() filters.Filter {
	pages := filters.WithoutWebPages(p.hosts)
	if !p.loopback && len(p.config.AllowedHosts) == 0 {
		return pages
	}
	hosts := filters.WithHosts(p.hosts)
	return func(next http.Handler) http.Handler { return hosts(pages(next)) }
}

// wrap puts filters around a handler, the first outermost.
func wrap(handler http.Handler, chain ...filters.Filter) http.Handler {
	for i := len(chain) - 1; i >= 0; i-- {
		handler = chain[i](handler)
	}
	return handler
}
