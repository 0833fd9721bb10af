package dnshosts

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/listen"
	"github.com/application-grid/application-grid/pkg/program/systemd"
	"github.com/application-grid/application-grid/pkg/serve"
)

// Config is what a Daemon is made from.
type Config struct {
	// Connection is the connection to the API server.
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
	// batch is how long to wait for more changes after a first one, so that the file is written once for all of them.
	batch = 20 * time.Millisecond
	// fileCheck is the time between two checks (a stat) whether someone else changed the file.
	fileCheck = time.Second
	// rivalry is the longest time between two overwrites of the block that are attributed to the same other program.
	rivalry = time.Minute
	// A write that failed is repeated after firstRetry, then after twice as long each time, up to lastRetry.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// Daemon keeps the hosts file up to date with the cluster's state and this node's labels.
type Daemon struct {
	config  Config
	file    *File
	group   *follow.Group
	witness func(context.Context) error
	metrics *metrics
	logger  klog.Logger

	node     *table[map[string]string]
	services *table[Service]
	slices   *table[*Slice]

	// wake has room for one value, which means that something has changed since the last sync began.
	wake chan struct{}

	mu sync.Mutex
	// woken is the time of the first change that is not in the file yet; zero if the file has all.
	woken time.Time
	// status is the result of the last sync.
	status status

	running sync.WaitGroup
}

// status is the result of the last sync.
type status struct {
	// blocked is why the right content of the file is not known; "" if it is known.
	blocked string
	// err is why the file could not be written.
	err error
	// retryAt is the time of the next attempt, and retryIn the pause before it.
	retryAt time.Time
	retryIn time.Duration
	// records counts the records that the file should have.
	records int
	// overwritten is the number of times that another program has overwritten the block, in the last rivalry.
	overwritten int
	// synced is set once the file has had the right content. restored is set if that came from a wrapper's snapshot.
	synced, restored bool
}

// New makes a Daemon. It sends no request, listens to nothing and writes nothing before Run.
func New(config Config, logger klog.Logger) (*Daemon, error) {
	upstream, err := config.Connection.Config()
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		config: config,
		file:   &File{Path: config.Path},
		logger: logger,
		wake:   make(chan struct{}, 1),
	}
	upstream.Wrap(func(next http.RoundTripper) http.RoundTripper { return asksForMarks{next} })
	if d.group, err = follow.NewGroup(upstream, nil); err != nil {
		return nil, err
	}
	config.Connection.OnChange(d.group.Retry)
	if d.witness, err = d.group.NodeWitness(config.NodeName); err != nil {
		return nil, err
	}
	d.node = newTable(d, labelsOf)
	d.services = newTable(d, serviceOf)
	d.slices = newTable(d, sliceOf)
	for _, options := range d.followed() {
		s, err := d.group.Add(options)
		if err != nil {
			return nil, err
		}
		s.Start()
	}
	d.metrics = newMetrics(d)
	return d, nil
}

// asksForMarks asks a wrapper to mark what it has restored, and gives such an answer the warning of a cache whose API
// server is away. Answers from the snapshot of a wrapper that cannot mark them are not accepted: the file may be newer,
// because a wrapper writes its snapshot seconds or minutes after a change.
type asksForMarks struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t asksForMarks) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Cache-Control", "no-cache")
	r.Header.Set(serve.RestoredHeader, serve.RestoredMarked)
	response, err := t.RoundTripper.RoundTrip(r)
	if err == nil && response.Header.Get(serve.RestoredHeader) != "" {
		response.Header.Add("Warning", fmt.Sprintf(`%d - "restored"`, apiclient.Disconnected))
	}
	return response, err
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

