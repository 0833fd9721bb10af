package deadnodes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// MaxInterval is the longest time between two polls. The endpoints of a node that dies may be shown for that long.
const MaxInterval = 24 * time.Hour

// maxWait is the longest time that a poll may take.
const maxWait = 10 * time.Second

// Options say which service to poll, and how often.
type Options struct {
	// Address is the http or https URL of the health service.
	Address string
	// Interval is the time from one poll to the next, greater than 0 and at most MaxInterval.
	Interval time.Duration
}

// Validate returns an error for an invalid address.
func (o Options) Validate() error {
	address, err := url.Parse(o.Address)
	if err != nil {
		return fmt.Errorf("address=%q is not a URL: %w", o.Address, err)
	}
	if (address.Scheme != "http" && address.Scheme != "https") || address.Hostname() == "" {
		return fmt.Errorf(
			"address=%q is not an http or https URL with a host, such as http://localhost:51005/localinfo", o.Address,
		)
	}
	return nil
}

// wait is how long a poll may take: less than the interval, so that each ends before the next is due.
func (o Options) wait() time.Duration { return min(o.Interval*3/4, maxWait) }

// Nodes takes the names of the dead nodes, and knows which nodes exist.
type Nodes interface {
	// SetDoubted takes the names of all dead nodes, with facts.Dead. They may include names of nodes that do not exist.
	SetDoubted(why facts.Doubt, names map[string]struct{})
	// NodeExists reports whether a node of that name is known.
	NodeExists(name string) bool
	// Notes has the names of nodes by their known addresses.
	Notes() facts.Notes
}

// Config is what a Poller is made from.
type Config struct {
	Options
	// NodeName is this node's name. It is never dead.
	NodeName string
	Nodes    Nodes
	// ListAddresses lists the addresses of nodes for Nodes, if the last list is old enough; listed reports whether it
	// did. The Poller calls it when the service names an unknown address, one call at a time. It may take long.
	ListAddresses func(context.Context) (listed bool, err error)
	Observer      Observer
}

// Observer observes polls.
type Observer interface {
	// PollDone is called after every poll. err is why no endpoint is hidden; nil after a valid answer.
	PollDone(err error)
}

// Status is what a Poller has found.
type Status struct {
	// Dead has the names of the dead nodes, sorted.
	Dead []string
	// UnknownAddresses has the addresses in the service's answer that belong to no known node, sorted.
	UnknownAddresses []string
	// Err is why the last poll got no valid answer, so that no node counts as dead; nil after a valid answer.
	Err error
}

// Poller asks a health service which nodes are dead.
type Poller struct {
	config Config
	client *http.Client
	wg     sync.WaitGroup
	// listing is set while ListAddresses is called.
	listing atomic.Bool

	mu sync.Mutex
	// The fields below are guarded by mu. nodes has the last answer, and err is why there is none. status is what was
	// found in it.
	nodes  map[string]bool
	err    error
	status Status
	// said is what was logged last.
	said string
}

// New makes a Poller, which sends no request before Run.
func New(config Config) *Poller {
	client := &http.Client{
		// No proxy is used, because the service runs on this node. Connections are not kept: one request per interval
		// does not need that, and a kept connection that broke unnoticed would make a poll fail.
		Transport: &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10},
		// A redirect would point to another service.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &Poller{config: config, client: client, status: Status{Err: errors.New("it has not answered yet")}}
}

// Status returns what the Poller found last.
func (p *Poller) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Run polls until ctx is done, the first time at once, and returns when all that it started has ended.
func (p *Poller) Run(ctx context.Context) {
	defer p.wg.Wait()
	wait.NonSlidingUntilWithContext(ctx, p.poll, p.config.Interval)
}

// poll asks once, and has the addresses of nodes listed if the answer has unknown ones. The next poll does not wait for
// that.
func (p *Poller) poll(ctx context.Context) {
	attempt, cancel := context.WithTimeout(ctx, p.config.wait())
	defer cancel()
	nodes, err := p.ask(attempt)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && attempt.Err() != nil:
		err = fmt.Errorf("it does not answer in time (%s): %w", p.config.wait(), err)
	}
	p.mu.Lock()
	p.nodes, p.err = nodes, err
	p.mu.Unlock()
	unknown := p.show(ctx)
	p.config.Observer.PollDone(err)
	if unknown && p.listing.CompareAndSwap(false, true) {
		p.wg.Go(func() {
			defer p.listing.Store(false)
			listed, err := p.config.ListAddresses(ctx)
			switch {
			case listed:
				p.show(ctx)
			case err != nil && ctx.Err() == nil:
				klog.FromContext(ctx).Error(err, "Cannot list the addresses of nodes; nodes that the health service "+
					"names by address do not count as dead")
			}
		})
	}
}

// show passes the dead nodes of the last answer to Nodes, and reports whether an address in it is unknown.
func (p *Poller) show(ctx context.Context) (unknown bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	dead, unknownAddresses := p.names()
	before, now := p.status.Dead, slices.Sorted(maps.Keys(dead))
	if !slices.Equal(now, before) {
		p.config.Nodes.SetDoubted(facts.Dead, dead)
	}
	p.status = Status{Dead: now, UnknownAddresses: unknownAddresses, Err: p.err}
	if say := fmt.Sprint(p.err == nil, now, unknownAddresses); say != p.said {
		p.said = say
		logger := klog.FromContext(ctx)
		if p.err != nil {
			logger.Info("No node counts as dead: the health service gave no valid answer",
				"reason", p.err.Error(), "revived", len(before))
		} else {
			logger.Info("Hiding the endpoints on nodes that the health service calls dead",
				"dead", now, "unknownAddresses", unknownAddresses)
		}
	}
	return len(unknownAddresses) > 0
}

// names returns the names of the nodes that the answer calls dead, and the addresses in it that belong to no known
// node. p.mu is held.
func (p *Poller) names() (dead map[string]struct{}, unknownAddresses []string) {
	dead = make(map[string]struct{})
	known := p.config.Nodes.Notes().Addresses
	for key, isDead := range p.nodes {
		name := key
		// An address with a zone belongs to a link, not to a node. In some clusters the names of nodes are addresses.
		address, err := netip.ParseAddr(key)
		if err == nil && address.Zone() == "" && !p.config.Nodes.NodeExists(key) {
			if name = known[address.Unmap()]; name == "" {
				unknownAddresses = append(unknownAddresses, key)
				continue
			}
		}
		if isDead && name != p.config.NodeName {
			dead[name] = struct{}{}
		}
	}
	slices.Sort(unknownAddresses)
	return dead, unknownAddresses
}
