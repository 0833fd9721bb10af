package gridcontroller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

const (
	defaultMaxSites = "10%"
	// lossWindow is the time over which sites that lose something are counted.
	lossWindow = 24 * time.Hour
)

func (p *pass) removal() v1.Removal { return ptr.Deref(p.spec.Removal, v1.Removal{}) }

// graceTime is how long a workload outlives its site.
func (p *pass) graceTime() time.Duration {
	if seconds := p.removal().GraceSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return p.config.SiteRemovalGrace
}

// lossLimit returns how many of a number of sites may suffer losses without an approval.
func lossLimit(maxSites *intstr.IntOrString, sites int) int {
	return max(rollout.ScaledCount(maxSites, defaultMaxSites, sites), 1)
}

// approvalToken returns the value that approves the removal of these sites. It has their number and a hash of their
// names, so that it does not approve the removal of others.
func approvalToken(sites []string, more ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(append(slices.Sorted(slices.Values(sites)), more...), "\n")))
	return fmt.Sprintf("%d-%x", len(sites), sum[:3])
}

// vanished is a child of a site that has lost its last node.
type vanished struct {
	live *liveChild
	at   time.Time // when it is deleted
}

func (p *planned) findVanished() {
	for _, name := range slices.Sorted(maps.Keys(p.children)) {
		live := p.children[name]
		_, wanted := p.assignment.Sites[name]
		// If the site has another child, a person must decide which of the two to delete.
		if _, other := p.assignment.BySite[live.site]; wanted || other {
			continue
		}
		told, at := p.memory.ofSite(live.site).state, p.clock.Now().Add(p.graceTime()).Truncate(time.Second)
		if told.Phase == v1.SiteRemoving && told.RemovalTime != nil {
			at = told.RemovalTime.Time
		}
		if told.RemovalApproved {
			p.memory.approved[live.site] = true
		}
		p.gone = append(p.gone, vanished{live, at})
	}
}

// loss is a loss that a site is about to suffer. at distinguishes losses of the same site and kind.
type loss struct {
	site, at string
	kind     lossKind
}

// lossKind says what sites lose.
type lossKind string

const (
	vanishes lossKind = "have no node any more"
	zeroed   lossKind = "are to be scaled to 0"
	emptied  lossKind = "have no node that the new template fits"
	moved    lossKind = "lose or gain an override, because labels of nodes have changed"
)

// losses returns the losses that sites are about to suffer without a person having asked for each of them.
func (p *planned) losses() (all []loss) {
	for _, v := range p.gone {
		if !v.live.deleting && !v.live.held && p.removal().Policy != v1.RemovalRetain {
			all = append(all, loss{v.live.site, v.at.UTC().Format(time.RFC3339), vanishes})
		}
	}
	for _, site := range p.names {
		live, to := p.child(site), p.targets[site]
		if live == nil || !live.ownedBy(p.owner) || live.held || live.deleting || to.Templates == nil {
			continue
		}
		replicas, set, err := p.update.Replicas(site)
		of, variant, marked := strings.Cut(live.variant, "@")
		revision, wanted, marks := strings.Cut(to.VariantAnnotation(site), "@")
		switch {
		case err == nil && set && replicas == 0 && live.progress.replicas > 0:
			all = append(all, loss{site, strconv.FormatInt(p.grid.GetGeneration(), 10), zeroed})
		case p.empties(site, live):
			all = append(all, loss{site, strconv.FormatInt(p.grid.GetGeneration(), 10), emptied})
		case marked && marks && of == revision && variant != wanted:
			all = append(all, loss{site, variant + ">" + wanted, moved})
		}
	}
	return all
}

// empties reports whether a site's DaemonSet, which runs, is about to get a template that fits none of its nodes.
func (p *planned) empties(site string, live *liveChild) bool {
	if p.Kind != v1.DaemonSetGridKind.Kind || live.progress.replicas == 0 {
		return false
	}
	desired, err := p.desiredChild(site)
	return err == nil && desired.digest != live.appliedDigest && !p.fitsSite(site, p.targets[site].Revision)
}

// holdLosses leaves the sites alone that are about to suffer losses, if these and recent ones exceed the limit.
func (p *planned) holdLosses() {
	now, m := p.clock.Now(), p.memory
	maps.DeleteFunc(m.losses, func(_ string, l v1.SiteLoss) bool { return now.Sub(l.Time.Time) > lossWindow })
	waiting := map[string]bool{}
	all, still, byKind, names := p.losses(), map[string]bool{}, map[lossKind][]string{}, []string{}
	for _, l := range all {
		still[l.site] = true
		if _, counted := m.losses[l.site]; !m.approved[l.site] && (!counted || l.kind == vanishes) {
			names = append(names, l.site+"="+l.at)
			byKind[l.kind] = append(byKind[l.kind], l.site)
			waiting[l.site] = true
		}
	}
	maps.DeleteFunc(m.approved, func(site string, _ bool) bool { return !still[site] })
	sites, approval := len(p.assignment.BySite)+len(p.gone), approvalToken(names)
	switch limit := lossLimit(p.removal().MaxSites, sites); {
	case len(names) == 0, len(names)+len(m.losses) <= limit:
		clear(waiting)
	case p.grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval:
		maps.Copy(m.approved, waiting)
		clear(waiting)
	default:
		var texts []string
		for _, kind := range []lossKind{vanishes, zeroed, emptied, moved} {
			if sites := byKind[kind]; len(sites) > 0 {
				texts = append(texts, fmt.Sprintf("%d sites %s (%s)", len(sites), kind, nameSome(sites)))
			}
		}
		p.lossesHeld = gridchild.Errorf(v1.ReasonMassRemoval,
			"%s, and only %d of %d may within 24 hours without an approval, so the %ss of all of them stay; "+
				"if it is meant, annotate the grid with %s=%s",
			strings.Join(texts, ", "), limit, sites, p.Child.Kind, v1.AnnotationApproveRemoval, approval)
	}
	for _, l := range all {
		_, counted := m.losses[l.site]
		switch {
		case l.kind == vanishes: // it is counted when it is removed
		case waiting[l.site]:
			p.targets[l.site] = target{}
		case !counted:
			p.countLoss(l.site)
		}
	}
	if !maps.Equal(waiting, m.withheld) {
		m.withheld = waiting
		p.requeueAt(now) // the plan must know
	}
}

