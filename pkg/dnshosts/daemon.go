package dnshosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/apiclient"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/systemd"
)

// Config is what a Daemon is made from.
type Config struct {
	// Connection leads to the API server.
	Connection *apiclient.Connection
	// NodeName is this node's name.
	NodeName string
	// Path is the path of the hosts file.
	Path string
	// Domain is the cluster's DNS domain, without a dot at its end.
	Domain string
	// WholeSync is the time between two comparisons of all records with the file, which are made even without changes.
	WholeSync time.Duration
	// BindAddress is the host:port at which health, readiness and metrics are served; "" serves none.
	BindAddress string
}

// GCPercent is the GOGC for the daemon's process. A full list of a big cluster's StatefulSets is garbage as soon as it
// is read; a low value keeps two of them from being in memory at once.
const GCPercent = 40

const (
	// batch is how long to wait for further changes after a first one, so that the file is written once for all of
	// them.
	batch = 20 * time.Millisecond
	// fileCheck is the time between two checks (a stat) whether someone else changed the file.
	fileCheck = time.Second
	// A write that failed is repeated after firstRetry, then after twice as long each time, up to lastRetry.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
	// podsPerSource is how many ordinals of a set one source of pods covers. It does not depend on the set's size, so
	// that most scaling needs no new source. The pods' names fit into a URL.
	podsPerSource = 32
)

// Daemon keeps the hosts file up to date with the cluster's state and this node's labels.
type Daemon struct {
	config  Config
	file    *File
	group   *follow.Group
	witness func(context.Context) error
	metrics *metrics
	logger  klog.Logger

	node     *table[Node]
	grids    *table[Grid]
	services *table[Service]
	sets     *table[*Set]
	sources  []*follow.Source // of the four tables

	// wake has room for one: it says that something has changed since the last sync began.
	wake chan struct{}

	mu sync.Mutex
	// gone has the UIDs of grids that were deleted and whose sets still exist.
	gone map[types.UID]bool
	// woken is when the first change came that is not in the file yet; zero if there is none.
	woken time.Time
	// status is the result of the last sync.
	status status
	pods   map[chunk]*podSource // written by the loop only; guarded for readers
	// podLists counts the lists of the sources of pods that have ended.
	podLists uint64

	// Only the loop uses the fields below.

	labels  map[string]string // the last known labels of this node; nil if none are known
	trimmed bool              // set once the memory of the first lists was freed
	running sync.WaitGroup
}

// status is the result of the last sync.
type status struct {
	// blocked says why it is not known what the file should have; "" if it is known.
	blocked string
	// err is why the file could not be written.
	err error
	// retryAt is when the next attempt is made, retryIn after the failed one.
	retryAt time.Time
	retryIn time.Duration
	// records and sets count what the file should have. pending counts the sets whose pods are not known yet.
	records, sets, pending int
	// synced is set once the file had the right content.
	synced bool
}

// chunk is a range of a set's ordinals: podsPerSource of them from index*podsPerSource on.
type chunk struct {
	namespace, set string
	index          int32
}

// podSource is a source of the pods of a chunk.
type podSource struct {
	source *follow.Source
	table  *table[*Pod]
}

// New makes a Daemon. It sends no request, listens to nothing and writes nothing before Run.
func New(config Config, logger klog.Logger) (*Daemon, error) {
	upstream, err := config.Connection.Config()
	if err != nil {
		return nil, err
	}
	group, err := follow.NewGroup(follow.GroupOptions{Config: upstream})
	if err != nil {
		return nil, err
	}
	config.Connection.OnChange(group.Retry)
	d := &Daemon{
		config: config,
		file:   &File{Path: config.Path, Domain: config.Domain},
		group:  group,
		logger: logger,
		wake:   make(chan struct{}, 1),
		gone:   map[types.UID]bool{},
		pods:   map[chunk]*podSource{},
	}
	if d.witness, err = group.KnowsNode(config.NodeName); err != nil {
		return nil, err
	}
	d.node = newTable(d, nodeOf, func(a, b Node) bool { return maps.Equal(a.Labels, b.Labels) })
	d.grids = newTable(d, gridOf, func(a, b Grid) bool { return a == b })
	d.grids.removed = d.gridRemoved
	d.services = newTable(d, serviceOf, func(a, b Service) bool { return a == b })
	d.sets = newTable(d, setOf, (*Set).equal)
	for _, options := range d.followed() {
		s, err := group.Add(options)
		if err != nil {
			return nil, err
		}
		s.Start()
		d.sources = append(d.sources, s)
	}
	d.metrics = newMetrics(d)
	return d, nil
}

// changed makes the loop sync. It may be called from any goroutine.
func (d *Daemon) changed() {
	d.mu.Lock()
	if d.woken.IsZero() {
		d.woken = time.Now()
	}
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // a sync is due already
	}
}

