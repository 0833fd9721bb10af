package proxy

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/autonomy/deadnodes"
	"github.com/application-grid/application-grid/pkg/follow"
	"github.com/application-grid/application-grid/pkg/follow/upstream"
	"github.com/application-grid/application-grid/pkg/program/health"
	"github.com/application-grid/application-grid/pkg/program/nodename"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// report returns the wrapper's current health: why it is not ready, which is empty if it is, and details about what
// works and is worth knowing.
func (p *Proxy) report() health.Report {
	var report health.Report
	if p.stopping.Err() != nil {
		report.Fail("the wrapper is stopping")
	}
	p.noteFiles(&report)
	if hub := p.config.HubConnection; hub != nil && hub.Problem() != nil {
		report.Note("hub-kubeconfig: cannot use the changed file, keeping its former content: %v",
			hub.Problem())
	}
	labelsSynced := p.view.ServedSnapshot() != nil
	for _, s := range p.upstream.States() {
		p.noteSource(&report, s)
		if s.Name == facts.InputNodes || s.Name == upstream.SourceShare {
			labelsSynced = labelsSynced || p.facts.IsLive() || s.Synced
		}
	}
	switch {
	case p.config.NodeName == "":
		report.Fail("hostname: --hostname is empty, so this node belongs to no site and Services with topologyKeys " +
			"have no endpoints here; set it to the node's name")
	case labelsSynced && !p.facts.NodeExists(p.config.NodeName):
		report.Fail("%s", p.unknownNode())
	}
	for service, reason := range p.facts.Invalid() {
		report.Note("service %s: all endpoints hidden: %s", service, reason)
	}
	if divided := p.view.Divided(); len(divided) > 0 {
		report.Note("topologyKeys: different keys decide for different ports of %s; application-grid-wrapper explain "+
			"names them", some(divided))
	}
	if err := p.view.LocalEndpointProblem(); err != nil {
		report.Note("default/kubernetes: its endpoint is not replaced by this node's own: %v", err)
	}
	p.noteSite(&report)
	return report
}

// noteFiles reports problems of the state directory and the kubeconfig, and since when a snapshot is served.
func (p *Proxy) noteFiles(report *health.Report) {
	if served := p.view.ServedSnapshot(); served != nil {
		report.Note("snapshot: stale: the upstream has not been followed since the start, what is served is of %s, "+
			"%s ago", served.AsOf.UTC().Format(time.RFC3339), age(served.AsOf).Round(time.Second))
	}
	stateErr := p.stateErr
	if snapshots := p.snapshots.Load(); snapshots != nil {
		stateErr = cmp.Or(stateErr, snapshots.Stats().Err)
	}
	if stateErr != nil {
		report.Note("state-dir: no snapshot can be kept: %v", stateErr)
	}
	if err := p.config.Connection.Problem(); err != nil {
		report.Note("kubeconfig: cannot use the changed file, keeping its former content: %v", err)
	}
}

// noteSource reports how one source is followed.
func (p *Proxy) noteSource(report *health.Report, s follow.State) {
	switch {
	case !s.Started && s.Optional:
		report.Note("%s: not followed, no client has asked for it", s.Name)
	case s.Forbidden && s.Optional:
		report.Note("%s: the upstream refuses it: %v", s.Name, s.Err)
	case s.Forbidden, !s.Optional && !s.Synced && follow.IsRefusal(s.Err):
		report.Fail("%s: the upstream refuses the wrapper, renew %s or its permissions: %v", s.Name,
			p.config.Connection.Credentials(), s.Err)
	case s.Absent:
		p.noteAbsent(report, s)
	case !s.Synced:
		p.noteNotSynced(report, s)
	case s.Err != nil && s.LastContact.IsZero():
		report.Note("%s: what is served came from a cache, of unknown age: %v", s.Name, s.Err)
	case s.Err != nil:
		report.Note("%s: served from the cache, the upstream cannot be followed since %s: %v", s.Name,
			s.LastContact.UTC().Format(time.RFC3339), s.Err)
	default:
		report.Note("%s: ok", s.Name)
	}
}

