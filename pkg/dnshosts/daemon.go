package dnshosts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/apiclient"
	"github.com/application-grid/application-grid/pkg/program/listen"
	"github.com/application-grid/application-grid/pkg/program/systemd"
	"github.com/application-grid/application-grid/pkg/serve"
)

// Config is what a Daemon is made from.
type Config struct {
	// Connection is the one to the API server, NodeName this node's name, and Path that of the hosts file.
	Connection     *apiclient.Connection
	NodeName, Path string
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
	// retryInterval is the time between two attempts while the file cannot be read or written.
	retryInterval = 5 * time.Second
)

// Daemon keeps the hosts file up to date with the cluster's state and this node's labels.
type Daemon struct {
	config  Config
	file    *File
	group   *follow.Group
	witness func(context.Context) error
	metrics *metrics
	logger  klog.Logger

	// wake has room for one value, which means that something has changed since the last sync began.
	wake chan struct{}

	mu sync.Mutex
	// The fields below are guarded by mu. Only the goroutine of loop changes the status.

	node     *table[map[string]string]
	services *table[string]
	slices   *table[*Slice]
	// woken is the time of the first change that is not in the file yet; zero if the file has all.
	woken time.Time
	// status is the result of the last sync.
	status status
}

// status is the result of the last sync.
type status struct {
	// err is why the file could not be read or written.
	err error
	// records counts the records that the file has.
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
	d := &Daemon{config: config, file: &File{Path: config.Path}, logger: logger, wake: make(chan struct{}, 1)}
	upstream.Wrap(func(next http.RoundTripper) http.RoundTripper { return asksForMarks{next} })
	if d.group, err = follow.NewGroup(upstream, nil); err != nil {
		return nil, err
	}
	config.Connection.OnChange(d.group.Retry)
	if d.witness, err = d.group.NodeWitness(config.NodeName); err != nil {
		return nil, err
	}
	d.node = &table[map[string]string]{keep: labelsOf, change: d.change, logger: logger}
	d.services = &table[string]{keep: keyOf, change: d.change, logger: logger}
	d.slices = &table[*Slice]{keep: sliceOf, change: d.change, logger: logger}
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

// change changes a table, and makes the loop sync.
func (d *Daemon) change(change func()) {
	d.mu.Lock()
	change()
	d.woken = cmp.Or(d.woken, time.Now())
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default: // a sync is due already
	}
}

// Run keeps the file up to date until ctx is done. It returns an error only if it cannot listen.
func (d *Daemon) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
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
		running.Go(func() {
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
	running.Go(func() { d.group.Run(ctx) })
	running.Go(func() { d.config.Connection.Run(ctx) })
	running.Go(func() {
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

// loop syncs at the start, after a change of the cluster's state, after someone else changed the file, after a failure,
// and every WholeSync.
func (d *Daemon) loop(ctx context.Context) {
	d.file.RemoveLeftovers()
	d.sync(ctx)
	look, retry, whole := time.Tick(fileCheck), time.Tick(retryInterval), time.Tick(d.config.WholeSync)
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
			time.Sleep(batch)
		case <-look:
			if d.status.err != nil || !d.file.Changed() {
				continue
			}
		case <-retry:
			if d.status.err == nil {
				continue
			}
		case <-whole:
		}
		d.sync(ctx)
	}
}

// sync writes the known state to the file.
func (d *Daemon) sync(ctx context.Context) {
	before := d.status
	d.mu.Lock()
	woken := d.woken
	d.woken = time.Time{}
	d.mu.Unlock()
	now, replaced, err := d.write(ctx)
	if now.err = err; err != nil {
		d.metrics.failures.Inc()
		if before.err == nil || before.err.Error() != err.Error() {
			d.logger.Error(err, "Cannot update the hosts file; will try again", "path", d.config.Path)
		}
	} else if before.err != nil {
		d.logger.Info("Updating the hosts file works again", "path", d.config.Path)
	}
	d.mu.Lock()
	if d.status = now; err != nil {
		d.woken = cmp.Or(woken, d.woken)
	}
	d.mu.Unlock()
	if replaced {
		d.metrics.writes.Inc()
		if !woken.IsZero() {
			d.metrics.delay.Observe(time.Since(woken).Seconds())
		}
		d.logger.V(2).Info("Wrote the hosts file", "records", now.records)
	}
	if now.synced && !before.synced { // the first lists are the largest use of memory in the process's life
		debug.FreeOSMemory()
	}
}

// write writes the known state to the file, and returns the status after it. The file is kept while the right content
// is not known.
func (d *Daemon) write(ctx context.Context) (now status, replaced bool, err error) {
	now = d.status
	block, err := d.file.Load()
	if err != nil || d.blocked() != "" {
		return now, false, err
	}
	d.mu.Lock()
	view := View{NodeLabels: d.node.objects[d.ownNode()], Services: d.services.objects, Slices: d.slices.objects}
	records := view.Records(d.config.Domain)
	restored := d.node.restored || d.services.restored || d.slices.restored
	d.mu.Unlock()
	lines := linesOf(records)
	if restored && block != nil { // else these lines are better than none
		lines = update(block, records)
	} else if len(lines) == 0 && len(block) > 0 {
		// A wrapper shows no endpoints to a node that was deleted, and the event of that may arrive later.
		if err := d.witness(ctx); err != nil {
			return now, false, fmt.Errorf("not removing all names: %w", err)
		}
	}
	if replaced, err = d.file.Write(lines); err != nil {
		return now, false, err
	}
	return status{
		records: len(lines), synced: true, restored: restored, overwritten: d.file.overwrites(),
	}, replaced, nil
}

func (d *Daemon) ownNode() types.NamespacedName { return types.NamespacedName{Name: d.config.NodeName} }

// blocked returns why the right content of the file is not known; "" if it is known. A wrapper shows no endpoints to a
// node whose site it does not know.
func (d *Daemon) blocked() string {
	d.mu.Lock()
	listed := d.node.objects != nil && d.services.objects != nil && d.slices.objects != nil
	_, exists := d.node.objects[d.ownNode()]
	d.mu.Unlock()
	if listed && !exists {
		return fmt.Sprintf(
			"node %s does not exist, so its site is unknown: check --hostname, or wait for the node to register",
			d.config.NodeName,
		)
	}
	for _, state := range d.group.States() {
		switch {
		case listed, state.Synced:
		case state.Err != nil:
			return fmt.Sprintf("%s: not listed yet: %v", state.Name, state.Err)
		default:
			return state.Name + ": not listed yet: waiting for the API server"
		}
	}
	return ""
}