// Run keeps the file up to date until ctx is done. It returns an error only if it cannot listen.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer d.running.Wait()
	defer cancel()
	answers := func(context.Context) error { return nil }
	if d.config.BindAddress != "" {
		listener, err := listen.TCP(ctx, "--bind-address "+d.config.BindAddress, d.config.BindAddress)
		if err != nil {
			return err
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
		livez := "http://" + listener.Addr().String() + "/livez"
		answers = func(ctx context.Context) error { return systemd.CheckAnswer(ctx, livez) }
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
				d.report() // takes the lock
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

// prepare checks the file, before the state of the cluster is known, for problems that would prevent writing it.
func (d *Daemon) prepare() error {
	if err := d.file.Prepare(); err != nil {
		return err
	}
	_, err := d.file.Load()
	return err
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
			select { // this sync includes the changes so far
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
		if wait := d.sync(ctx); wait > 0 {
			retry.Reset(wait)
		}
	}
}

func (d *Daemon) update(change func(*status)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.status)
}

// sync writes the known state to the file. It returns after what time to try again; 0 if that is not necessary.
func (d *Daemon) sync(ctx context.Context) time.Duration {
	if wait := time.Until(d.status.retryAt); wait > 0 { // nothing else changes the status
		return wait
	}
	nodes, nodeRestored := d.node.read()
	labels := nodes[key{name: d.config.NodeName}]
	blocked := d.blocked(labels)
	d.update(func(s *status) { s.blocked = blocked })
	if blocked != "" {
		if d.status.err != nil {
			if err := d.prepare(); err != nil {
				return d.fail(err)
			}
			d.update(func(s *status) { s.err, s.retryIn = nil, 0 })
		}
		return 0
	}
	var woken time.Time
	d.update(func(*status) { woken, d.woken = d.woken, time.Time{} })

	services, servicesRestored := d.services.read()
	slices, slicesRestored := d.slices.read()
	view := View{NodeLabels: labels, Slices: slices, Services: services}
	records := view.Records(d.config.Domain)
	lines := linesOf(records)
	restored := nodeRestored || servicesRestored || slicesRestored
	if restored || len(lines) == 0 { // else they replace the block, whatever it has
		block, err := d.file.Load()
		switch {
		case err != nil:
			return d.fail(err)
		case restored && block != nil: // else these lines are better than none
			lines = update(block, records)
		case !restored && len(block) > 0:
			// A wrapper shows no endpoints to a node that was deleted, and the event of that may arrive later.
			if err := d.witness(ctx); err != nil {
				return d.fail(fmt.Errorf("not removing all names: %w", err))
			}
		}
	}
	replaced, err := d.file.Write(lines)
	if err != nil {
		return d.fail(err)
	}
	d.succeed(replaced, woken, status{
		records: len(lines), synced: true, restored: restored, overwritten: d.file.overwrites(),
	})
	return 0
}

// blocked returns why the right content of the file is not known; "" if it is known. labels are this node's; nil if it
// does not exist. The file is kept meanwhile: a wrapper shows no endpoints to a node whose site it does not know.
func (d *Daemon) blocked(labels map[string]string) string {
	if !d.node.isListed() || !d.services.isListed() || !d.slices.isListed() {
		if unlisted := d.unlisted(); unlisted != "" {
			return unlisted
		}
	}
	if labels == nil {
		return fmt.Sprintf(
			"node %s does not exist, so its site is unknown: check --hostname, or wait for the node to register",
			d.config.NodeName,
		)
	}
	return ""
}

// unlisted returns which list is missing, and why; "" if none is.
func (d *Daemon) unlisted() string {
	for _, state := range d.group.States() {
		switch {
		case state.Synced:
		case state.Err != nil:
			return fmt.Sprintf("%s: not listed yet: %v", state.Name, state.Err)
		default:
			return state.Name + ": not listed yet: waiting for the API server"
		}
	}
	return ""
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
	before := d.status
	d.update(func(s *status) { *s = now })
	if before.err != nil {
		d.logger.Info("Updating the hosts file works again", "path", d.config.Path)
	}
	if replaced {
		d.metrics.writes.Inc()
		if !woken.IsZero() {
			d.metrics.delay.Observe(time.Since(woken).Seconds())
		}
		d.logger.V(2).Info("Wrote the hosts file", "records", now.records)
	}
	if !before.synced { // the first lists are the largest use of memory in the process's life
		debug.FreeOSMemory()
	}
}
