package deadnodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"k8s.io/utils/ptr"

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
	if err != nil || address.Scheme != "http" && address.Scheme != "https" || address.Hostname() == "" {
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
	// ListAddresses lists the addresses of nodes for Nodes, if the last list is old enough. The Poller calls it when
	// the service names an unknown address, one call at a time. It may take long. The next poll uses the addresses.
	ListAddresses func(context.Context) (listed bool, err error)
	// PollDone is called after every poll. err is why no endpoint is hidden; nil after a valid answer.
	PollDone func(err error)
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
	status  atomic.Pointer[Status]
	// said is what was logged last. Only the goroutine of Run uses it.
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
	p := &Poller{config: config, client: client}
	p.status.Store(&Status{Err: errors.New("it has not answered yet")})
	return p
}

// Status returns what the Poller found last.
func (p *Poller) Status() Status { return *p.status.Load() }

// Run polls until ctx is done, the first time at once, and returns when all that it started has ended.
func (p *Poller) Run(ctx context.Context) {
	defer p.wg.Wait()
	wait.NonSlidingUntilWithContext(ctx, p.poll, p.config.Interval)
}

// poll asks once, and has the addresses of nodes listed if the answer has unknown ones. The next poll does not wait for
// that.
func (p *Poller) poll(ctx context.Context) {
	wait := p.config.wait()
	attempt, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	answer, err := p.ask(attempt)
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && attempt.Err() != nil:
		err = fmt.Errorf("it does not answer in time (%s): %w", wait, err)
	}
	dead, unknown := p.names(answer)
	p.config.Nodes.SetDoubted(facts.Dead, dead)
	p.show(ctx, Status{Dead: slices.Sorted(maps.Keys(dead)), UnknownAddresses: unknown, Err: err})
	p.config.PollDone(err)
	if len(unknown) > 0 && p.listing.CompareAndSwap(false, true) {
		p.wg.Go(func() {
			defer p.listing.Store(false)
			if _, err := p.config.ListAddresses(ctx); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Cannot list the addresses of nodes; nodes that the health service "+
					"names by address do not count as dead")
			}
		})
	}
}

// show notes what was found, and logs what is new.
func (p *Poller) show(ctx context.Context, now Status) {
	before := p.status.Swap(&now)
	say := fmt.Sprint(now.Err == nil, now.Dead, now.UnknownAddresses)
	if say == p.said {
		return
	}
	p.said = say
	logger := klog.FromContext(ctx)
	if now.Err != nil {
		logger.Info("No node counts as dead: the health service gave no valid answer",
			"reason", now.Err.Error(), "revived", len(before.Dead))
	} else {
		logger.Info("Hiding the endpoints on nodes that the health service calls dead",
			"dead", now.Dead, "unknownAddresses", now.UnknownAddresses)
	}
}

// names returns the names of the nodes that an answer calls dead, and the addresses in it that belong to no known node,
// sorted.
func (p *Poller) names(answer map[string]health) (dead map[string]struct{}, unknownAddresses []string) {
	dead = make(map[string]struct{})
	known := p.config.Nodes.Notes().Addresses
	for key, node := range answer {
		name := key
		// An address with a zone belongs to a link, not to a node. In some clusters the names of nodes are addresses.
		address, err := netip.ParseAddr(key)
		if err == nil && address.Zone() == "" && !p.config.Nodes.NodeExists(key) {
			if name = known[address.Unmap()]; name == "" {
				unknownAddresses = append(unknownAddresses, key)
				continue
			}
		}
		if !ptr.Deref(node.Normal, true) && name != p.config.NodeName {
			dead[name] = struct{}{}
		}
	}
	slices.Sort(unknownAddresses)
	return dead, unknownAddresses
}

// maxBody is the largest size of an answer in bytes. An answer about 10,000 nodes is smaller.
const maxBody = 1 << 20

// health is what the service answers about a node. Other fields are ignored, and so is a node without this one.
type health struct {
	Normal *bool `json:"normal"`
}

// ask polls the health service once. It answers {"node": {"normal": true}}, where a node is a name or an IP address.
func (p *Poller) ask(ctx context.Context) (answer map[string]health, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.config.Address, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s, not 200", response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading its answer: %w", err)
	}
	if len(body) > maxBody {
		return nil, fmt.Errorf("its answer has more than %d bytes", maxBody)
	}
	err = json.Unmarshal(body, &answer)
	if err == nil && answer == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, fmt.Errorf(`its answer is not JSON of the form {"node": {"normal": true}}: %w`, err)
	}
	return answer, nil
}
