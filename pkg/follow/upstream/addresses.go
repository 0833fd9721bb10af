package upstream

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/storage/facts"
	"github.com/application-grid/application-grid/pkg/storage/wire"
)

const (
	// Addresses are part of a node's status. The wrapper does not watch that, because every node of the cluster writes
	// its status every few minutes. So it lists the nodes when it needs their addresses.

	// addressInterval is the shortest time between two lists of the nodes' addresses.
	addressInterval = 10 * time.Minute
	// addressPage is the largest number of nodes of one page. A node with its images has about 10 kB.
	addressPage = 250
	// addressWait is how long all pages may take.
	addressWait = 2 * time.Minute
	// addressAgent is the user agent of these requests. It differs from that of the source of nodes, because caching
	// proxies cache by user agent, and would answer a request of the source with one of these pages.
	addressAgent = "node-addresses"
	// siteAgent is the same for the nodes of the site.
	siteAgent = "site-addresses"
	// siteInterval is the longest time between two lists of the addresses of the site. Addresses change seldom. The
	// list is made earlier when nodes are added or removed, or when an address turns out to be wrong.
	siteInterval = 3 * time.Hour
	// siteAgain is the shortest time between two such lists.
	siteAgain = 10 * time.Second
	// maxSite is the largest number of nodes whose addresses are used.
	maxSite = 2000
)

func (u *Upstream) nodesSource() *follow.Source { return u.shared[0] }

// FollowSite lists the InternalIPs of the nodes of the site for the facts until ctx is done: once the facts are
// complete, when the site has changed, when unknown has a value, and every few hours. The list is small, because the
// nodes are selected by their labels.
func (u *Upstream) FollowSite(ctx context.Context, unknown <-chan struct{}) {
	f, logger := u.facts, klog.FromContext(ctx)
	select {
	case <-f.Live():
	case <-ctx.Done():
		return
	}
	var due, last time.Time // the zero time is long ago
	var names, listed []string
	incomplete := siteAgain
	changes := f.Changes() - 1
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) {
		if now := f.Changes(); now != changes {
			changes, names = now, siteNames(f)
		}
		now := time.Now()
		select {
		case <-unknown:
			due = now
		default:
		}
		state := u.nodesSource().State()
		if state.Synced && state.Err == nil && now.Sub(last) >= siteAgain &&
			(!now.Before(due) || !slices.Equal(names, listed)) {
			last = now
			if err := u.listSite(ctx); err == nil {
				// Random, so that not all wrappers list at the same time.
				due, listed = now.Add(siteInterval/2+rand.N(siteInterval/2)), names //nolint:gosec // it spreads lists
				// A new node may get its address a moment later.
				if len(f.Notes().InternalIPs) >= len(names) {
					incomplete = siteAgain
				} else {
					due, incomplete = now.Add(incomplete), min(2*incomplete, siteInterval/2)
				}
			} else if ctx.Err() == nil {
				logger.Error(err, "Cannot list the addresses of the nodes of the site")
			}
		}
	}, time.Second)
}

func siteNames(f *facts.Facts) []string {
	site := f.Site()
	names := make([]string, len(site))
	for i, n := range site {
		names[i] = n.Name
	}
	slices.Sort(names)
	return names
}

// listSite lists the InternalIPs of the nodes of the site once.
func (u *Upstream) listSite(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, addressWait) // for all selectors
	defer cancel()
	nodes := make(map[string]nodeAddresses)
	for _, selector := range u.facts.SiteSelectors() {
		err := u.eachNode(ctx, siteAgent, selector, func(n nodeAddresses) {
			if len(nodes) < maxSite {
				nodes[n.name] = n
			}
		})
		if err != nil {
			return fmt.Errorf("listing the nodes with %s: %w", selector, err)
		}
	}
	u.facts.UpdateNotes(func(n *facts.Notes) { n.InternalIPs = internalIPs(nodes) })
	return nil
}

// nodeAddresses are the IP addresses of a node, the InternalIPs among them, and the properties that decide between two
// nodes with the same address: a replaced machine may leave its Node object behind.
type nodeAddresses struct {
	name          string
	ready         bool
	created       time.Time
	all, internal []netip.Addr
}

