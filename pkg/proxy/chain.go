package proxy

import (
	"net/http"
	_ "net/http/pprof" //nolint:gosec // nothing serves the default mux but --debug
	"slices"

	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/serve"
)

// chain puts the filters in order. A request passes them from the top down. If none of them answers it, it goes
// upstream with the caller's own credentials.
func (p *Proxy) chain() http.Handler {
	views := filters.Views{Own: p.view, Sites: p.sites}
	if p.config.Hub {
		views.OwnOnly = errOwnShare
	}
	var profiles http.Handler // of /debug/pprof, which package pprof adds to the default mux
	if p.config.Debug {
		profiles = http.DefaultServeMux
	}
	chain := []filters.Filter{
		filters.WithSite(),
		filters.WithRequestLog(p.metrics.requestDone),
		filters.WithRecover(),
	}
	// Elsewhere TLS makes this unnecessary: a browser that reaches the wrapper by a name that is not in its certificate
	// sends no request.
	if p.loopback || len(p.config.AllowedHosts) > 0 {
		chain = append(chain, filters.WithAllowedHosts(p.hosts))
	}
	chain = append(chain,
		filters.WithoutCrossOrigin(p.hosts),
		filters.WithOwnPaths(filters.OwnPaths{
			Alive:    http.HandlerFunc(health.Alive),
			Ready:    health.Ready(p.report),
			Metrics:  p.metrics.handler(),
			Explain:  http.HandlerFunc(p.explain),
			Link:     p.link,
			Profiles: profiles,
		}),
		filters.WithoutFalseUpgrades(),
		filters.WithBodyLimit(filters.BodyTimeout),
		filters.WithWatchLimit(p.watches),
		filters.WithServedResources(&serve.Server{
			HistoryOf: views.History,
			Demand:    p.demand.begin,
			Observer:  p.metrics,
			Corrected: func() bool {
				return p.livePods != nil && (p.upstreamState() == livepods.Away || p.livePods.Status().Returning)
			},
			Admit: func(r *http.Request, bytes int) (done func(), ok bool) {
				return p.listBytes.AcquireN(filters.Caller(r), bytes)
			},
			Stopping: p.stopping.Done(),
		}, p.config.NodeName),
		filters.WithoutAlteredWrites(views),
	)
	if p.keptAnswers != nil {
		chain = append(chain, filters.WithKeptAnswers(p.keptAnswers))
	}
	if p.delegatesIdentity {
		chain = append(chain, filters.WithDelegatedIdentity(filters.Forward(p.asWrapper), p.config.NodeName))
	}
	handler := filters.Forward(p.asCaller)
	for _, filter := range slices.Backward(chain) {
		handler = filter(handler)
	}
	return handler
}
