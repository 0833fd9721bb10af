package proxy

import (
	"fmt"
	"sync"

	"github.com/application-grid/application-grid/pkg/site/exchange"
	"github.com/application-grid/application-grid/pkg/site/livepods"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// SiteExchange says how facts are exchanged with the neighbours.
type SiteExchange struct {
	// Port is the port at which all nodes of the site are reached.
	Port uint16
	// KeyFile is the path of the file with the keys.
	KeyFile string
}

// makeExchange makes the exchange, if there is to be one.
func (p *Proxy) makeExchange() {
	options := p.config.SiteExchange
	if options == nil {
		return
	}
	p.doubted = make(chan struct{}, 1)
	upstream := podsUpstream{p}
	p.exchange = exchange.New(exchange.Config{
		NodeName: p.config.NodeName,
		Port:     options.Port,
		KeyFile:  options.KeyFile,
		Site:     &site{facts: p.facts},
		Away:     func() bool { return upstream.State() == livepods.Away },
		Needed: func() bool {
			return upstream.State() != livepods.Followed || p.livePods.Status().Returning
		},
		SetSilent:   p.facts.SetSilentNodes,
		Partners:    p.facts.Partners,
		SetPartners: p.facts.SetPartners,
		AddressDoubted: func() {
			select {
			case p.doubted <- struct{}{}:
			default:
			}
		},
		Observer: p.metrics,
	})
}

// site implements exchange.Site.
type site struct {
	facts *facts.Facts

	mu sync.Mutex
	// members are those at changes and listings of the facts. All three are guarded by mu.
	members           []exchange.Member
	changes, listings uint64
}

// Members implements exchange.Site. It looks at the nodes only if something has changed.
func (s *site) Members() []exchange.Member {
	changes := s.facts.Changes()
	var listings uint64
	s.facts.Read(func() { listings = s.facts.Listings() })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members != nil && changes == s.changes && listings == s.listings {
		return s.members
	}
	s.changes, s.listings = changes, listings
	s.members = []exchange.Member{}
	for _, node := range s.facts.Site() {
		s.members = append(s.members, exchange.Member{
			Name: node.Name, Addresses: node.InternalIPs, Shown: node.Shown,
		})
	}
	return s.members
}

// Cluster implements exchange.Site.
func (s *site) Cluster() string { return s.facts.ClusterUID() }

// exchangeDetail says who of the site takes part, and what may be wrong.
func exchangeDetail(s exchange.Status, pods livepods.Status, declared bool) string {
	if s.Err != nil {
		return fmt.Sprintf("site-exchange: off: %v", s.Err)
	}
	said := fmt.Sprintf("site-exchange: ok, %d of %d neighbours take part", len(s.Alive), s.Members)
	if len(s.Silent) > 0 {
		said += ", not heard any more: " + some(s.Silent)
	}
	if s.Unreached != nil && len(s.Alive) < s.Members {
		said += fmt.Sprintf(" (%v)", s.Unreached)
	}
	if len(s.OtherKey) > 0 {
		said += ", and what none of the keys opens comes from " + some(s.OtherKey)
	}
	if s.KeyErr != nil {
		said += fmt.Sprintf("; the keys are those from before, for the file cannot be used: %v", s.KeyErr)
	}
	if len(pods.Neighbours) > 0 {
		said += fmt.Sprintf("; pods on %s are shown as these nodes say, %d of them differently from what the API "+
			"server said last", some(pods.Neighbours), pods.NeighboursCorrected)
	}
	if !declared {
		said += "; without --site-label the neighbours are the nodes that share the value of any Service's topology key"
	}
	return said
}