// noteAbsent reports that the upstream does not serve a source.
func (p *Proxy) noteAbsent(report *health.Report, s follow.State) {
	switch {
	case s.Optional:
		report.Note("%s: the upstream does not serve it", s.Name)
	case p.view.ServedSnapshot() != nil:
		// This 404 comes from a gateway that has lost its API server, so the snapshot is served nevertheless.
		report.Note("%s: the upstream says that it does not serve it", s.Name)
	default:
		report.Fail("%s: the upstream does not serve it", s.Name)
	}
}

// noteNotSynced reports that a source is not complete, and why. The wrapper is not ready then, unless it serves a
// snapshot, or the source is an optional one without which the state is complete.
func (p *Proxy) noteNotSynced(report *health.Report, s follow.State) {
	line := s.Name + ": not synced with the upstream yet"
	if s.Err != nil {
		line += ": " + s.Err.Error()
	}
	if p.view.ServedSnapshot() != nil || s.Optional && p.facts.IsLive() {
		report.Note("%s", line)
	} else {
		report.Fail("%s", line)
	}
}

// noteSite reports which nodes and pods of the site are shown differently from the API server's state.
func (p *Proxy) noteSite(report *health.Report) {
	if p.autonomy != nil {
		noteAutonomy(report, p.autonomy.Status())
	}
	if p.config.Runtime != nil && p.livePods != nil {
		report.Note("%s", livePodsDetail(p.livePods.Status()))
	}
	if p.exchange != nil {
		detail := exchangeDetail(p.exchange.Status(), p.livePods.Status(), len(p.config.SiteKeys) > 0)
		if p.config.Runtime == nil {
			detail += "; without --cri this node does not say which pods it runs"
		}
		report.Note("%s", detail)
	}
}

// registerPatience is how long after the start a node may take to register. After that, similar names are suggested.
const registerPatience = time.Minute

// unknownNode reports that no node has the name --hostname, and which nodes have similar names.
func (p *Proxy) unknownNode() string {
	name := p.config.NodeName
	said := fmt.Sprintf(
		"hostname: node %q does not exist in the cluster, so it belongs to no site and Services with topologyKeys "+
			"have no endpoints here; check --hostname, or wait for the node to register",
		name,
	)
	if time.Since(p.started) < registerPatience || p.view.ServedSnapshot() != nil {
		return said // a snapshot does not have all nodes
	}
	if near := nodename.Near(name, p.facts.NodeNames()); len(near) > 0 {
		said += "; nodes with names near it: " + strings.Join(near, ", ")
	}
	return said
}

// age returns how long ago a time was; 0 if it is in the future, because the clock was set back.
func age(then time.Time) time.Duration { return max(time.Since(then), 0) }

// noteAutonomy reports which endpoints are hidden because their nodes are dead, or why none are.
func noteAutonomy(report *health.Report, s deadnodes.Status) {
	switch {
	case s.Err != nil:
		report.Note("autonomy: no endpoint is hidden for a dead node, without a good answer from the health "+
			"service: %v", s.Err)
	case len(s.Dead) == 0:
		report.Note("autonomy: no endpoint is hidden for a dead node, the health service calls none dead")
	default:
		report.Note("autonomy: endpoints on %s are hidden where others are ready, the health service calls their "+
			"nodes dead", some(s.Dead))
	}
	if len(s.UnknownAddresses) > 0 {
		report.Note("autonomy: %s not known as addresses of nodes, nothing is hidden for them; the nodes' addresses "+
			"are listed again within 10 minutes", some(s.UnknownAddresses))
	}
}

// namedNames is how many nodes or addresses a line names; it counts the others.
const namedNames = 10

// some names the first few of the names, and counts the rest.
func some(names []string) string { return enumerate.First(names, namedNames) }