// internalIPs returns the InternalIPs of nodes by their names. If two nodes have the same address, it keeps it for the
// one that is ready, or else for the newer one.
func internalIPs(nodes map[string]nodeAddresses) map[string][]netip.Addr {
	owners := make(map[netip.Addr]nodeAddresses)
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		for _, ip := range nodes[name].internal {
			before, taken := owners[ip]
			if !taken || nodes[name].ready && !before.ready ||
				nodes[name].ready == before.ready && nodes[name].created.After(before.created) {
				owners[ip] = nodes[name]
			}
		}
	}
	addresses := make(map[string][]netip.Addr)
	for name, n := range nodes {
		if len(n.internal) > 0 {
			addresses[name] = slices.DeleteFunc(n.internal, func(ip netip.Addr) bool { return owners[ip].name != name })
		}
	}
	return addresses
}

// ListAddresses lists the nodes and stores their names by address in the facts. It waits until the facts are complete.
// It then does nothing if the last list began less than 10 minutes ago, or if the upstream is away; listed reports
// whether it stored anything. It may take minutes. A failed list counts as well: the next one is made 10 minutes later.
func (u *Upstream) ListAddresses(ctx context.Context) (listed bool, err error) {
	select {
	case <-u.facts.Live():
	case <-ctx.Done():
		return false, nil
	}
	// A list that cannot succeed must not delay the next one.
	if state := u.nodesSource().State(); !state.Synced || state.Err != nil || !u.addressLists.Allow() {
		return false, nil //nolint:nilerr // it is the source's error
	}
	names := make(map[netip.Addr]string)
	ambiguous := make(map[netip.Addr]struct{})
	err = u.eachNode(ctx, addressAgent, "", func(n nodeAddresses) {
		for _, address := range n.all {
			if other, taken := names[address]; taken && other != n.name {
				ambiguous[address] = struct{}{}
			}
			names[address] = n.name
		}
	})
	if err != nil {
		return false, fmt.Errorf("listing the addresses of nodes: %w", err)
	}
	// An address that two nodes claim is left out: one of the two may be alive.
	for address := range ambiguous {
		delete(names, address)
	}
	u.facts.UpdateNotes(func(n *facts.Notes) { n.Addresses = names })
	return true, nil
}

// eachNode calls visit for every node that a label selector selects, "" for all. It lists them page by page, from the
// hub if there is one. agent distinguishes its requests from others.
func (u *Upstream) eachNode(ctx context.Context, agent, selector string, visit func(nodeAddresses)) error {
	ctx, cancel := context.WithTimeout(ctx, addressWait)
	defer cancel()
	for next := ""; ; {
		request := u.nodesSource().Request(agent)
		if u.hub != nil {
			request = u.nodesSource().Request("hub-"+agent).Name(u.node).Param("kind", "Node")
		}
		request.Param("limit", strconv.Itoa(addressPage)).Param("labelSelector", selector).Param("continue", next)
		list, err := follow.GetList(ctx, request, nil)
		if err != nil {
			return err
		}
		if list.Kind != "NodeList" {
			return fmt.Errorf("the upstream sent %s, not a NodeList", list.Kind)
		}
		for _, node := range list.Items {
			n, err := readAddresses(node)
			if err != nil {
				return err
			}
			visit(n)
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

func readAddresses(node *wire.Object) (n nodeAddresses, err error) {
	var typed corev1.Node
	if err := cmp.Or(typed.Unmarshal(node.Body), typed.ObjectMeta.Unmarshal(node.Meta)); err != nil {
		return n, err
	}
	n.name, n.created = node.Name, typed.CreationTimestamp.Time
	n.ready = slices.ContainsFunc(typed.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
	for _, a := range typed.Status.Addresses {
		address, err := netip.ParseAddr(a.Address)
		address = address.Unmap()
		if err != nil || a.Type == corev1.NodeInternalIP && slices.Contains(n.internal, address) {
			continue // a node's addresses may also be host names
		}
		n.all = append(n.all, address)
		if a.Type == corev1.NodeInternalIP {
			n.internal = append(n.internal, address)
		}
	}
	return n, nil
}
