package gridcontroller

import (
	"cmp"
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridview"
)

const (
	// podPause is the shortest time between two reads of one site's pods for a message, and askPause that for a proof.
	// podTimeout is how long all reads of one pass may take.
	podPause   = 30 * time.Second
	askPause   = 10 * time.Second
	podTimeout = 2 * time.Second
	// nodesEach is the largest number of nodes which are asked for one by one.
	nodesEach = 8
)

func podCounts(state v1.SiteState) [3]int64 {
	return [...]int64{state.UpdatedReplicas, state.ReadyReplicas, state.AvailableReplicas}
}

// trackProgress changes the state of a site that is not ready to Unreachable or Stalled, if it is. The live status may
// have the time of the last progress from an earlier controller.
func (p *planned) trackProgress(site string, state *v1.SiteState, live *liveChild) {
	m := p.memory.ofSite(site)
	silent := p.sites[site].silentNodes
	returned := silent < m.silent
	m.silent = silent
	switch {
	case state.Phase == v1.SiteFailed, state.Phase == v1.SiteHeld:
		return
	case p.sites[site].allSilent():
		state.Phase = v1.SiteUnreachable
	}
	now, deadline := p.clock.Now(), p.spec.ProgressDeadline()
	if state.Phase != v1.SiteProgressing {
		m.pod, m.podAt = "", time.Time{}
		if state.Phase != v1.SiteReady {
			m.mark, m.readyAt = "", time.Time{}
		} else if m.readyAt.IsZero() {
			m.readyAt = now
			if !m.reached { // only the first time is progress
				m.reached, m.progressAt, m.rested = true, now.Truncate(time.Second), 0
			}
		}
		return
	}
	if !m.readyAt.IsZero() {
		ready := now.Sub(m.readyAt)
		m.rested, m.readyAt = m.rested+ready, time.Time{}
		if ready >= deadline { // this is a new problem with its own deadline
			m.mark = ""
		}
	}
	counts := podCounts(*state)
	// An autoscaler that changes the replicas again and again makes no progress.
	if mark := "towards " + m.same.desired; m.mark != mark {
		m.progressAt, m.rested, m.best, m.reached = now.Truncate(time.Second), 0, counts, false
		told, changed := p.status.States[site], p.status.ObservedGeneration != p.grid.GetGeneration()
		if p.spec.Rollout != nil && live != nil {
			changed = live.revision != cmp.Or(told.Revision, p.status.UpdateRevision)
		}
		// Not if a controller has changed the workload and stopped before it wrote the status.
		if m.mark == "" && !changed && told.ProgressTime != nil && told.Replicas == state.Replicas &&
			podCounts(told) == counts {
			m.progressAt, m.rested = told.ProgressTime.Time, p.rollout.Gap
		}
		m.mark = mark
	}
	for i, count := range counts { // pods that become ready and fail again make no progress
		if count > m.best[i] {
			m.best[i], m.progressAt, m.rested = count, now.Truncate(time.Second), 0
		}
	}
	if returned { // the pods of a node that comes back start again
		m.rested = now.Sub(m.progressAt)
	}
	state.ProgressTime = &metav1.Time{Time: m.progressAt}
	over := m.progressAt.Add(m.rested + deadline)
	switch {
	case live != nil && live.observed && live.progress.stuck.Reason != "":
		stuck := live.progress.stuck
		state.Phase, state.Reason, state.Message = v1.SiteStalled, stuck.Reason, stuck.Message
	case !now.Before(over):
		state.Phase, state.Reason = v1.SiteStalled, v1.ReasonProgressDeadlineExceeded
		state.Message = fmt.Sprintf("no progress for %s; %s", deadline, p.describeLack(state, live))
	default:
		p.requeueAt(over)
	}
}

// describeLack is what a site without progress has and lacks.
func (p *pass) describeLack(state *v1.SiteState, live *liveChild) string {
	text := fmt.Sprintf("%d of %d pods are ready, %d updated", state.ReadyReplicas, state.Replicas,
		state.UpdatedReplicas)
	if p.Kind == v1.DaemonSetGridKind.Kind && state.Replicas == 0 {
		text += "; the template fits no node of the site"
	}
	if live != nil && live.progress.stranded > 0 {
		text += "; a pod that is not ready keeps the template of an earlier attempt until somebody deletes it, " +
			"because podManagementPolicy is OrderedReady"
	}
	return text
}

// explainStalled adds the problems of pods to the messages of the first few stalled sites.
func (p *report) explainStalled(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	stalled := p.in[v1.SiteStalled]
	for _, site := range stalled[:min(len(stalled), namedSites)] {
		state, memory, now := p.states[site], p.memory.ofSite(site), p.clock.Now()
		if now.Sub(memory.podAt) >= podPause {
			memory.podAt = now
			if pods, err := p.podsOf(ctx, site, true); err == nil { // it is not worth an error
				memory.pod = gridview.FirstPodProblem(pods, p.owner.Key, site)
			}
		}
		p.requeueAt(memory.podAt.Add(podPause))
		if memory.pod != "" {
			state.Message = gridchild.Shorten(state.Message + "; " + memory.pod)
			p.states[site] = state
		}
	}
}
