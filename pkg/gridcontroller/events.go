package gridcontroller

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// recordEvents records events for what has changed since the last pass.
func (p *report) recordEvents() {
	m := p.memory
	event := func(kind, reason, action, format string, args ...any) {
		p.recorder.Eventf(p.grid, nil, kind, reason, action, "%s", fmt.Sprintf(format, args...))
	}
	if status := p.rollout.Status; status != nil {
		mark := fmt.Sprint(p.update, "/", status.Wave, "/", status.Phase)
		// The former controller may have recorded it.
		if before := p.written.Rollout; m.rollout.mark == "" && before != nil && before.Phase != "" {
			m.rollout.mark = fmt.Sprint(p.update, "/", before.Wave, "/", before.Phase)
		}
		if m.rollout.mark != mark {
			m.rollout.mark = mark
			kind, reason := corev1.EventTypeNormal, v1.ReasonRollout
			if halted(status) {
				kind, reason = corev1.EventTypeWarning, v1.ReasonRolloutHalted
			}
			event(kind, reason, "Rollout", "%s", p.describeRollout())
		}
	}
	kind, grace := p.Child.Kind, p.removal().grace
	for _, t := range []struct {
		sites                        []string
		kind, reason, action, format string
	}{
		{p.applied, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", fmt.Sprintf(
			"Applied the %ss of %d sites: %%s", kind, len(p.applied))},
		{p.vanished, corev1.EventTypeWarning, v1.ReasonSiteVanished, "Wait", fmt.Sprintf(
			"No node is in %%s any more; the %ss are removed in %s unless one comes back", kind, grace)},
		{p.returned, corev1.EventTypeNormal, v1.ReasonSiteReturned, "Keep", "Nodes are back in %s; the " + kind +
			"s stay"},
		{p.removed, corev1.EventTypeNormal, v1.ReasonRemoved, "Delete", "Removed the " + kind +
			"s of vanished sites: %s"},
		{p.handedOver, corev1.EventTypeNormal, v1.ReasonReplicasHandedOver, "HandOver",
			"The template no longer sets replicas; sites keep theirs until someone changes them: %s"},
	} {
		if len(t.sites) > 0 {
			event(t.kind, t.reason, t.action, t.format, nameSome(t.sites))
		}
	}
	switch {
	case p.held != nil:
		p.recordGridEvent(p.grid, m, p.held)
	case len(p.states) == 0:
		p.recordGridEvent(p.grid, m, gridchild.Errorf(v1.ReasonNoSites,
			"No node has the label %s, so there are no sites and no %ss", p.spec.GridUniqKey, p.Child.Kind))
	default:
		m.told = gridchild.Error{}
	}
	// New or changed failures get an event; sites with the same failure share one.
	fresh := map[gridchild.Error][]string{}
	for site, state := range p.states {
		if state.Phase != v1.SiteFailed && state.Phase != v1.SiteStalled {
			p.memory.ofSite(site).told = gridchild.Error{}
			continue
		}
		prefix := p.owner.Name + "-"
		failure := gridchild.Error{
			Reason:  state.Reason,
			Message: strings.ReplaceAll(state.Message, prefix+site, prefix+"<site>"),
		}
		if told := &p.memory.ofSite(site).told; *told != failure {
			*told = failure
			fresh[failure] = append(fresh[failure], site)
		}
	}
	for failure, sites := range fresh {
		slices.Sort(sites)
		message := failure.Message
		if len(sites) == 1 {
			message = p.states[sites[0]].Message
		}
		event(corev1.EventTypeWarning, failure.Reason, "Sync", "%s: %s", nameSome(sites), message)
	}
}

// recordGridEvent records an event about the grid as a whole, once.
func (s *shared) recordGridEvent(grid client.Object, m *gridMemory, err error) {
	if told := gridchild.Tellable(err); m.told != told {
		m.told = told
		s.recorder.Eventf(grid, nil, corev1.EventTypeWarning, told.Reason, "Sync", "%s", told.Message)
	}
}