func (d *Daemon) gridRemoved(grid Grid) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone[grid.UID] = true
}

// Run keeps the file up to date until ctx is done. It returns an error only if it cannot listen.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer d.running.Wait()
	defer cancel()
	answers := func(context.Context) error { return nil }
	if d.config.BindAddress != "" {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.config.BindAddress)
		if err != nil {
			return fmt.Errorf("--bind-address %s: %w", d.config.BindAddress, err)
		}
		server := &http.Server{
			Handler: d.handler(), ReadHeaderTimeout: 30 * time.Second, ErrorLog: klog.NewStandardLogger("INFO"),
		}
		d.running.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				d.logger.Error(err, "Stopped serving health and metrics", "address", d.config.BindAddress)
			}
		})
		defer server.Close()
		answers = func(ctx context.Context) error { return systemd.Answers(ctx, listener.Addr(), false, "/livez") }
	}
	d.logger.Info("Keeping the hosts file", "path", d.config.Path, "node", d.config.NodeName, "domain", d.config.Domain,
		"address", d.config.BindAddress, "wholeSync", d.config.WholeSync)
	if err := d.prepare(); err != nil {
		d.fail(err)
	}
	d.running.Go(func() { d.group.Run(ctx) })
	d.running.Go(func() { d.config.Connection.Run(ctx) })
	d.running.Go(func() {
		systemd.Notify(ctx, systemd.Program{
			Alive: func(ctx context.Context) error {
				d.state() // takes the lock
				return answers(ctx)
			},
			Status: func() string {
				report := d.report()
				return report.Summary()
			},
		})
	})
	d.loop(ctx)
	return nil
}

// prepare checks the file before anything is known of the cluster, for problems that would keep it from being written.
func (d *Daemon) prepare() error {
	if err := d.file.Prepare(); err != nil {
		return err
	}
	block, err := d.file.Load()
	if err != nil {
		return err
	}
	if len(block) > 0 && !d.file.content.Marked {
		d.logger.Info("Taking over the lines that SuperEdge's daemon wrote, which are not in a marked block",
			"lines", len(block))
	}
	return nil
}

// loop syncs after a change of the cluster's state, after someone else changed the file, after a failure, and every
// WholeSync.
func (d *Daemon) loop(ctx context.Context) {
	whole := time.NewTicker(d.config.WholeSync)
	defer whole.Stop()
	look := time.NewTicker(min(fileCheck, d.config.WholeSync))
	defer look.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			select {
			case <-ctx.Done():
				return
			case <-time.After(batch):
			}
			select { // this sync includes what came meanwhile
			case <-d.wake:
			default:
			}
		case <-look.C:
			if !d.file.Changed() {
				continue
			}
		case <-whole.C:
		case <-retry.C:
		}
		if wait := d.sync(); wait > 0 {
			retry.Reset(wait)
		}
	}
}