func (p *pass) countLoss(site string) {
	if !p.memory.approved[site] {
		p.memory.losses[site] = v1.SiteLoss{Site: site, Time: metav1.NewTime(p.clock.Now().Truncate(time.Second))}
	}
}

// removeVanished deletes the children of sites without nodes after the grace time, and returns the states of the sites.
func (p *synced) removeVanished(ctx context.Context) map[string]v1.SiteState {
	states := map[string]v1.SiteState{}
	retain, now := p.removal().Policy == v1.RemovalRetain, p.clock.Now()
	for _, v := range p.gone {
		site, state := v.live.site, liveState(v.live, v1.SiteRemoving)
		if going := !retain && !v.live.held; going {
			state.Reason = v1.ReasonSiteVanished
			state.RemovalTime, state.RemovalApproved = &metav1.Time{Time: v.at}, p.memory.approved[site]
		}
		switch {
		case retain:
			state.Phase, state.Reason, state.Message = v1.SiteRetained, v1.ReasonSiteVanished, ""
		case v.live.held, v.live.deleting: // the end of the deletion will be an event
		case p.memory.withheld[site]:
			state.Reason = v1.ReasonMassRemoval
			state.Message = "the removal of so many sites at once waits for an approval"
		case now.Before(v.at):
			p.requeueAt(v.at)
		case p.clock.Now().After(p.deadline):
			p.requeueAt(now)
		default:
			if err := p.removeSite(ctx, v.live); err != nil {
				state.Reason, state.Message = v1.ReasonSyncFailed, gridchild.Shorten(err.Error())
				p.requeueAt(now.Add(firstRetry * 5))
			} else {
				p.removed = append(p.removed, site)
				p.countLoss(site)
			}
		}
		states[site] = state
	}
	return states
}

// removeSite deletes the child of a site that has had no node for the grace time. It asks the API server first, because
// the cache of nodes may be wrong: its watch may have stalled, or its server may have lost its data. An API server
// without any nodes probably has. If it has not, no pods are running that would have to be removed.
func (p *pass) removeSite(ctx context.Context, live *liveChild) error {
	named := strings.TrimPrefix(live.name, p.owner.Name+"-") // the label that names the site may have been changed
	if len(validation.IsValidLabelValue(named)) > 0 {        // it is not a site, but the end of some name
		named = live.site
	}
	looks := []client.MatchingLabels{nil, {p.owner.Key: live.site}, {p.owner.Key: named}}
	for _, of := range slices.CompactFunc(looks, maps.Equal) { // mostly both names are the same
		nodes := pages.Metadata(corev1.SchemeGroupVersion.WithKind("Node"))
		switch err := p.apiReader.List(ctx, nodes, of, client.Limit(1)); {
		case err != nil:
			return fmt.Errorf("before %s %s is removed: listing the nodes: %w", p.Child.Kind, live.name, err)
		case of == nil && len(nodes.Items) == 0:
			return fmt.Errorf("%s %s is not removed: the API server has no nodes at all", p.Child.Kind, live.name)
		case of != nil && len(nodes.Items) > 0:
			return fmt.Errorf("%s %s is not removed: node %s is in the site, which the watch of nodes has not shown "+
				"yet", p.Child.Kind, live.name, nodes.Items[0].Name)
		}
	}
	return p.deleteObject(ctx, objectOf(p.owner, live))
}

// checkKeyChange holds a change of gridUniqKey, the key that the workloads follow, if it would move or remove so many
// workloads that it needs an approval. It returns why, or nil.
func (p *pass) checkKeyChange(children map[string]*liveChild) error {
	m, key := p.memory, p.spec.GridUniqKey
	var sites []string
	for _, live := range children {
		if m.key == "" && live.key != v1.KeyLabelValue(key) { // the status is lost
			m.key = live.key
		}
		if !live.deleting {
			sites = append(sites, live.site)
		}
	}
	follows, limit := cmp.Or(m.key, key), lossLimit(p.removal().MaxSites, len(sites))
	approval := approvalToken(sites, follows, key, strconv.FormatInt(p.grid.GetGeneration(), 10))
	slices.Sort(sites)
	switch {
	case follows == key, len(sites) <= limit:
	case p.grid.GetAnnotations()[v1.AnnotationApproveRemoval] == approval:
		for _, site := range sites {
			m.approved[site] = true
		}
	default:
		return gridchild.Errorf(v1.ReasonMassRemoval,
			"spec.gridUniqKey has changed from %s to %s, which moves or removes the %ss of %d sites (%s), and only %d "+
				"may go without an approval, so nothing is changed; if that is meant, annotate the grid with %s=%s",
			follows, key, p.Child.Kind, len(sites), nameSome(sites), limit, v1.AnnotationApproveRemoval, approval)
	}
	m.key = key
	return nil
}
