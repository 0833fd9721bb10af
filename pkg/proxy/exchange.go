package proxy

import (
	"fmt"

	"github.com/application-grid/application-grid/pkg/autonomy/exchange"
	"github.com/application-grid/application-grid/pkg/autonomy/livepods"
)

// SiteExchange configures the exchange of facts with the neighbours.
type SiteExchange struct {
	// Port is the port of the exchange on all nodes of the site.
	Port uint16
	// KeyFile is the path of the file with the keys.
	KeyFile string
}

func (p *Proxy) makeExchange() {
	options := p.config.SiteExchange
	if options == nil {
		return
	}
	p.addressUnknown = make(chan struct{}, 1)
	p.exchange = exchange.New(exchange.Config{
		NodeName: p.config.NodeName,
		Port:     options.Port,
		KeyFile:  options.KeyFile,
		Facts:    p.facts,
		Needed:   func() bool { return p.upstreamState() != livepods.Followed || p.livePods.Status().Returning },
		AddressUnknown: func() {
			select {
			case p.addressUnknown <- struct{}{}:
			default:
			}
		},
		Ignored: func(reason string) { p.metrics.messagesIgnored.WithLabelValues(reason).Inc() },
		Asked:   func(err error) { countAnswer(p.metrics.neighbourRequests, err) },
	})
}

// exchangeDetail describes which nodes of the site take part, and possible problems.
func exchangeDetail(s exchange.Status, pods livepods.Status, declared bool) string {
	if s.Err != nil {
		return fmt.Sprintf("site-exchange: off: %v", s.Err)
	}
	said := fmt.Sprintf("site-exchange: ok, %d of %d neighbours take part", len(s.Alive), s.Members)
	if len(s.Silent) > 0 {
		said += ", not heard any more: " + some(s.Silent)
	}
	if len(s.Suspected) > 0 {
		said += ", reached but without an answer: " + some(s.Suspected)
	}
	if s.Unreached != nil && len(s.Alive) < s.Members {
		said += fmt.Sprintf(" (%v)", s.Unreached)
	}
	if s.KeyErr != nil {
		said += fmt.Sprintf("; the keys are those from before, for the file cannot be used: %v", s.KeyErr)
	}
	if len(pods.Neighbours) > 0 {
		said += fmt.Sprintf("; pods on %s are shown as these nodes say, %d of them differently from what the API "+
			"server said last", some(pods.Neighbours), pods.NeighboursCorrected)
	}
	if !declared {
		said += "; without --site-keys the neighbours are the nodes that share the value of any Service's topology key"
	}
	return said
}
