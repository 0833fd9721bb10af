package gridcontroller

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// recordEvents records events for what has changed since the last pass, and remembers the states of the sites.
func (p *report) recordEvents() {
	happened := map[string][]string{v1.ReasonRemoved: p.removed}
	note := func(is bool, reason, site string) {
		if is {
			happened[reason] = append(happened[reason], site)
		}
	}
	// New or changed failures get an event; sites with the same failure share one.
	fresh := map[gridchild.Error][]string{}
	failed := func(state v1.SiteState) bool { return state.Phase == v1.SiteFailed || state.Phase == v1.SiteStalled }
	for _, site := range slices.Sorted(maps.Keys(p.states)) {
		now, memory, result := p.states[site], p.memory.ofSite(site), p.results[site]
		before := memory.state
		memory.state = now
		left := before.Phase == v1.SiteRemoving
		note(result.applied, v1.ReasonApplied, site)
		note(result.handedOver != "", v1.ReasonReplicasHandedOver, site+" "+result.handedOver)
		note(!left && now.Phase == v1.SiteRemoving, v1.ReasonSiteVanished, site)
		note(left && len(p.sites[site].nodes) > 0, v1.ReasonSiteReturned, site)
		if failed(now) && (!failed(before) || before.Reason != now.Reason || before.Message != now.Message) {
			own, each := p.owner.Name+"-"+site, p.owner.Name+"-<site>"
			failure := gridchild.Error{Reason: now.Reason, Message: strings.ReplaceAll(now.Message, own, each)}
			fresh[failure] = append(fresh[failure], site)
		}
	}
	kind, grace := p.Child.Kind, p.graceTime()
	for _, t := range []struct{ kind, reason, action, format string }{
		{corev1.EventTypeNormal, v1.ReasonApplied, "Apply", fmt.Sprintf(
			"Applied the %ss of %d sites: %%s", kind, len(happened[v1.ReasonApplied]))},
		{corev1.EventTypeWarning, v1.ReasonSiteVanished, "Wait", fmt.Sprintf(
			"No node is in %%s any more; the %ss are removed in %s unless one comes back", kind, grace)},
		{corev1.EventTypeNormal, v1.ReasonSiteReturned, "Keep", "Nodes are back in %s; the " + kind + "s stay"},
		{corev1.EventTypeNormal, v1.ReasonRemoved, "Delete", "Removed the " + kind + "s of vanished sites: %s"},
		{corev1.EventTypeNormal, v1.ReasonReplicasHandedOver, "HandOver",
			"The template no longer sets replicas; sites keep theirs until someone changes them: %s"},
	} {
		if sites := happened[t.reason]; len(sites) > 0 {
			p.recorder.Eventf(p.grid, nil, t.kind, t.reason, t.action, t.format, nameSome(sites))
		}
	}
	switch {
	case p.held != nil:
		p.recordGridEvent(p.grid, p.memory, p.held)
	case len(p.states) == 0:
		p.recordGridEvent(p.grid, p.memory, gridchild.Errorf(v1.ReasonNoSites,
			"No node has the label %s, so there are no sites and no %ss", p.spec.GridUniqKey, p.Child.Kind))
	default:
		p.memory.told = gridchild.Error{}
	}
	for failure, sites := range fresh {
		if len(sites) == 1 {
			failure.Message = p.states[sites[0]].Message
		}
		p.recorder.Eventf(p.grid, nil, corev1.EventTypeWarning, failure.Reason, "Sync", "%s: %s", nameSome(sites),
			failure.Message)
	}
}

// recordRollout records an event if the status that was just written has another wave or phase than the one before.
func (p *report) recordRollout() {
	before, now := ptr.Deref(p.status.Rollout, v1.RolloutStatus{}), p.rollout.Status
	if now == nil || p.status.UpdateRevision == p.update && before.Wave == now.Wave && before.Phase == now.Phase {
		return
	}
	kind, reason := corev1.EventTypeNormal, v1.ReasonRollout
	if halted(now) {
		kind, reason = corev1.EventTypeWarning, v1.ReasonRolloutHalted
	}
	p.recorder.Eventf(p.grid, nil, kind, reason, "Rollout", "%s", p.describeRollout())
}

// recordGridEvent records an event about the grid as a whole, once, and returns the failure that it is about.
func (r *reconciler) recordGridEvent(grid client.Object, m *gridMemory, err error) gridchild.Error {
	told := gridchild.Tellable(err)
	if m.told != told {
		m.told = told
		r.recorder.Eventf(grid, nil, corev1.EventTypeWarning, told.Reason, "Sync", "%s", told.Message)
	}
	return told
}
