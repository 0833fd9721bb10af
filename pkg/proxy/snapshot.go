package proxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/filters"
	"github.com/application-grid/application-grid/pkg/storage/snapshot"
)

const (
	// justBooted is how long after the machine booted the snapshot may be served without evidence. Clients on the
	// machine have just started too, so none of them has seen a newer state.
	justBooted = 5 * time.Minute
	// bootPatience is how long the upstream may take then before the snapshot is served.
	bootPatience = 500 * time.Millisecond
	// awayPatience is how long the upstream must be away otherwise. On a link with a long round trip the first probe
	// may come too late.
	awayPatience = time.Second
	// evidenceInterval is how often the evidence is checked.
	evidenceInterval = 50 * time.Millisecond
)

// openStateDir locks the state directory, and restores the facts from its snapshot until those of the upstream are
// complete. They are not served yet.
func (p *Proxy) openStateDir(logger klog.Logger) {
	if p.config.StateDir == "" {
		return
	}
	if clients := p.config.KeepAnswersFor; len(clients) > 0 {
		p.keptAnswers = filters.OpenKeptAnswers(filters.KeptOptions{
			Dir: filepath.Join(p.config.StateDir, "answers"), Clients: clients, Link: p.link,
			Logger: logger.WithName("kept-answers"),
		})
		// The former version had a file for each request.
		_ = os.RemoveAll(filepath.Join(p.config.StateDir, "answers-"+p.config.NodeName))
	}
	dir, state, minRevision, err := snapshot.Open(snapshot.Options{
		Path: p.config.StateDir, NodeName: p.config.NodeName, Logger: logger.WithName("snapshot"),
	})
	if err != nil {
		// The wrapper continues without snapshots: serving now matters more than the next restart.
		p.stateErr = err
		logger.Error(err,
			"No snapshot can be kept: a wrapper that starts while the upstream is away will have nothing to serve; "+
				"see --state-dir",
			"directory", p.config.StateDir)
		return
	}
	p.revisions.SkipTo(minRevision)
	if state != nil {
		p.facts.Restore(state)
	}
	p.snapshots.Store(&snapshot.Writer{
		Dir:      dir,
		Delay:    p.config.StateWriteDelay,
		AsOf:     p.upstream.AsOf,
		Live:     p.facts.Live(),
		Revision: p.revisions.Last,
	})
}

// closeStateDir lets another process use the state directory.
func (p *Proxy) closeStateDir(logger klog.Logger) {
	var closed []error
	if snapshots := p.snapshots.Load(); snapshots != nil {
		closed = append(closed, snapshots.Dir.Close())
	}
	if p.keptAnswers != nil {
		closed = append(closed, p.keptAnswers.Close())
	}
	if err := errors.Join(closed...); err != nil {
		logger.Error(err, "Cannot close the state directory", "directory", p.config.StateDir)
	}
}

// serveSnapshot serves the snapshot once there is evidence that the upstream is away, or if the machine has just booted
// and the upstream takes long. Without waiting for evidence, every restart of the wrapper would reset a running
// kube-proxy to an older state.
func (p *Proxy) serveSnapshot(ctx context.Context) {
	if p.facts.Restored() == nil {
		return
	}
	evidence := p.awaitEvidence(ctx)
	if evidence == "" || !p.view.AllowRestored() {
		return
	}
	logger := klog.FromContext(ctx)
	if state := p.view.ServedSnapshot(); state != nil {
		logger.Info("Serving a snapshot", "asOf", state.AsOf, "reason", evidence)
	}
	select {
	case <-p.facts.Live():
		logger.Info("Serving the state of the upstream")
	case <-ctx.Done():
	}
}

// awaitEvidence waits for a reason to serve the snapshot, and returns it. It returns "" if the upstream's state is
// complete before, or if ctx is done.
func (p *Proxy) awaitEvidence(ctx context.Context) string {
	started := time.Now()
	answered := started // when the upstream was last not away
	tick := time.Tick(evidenceInterval)
	for {
		select {
		case <-p.facts.Live():
			return ""
		case <-ctx.Done():
			return ""
		case <-tick:
		}
		if p.stateLink.AwayUntil() == nil || p.upstream.Answers() {
			answered = time.Now()
		}
		switch {
		case time.Since(answered) >= awayPatience:
			return "the upstream does not answer"
		case time.Since(started) >= bootPatience && uptime() < justBooted:
			return "the machine has just booted and the upstream takes long"
		}
	}
}

// uptime returns how long ago the machine booted; a long time if that is not known.
func uptime() time.Duration {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 365 * 24 * time.Hour
	}
	return time.Duration(info.Uptime) * time.Second
}