// sync writes what is known to the file. It returns after what time to try again; 0 if that is not necessary.
func (d *Daemon) sync() time.Duration {
	d.mu.Lock()
	now, retryAt := time.Now(), d.status.retryAt
	d.mu.Unlock()
	if now.Before(retryAt) {
		return retryAt.Sub(now)
	}
	blocked := d.blocked()
	d.mu.Lock()
	d.status.blocked = blocked
	failed := d.status.err
	d.mu.Unlock()
	if blocked != "" {
		if failed == nil {
			return 0
		}
		if err := d.prepare(); err != nil {
			return d.fail(err)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.status.err, d.status.retryIn = nil, 0
		return 0
	}
	d.mu.Lock()
	woken := d.woken
	d.woken = time.Time{}
	d.mu.Unlock()

	view := d.view()
	own := view.ownSets()
	if err := d.followPods(own); err != nil {
		return d.fail(err)
	}
	present, err := d.file.Load()
	if err != nil {
		return d.fail(err)
	}
	lines, pending := view.Records(d.config.Domain, present)
	replaced, err := d.file.Write(lines)
	if err != nil {
		return d.fail(err)
	}
	d.succeed(replaced, woken, status{records: len(lines), sets: len(own), pending: pending, synced: true})
	return 0
}

// blocked says why it is not known yet what the file should have; "" if it is known. Until then the file stays as an
// earlier process left it, which is better than nothing.
func (d *Daemon) blocked() string {
	if !d.node.isListed() || !d.services.isListed() || !d.sets.isListed() {
		if unlisted := d.unlisted(); unlisted != "" {
			return unlisted
		}
	}
	if node, ok := d.node.get(key{name: d.config.NodeName}); ok {
		d.labels = node.Labels
		if d.labels == nil {
			d.labels = map[string]string{}
		}
	}
	// A deleted Node may be registered again. Until then its last labels count.
	if d.labels == nil {
		return fmt.Sprintf(
			"there is no node %s, so its unit is unknown: check --hostname, or wait for the node to register",
			d.config.NodeName,
		)
	}
	return ""
}

// unlisted says which list is missing, and why; "" if none is.
func (d *Daemon) unlisted() string {
	for _, s := range d.sources {
		switch state := s.State(); {
		case state.Synced, state.Optional:
		case state.Err != nil:
			return fmt.Sprintf("%s: not listed yet: %v", state.Name, state.Err)
		default:
			return state.Name + ": not listed yet: waiting for the API server"
		}
	}
	return ""
}

// view returns the current state, from which the records follow.
func (d *Daemon) view() *View {
	sets := d.sets.all()
	d.mu.Lock()
	gone := maps.Clone(d.gone)
	for uid := range gone {
		if !slices.ContainsFunc(sets, func(s *Set) bool { return s.OwnerUID == uid }) {
			delete(d.gone, uid)
		}
	}
	d.mu.Unlock()
	return &View{
		NodeLabels: d.labels,
		Sets:       sets,
		Service: func(namespace, name string) *Service {
			if service, ok := d.services.get(key{namespace, name}); ok {
				return &service
			}
			return nil
		},
		Grid: func(namespace, name string) *Grid {
			if grid, ok := d.grids.get(key{namespace, name}); ok {
				return &grid
			}
			return nil
		},
		GridGone: func(uid types.UID) bool { return gone[uid] },
		Pods:     d.podsOf,
	}
}

// chunks returns the chunks that cover the set's ordinals.
func (s *Set) chunks() []chunk {
	var chunks []chunk
	if s.Replicas <= 0 {
		return nil
	}
	for index := s.Start / podsPerSource; index <= (s.Start+s.Replicas-1)/podsPerSource; index++ {
		chunks = append(chunks, chunk{s.Namespace, s.Name, index})
	}
	return chunks
}

// podNames returns the names of the pods of a chunk.
func (c chunk) podNames() []string {
	names := make([]string, podsPerSource)
	for i := range names {
		names[i] = c.set + "-" + strconv.Itoa(int(c.index)*podsPerSource+i)
	}
	return names
}

// followPods starts the sources for the pods of the own sets, and stops those that are not needed any more.
func (d *Daemon) followPods(own []ownSet) error {
	wanted := map[chunk]bool{}
	for _, o := range own {
		for _, c := range o.set.chunks() {
			wanted[c] = true
		}
	}
	var dropped []*follow.Source
	d.mu.Lock()
	for c, p := range d.pods {
		if !wanted[c] {
			dropped = append(dropped, p.source)
			d.podLists += p.source.State().Lists
			delete(d.pods, c)
		}
	}
	d.mu.Unlock()
	for _, s := range dropped {
		d.group.Remove(s) // without d.mu: it waits for the source's table, which may wait for d.mu
	}
	for c := range wanted {
		if d.pods[c] != nil {
			continue
		}
		p := &podSource{table: newTable(d, podOf, (*Pod).equal)}
		var err error
		if p.source, err = d.group.Add(d.podsOptions(c, p.table)); err != nil {
			return err
		}
		d.mu.Lock()
		d.pods[c] = p
		d.mu.Unlock()
		p.source.Start()
	}
	return nil
}

// podsOf returns a set's pods; false while some are not known yet.
func (d *Daemon) podsOf(set *Set) ([]*Pod, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var pods []*Pod
	for _, c := range set.chunks() {
		p := d.pods[c]
		if p == nil || !p.table.isListed() {
			return nil, false
		}
		pods = append(pods, p.table.all()...)
	}
	return pods, true
}

// fail notes an error of a sync, and returns after what time to try again.
func (d *Daemon) fail(err error) time.Duration {
	d.metrics.failures.Inc()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.status.err == nil || d.status.err.Error() != err.Error() {
		d.logger.Error(err, "Cannot update the hosts file; will try again", "path", d.config.Path)
	}
	d.status.err = err
	d.status.retryIn = min(max(2*d.status.retryIn, firstRetry), lastRetry)
	d.status.retryAt = time.Now().Add(d.status.retryIn)
	if d.woken.IsZero() {
		d.woken = time.Now()
	}
	return d.status.retryIn
}

func (d *Daemon) succeed(replaced bool, woken time.Time, now status) {
	d.mu.Lock()
	before := d.status
	d.status = now
	d.mu.Unlock()
	if before.err != nil {
		d.logger.Info("Updating the hosts file works again", "path", d.config.Path)
	}
	if replaced {
		d.metrics.writes.Inc()
		if !woken.IsZero() {
			d.metrics.delay.Observe(time.Since(woken).Seconds())
		}
		d.logger.V(2).Info("Wrote the hosts file", "records", now.records, "sets", now.sets)
	}
	if now.pending == 0 && !d.trimmed {
		// The first lists are the largest use of memory in the process's life.
		d.trimmed = true
		debug.FreeOSMemory()
	}
}
