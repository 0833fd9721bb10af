package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// deploymentRevision is an annotation of the ReplicaSets of a Deployment: the newest one has the highest number.
const deploymentRevision = "deployment.kubernetes.io/revision"

// target has the templates that a site's child should be made from; none, and maybe an error, if it is left alone.
type target struct {
	*gridchild.Templates

	err error
}

// brokenSite is why a site does not work. It has failed once that has lasted for the deadline.
type brokenSite struct {
	revision, why string
	since         time.Time
}

// templatesOf returns the templates of a revision; nil if it is unknown or cannot be read.
func (p *assigned) templatesOf(revision string) *gridchild.Templates {
	if made, ok := p.templates[revision]; ok {
		return made
	}
	var made *gridchild.Templates
	for _, object := range p.memory.revisions {
		if object.Name != revision {
			continue
		}
		if spec, err := gridrevision.Spec(object, p.spec); err == nil {
			made = gridchild.NewTemplates(revision, spec, p.cluster)
		}
	}
	p.templates[revision] = made
	return made
}

// plan decides what each site's child should be made from, and which children go.
func (p *assigned) plan(ctx context.Context) *planned {
	next := &planned{assigned: p, targets: map[string]target{}}
	if p.spec.Rollout != nil {
		next.rollout = p.planRollout(ctx)
	}
	for _, site := range p.names {
		next.targets[site] = next.target(site)
	}
	next.findVanished()
	next.holdLosses()
	return next
}

func (p *planned) target(site string) target {
	revision, known := p.update.Revision, true
	if p.spec.Rollout != nil {
		revision, known = p.rollout.Revisions[site]
	}
	switch templates := p.templatesOf(revision); {
	case !known || revision == "":
		return target{err: p.assignment.Clashes[site]}
	case templates == nil:
		return target{err: gridchild.Errorf(v1.ReasonRevisionGone,
			"ControllerRevision %s is gone; the workload stays as it is until it gets another revision", revision)}
	default:
		return target{Templates: templates}
	}
}

func (p *assigned) planRollout(ctx context.Context) rollout.Plan {
	annotations := p.grid.GetAnnotations()
	in := rollout.Input{
		Rollout: p.spec.Rollout, Revision: p.update.Revision, Deadline: p.spec.ProgressDeadline(),
		Current: p.status.CurrentRevision, Update: p.status.UpdateRevision, Status: p.status.Rollout,
		Approved: annotations[v1.AnnotationApproved], Resumed: annotations[v1.AnnotationResumed],
		Now: p.clock.Now(), Leap: p.memory.leap, Followed: p.memory.heartbeats,
	}
	if annotations[v1.AnnotationAtOnce] == gridrevision.AtOnce(p.update.Revision, p.grid.GetGeneration()) {
		in.AtOnce = p.update.Revision
	}
	in.Gone = in.Current != "" && p.templatesOf(in.Current) == nil
	for _, site := range p.names {
		if p.assignment.Clashes[site] == nil { // a site that cannot have a workload takes no part in the rollout
			in.Sites = append(in.Sites, p.rolloutSite(site))
		}
	}
	plan := rollout.NewPlan(in)
	if len(plan.Ask)+len(plan.Checks) > 0 {
		p.readPodsAndRunChecks(ctx, plan, in)
		plan = rollout.NewPlan(in)
	}
	p.memory.heartbeats = plan.Followed
	return plan
}

func (p *assigned) rolloutSite(site string) rollout.Site {
	nodes, live, memory := p.sites[site], p.child(site), p.memory.ofSite(site)
	u := rollout.Site{
		Name: site, Wave: p.waves.Of(site), Silent: nodes.allSilent(),
		Partly: nodes.silentNodes > 0 && !nodes.allSilent(), SilentSince: nodes.silentSince,
		Progress: memory.progressAt, Trouble: memory.broken.why,
		PerNode: p.Kind == v1.DaemonSetGridKind.Kind,
	}
	if u.Trouble != "" && !p.clock.Now().Before(memory.broken.since.Add(p.spec.ProgressDeadline())) {
		u.Broken, u.Tried = u.Trouble, memory.broken.revision
	}
	if u.Withheld = p.memory.withheld[site]; u.Withheld {
		u.Trouble = "the loss that the change means for it waits for an approval"
	}
	if live == nil {
		return u
	}
	u.Exists, u.UID, u.Held = true, live.uid, live.held
	u.Revision = p.revisionOf(site, live)
	u.Drifted = live.appliedDigest == memory.same.desired && live.specHash != memory.same.specHash
	u.Uncompared = live.appliedDigest != "" && memory.same.desired == ""
	u.Idle = live.observed && live.progress.replicas == 0 && (!u.PerNode || p.excludes(site)) // a person wants no pods
	u.Ready = p.complete(live) && live.observed && !live.deleting && live.progress.waits == "" && !u.Silent
	if live.observed && !u.Ready {
		u.Waits = live.progress.waits
	}
	if u.Ready && u.Tried == u.Revision {
		u.Broken = ""
	}
	return u
}

// revisionOf returns the revision of a site's workload, which may be an orphan; "" if it is not known.
func (p *assigned) revisionOf(site string, live *liveChild) string {
	own, applied := live.ownedBy(p.owner), p.memory.ofSite(site).applied.revision
	switch {
	case own && live.revision == "" && !live.annotated && p.status.CurrentRevision != p.update.Revision:
		return applied // the rollout was added during a change: not known
	case own && live.revision == "": // somebody has changed it, or it is from before the rollout
		return cmp.Or(applied, p.status.CurrentRevision)
	case !own && p.templatesOf(live.revision) == nil: // an orphan with a forgotten revision
		return ""
	}
	return live.revision
}

// complete reports whether all pods of a workload exist and are available. The status of a DaemonSet does not count
// those on nodes that say that they are not ready. That it wants no pods need not be what a person wants.
func (p *assigned) complete(live *liveChild) bool {
	return live.progress.complete && (live.progress.strays == 0 || !p.sites[live.site].notReady()) &&
		(p.Kind != v1.DaemonSetGridKind.Kind || live.progress.replicas > 0 || p.excludes(live.site))
}

// excludes reports whether a person wants no pods of a DaemonSet at a site: neither the grid's template nor the former
// one fits a node there, and it fits other sites. Otherwise it is a mistake, or a change that takes the pods away.
func (p *assigned) excludes(site string) bool {
	ran := p.status.CurrentRevision
	return p.Kind == v1.DaemonSetGridKind.Kind && !p.fitsSite(site, p.update.Revision) &&
		(ran == "" || !p.fitsSite(site, ran)) && p.fitsSome()
}

// fitsSite reports whether the template of a revision fits a node of a site. One that cannot be read does.
func (p *assigned) fitsSite(site, revision string) bool {
	fits, err := p.fitsOf(site, revision)
	return err != nil || slices.ContainsFunc(p.sites[site].nodes, fits)
}

// fitsOf returns which nodes of a site the template of a revision fits.
func (p *assigned) fitsOf(site, revision string) (func(*corev1.Node) bool, error) {
	templates := p.templatesOf(revision)
	if templates == nil {
		return nil, fmt.Errorf("revision %s cannot be read", revision)
	}
	return templates.Fits(site)
}

// readPodsAndRunChecks answers the plan's questions for pods, and runs the checks that are due by these answers.
// Questions for which the time is too short are left to the next pass.
func (p *assigned) readPodsAndRunChecks(ctx context.Context, plan rollout.Plan, in rollout.Input) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	byName := make(map[string]*rollout.Site, len(in.Sites))
	for i := range in.Sites {
		byName[in.Sites[i].Name] = &in.Sites[i]
	}
	for _, q := range plan.Ask {
		memory, site := p.memory.ofSite(q.Name), byName[q.Name]
		if at := memory.asked.At; p.clock.Since(at) >= askPause || at.Before(q.After) || !at.After(memory.appliedAt) ||
			!memory.askedSince.Equal(site.SilentSince) {
			pods, err := p.readPods(ctx, site)
			if err != nil {
				klog.FromContext(ctx).V(2).Info("Cannot read the pods of a site", "site", q.Name, "reason", err)
				site.Unread = true
				continue
			}
			memory.asked, memory.askedSince = pods, site.SilentSince
		}
		site.Pods = &memory.asked
	}
	for _, name := range rollout.NewPlan(in).Checks {
		byName[name].Check = p.check(ctx, name, plan.Status.StartTime)
	}
}

// readPods reads the pods of a site's workload: those on its nodes and, if some nodes are silent, those without a node.
func (p *assigned) readPods(ctx context.Context, site *rollout.Site) (rollout.Pods, error) {
	fits, err := p.fitsOf(site.Name, p.update.Revision)
	if err != nil {
		return rollout.Pods{}, err
	}
	now, nodes := p.clock.Now(), map[string]rollout.Node{}
	for _, node := range p.sites[site.Name].nodes {
		silent, _ := isSilent(node)
		nodes[node.Name] = rollout.Node{Silent: silent, Wants: fits(node)}
	}
	pods, err := p.podsOf(ctx, site.Name, site.Partly)
	newest := func(*corev1.Pod) bool { return true }
	if err == nil && (site.Silent || site.Partly && site.PerNode) { // the plan asks it of no others
		newest, err = p.newestTemplate(ctx, site.Name)
	}
	if err != nil {
		return rollout.Pods{}, err
	}
	return rollout.SummarizePods(pods, nodes, newest, now), nil
}

// podsOf reads the pods of a site's workload: those on its nodes and, if unscheduled is set, those without a node. Pods
// of others with the same labels are left out. The API server finds the pods of a node quickly.
func (p *assigned) podsOf(ctx context.Context, site string, unscheduled bool) (own []corev1.Pod, err error) {
	live := p.child(site)
	if live == nil { // it was made a moment ago
		return nil, nil
	}
	looks := map[string]fields.Selector{}
	for _, node := range p.sites[site].nodes {
		looks[node.Name] = fields.OneTermEqualSelector("spec.nodeName", node.Name)
	}
	if unscheduled {
		looks[""] = fields.OneTermEqualSelector("spec.nodeName", "")
	}
	nodes := looks
	if len(nodes) > nodesEach {
		looks = map[string]fields.Selector{"": fields.Everything()}
	}
	for _, look := range looks {
		err := pages.Each(ctx, p.apiReader, &corev1.PodList{}, func(pod *corev1.Pod) {
			if nodes[pod.Spec.NodeName] != nil && gridchild.OwnsPod(p.Child.Kind, live.name, live.uid, pod) {
				own = append(own, *pod)
			}
		}, client.InNamespace(p.owner.Namespace), client.MatchingLabelsSelector{Selector: live.selector},
			client.MatchingFieldsSelector{Selector: look})
		if err != nil {
			return nil, fmt.Errorf("listing pods: %w", err)
		}
	}
	return own, nil
}

// newestTemplate returns which pods have the newest template of a site's workload, as its own controller decides that:
// by its newest ReplicaSet or ControllerRevision, which exists once it has observed the spec. It is an error before. No
// clock counts, and pods of an earlier template that is used again keep their hash.
func (p *assigned) newestTemplate(ctx context.Context, site string) (func(*corev1.Pod) bool, error) {
	live := p.child(site)
	if live == nil || !live.observed {
		return nil, errors.New("its controller has not observed its spec yet")
	}
	kind, key := "ControllerRevision", appsv1.ControllerRevisionHashLabelKey
	if p.Kind == v1.DeploymentGridKind.Kind {
		kind, key = "ReplicaSet", appsv1.DefaultDeploymentUniqueLabelKey
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind(kind + "List"))
	err := p.apiReader.List(ctx, list, client.InNamespace(p.owner.Namespace),
		client.MatchingLabelsSelector{Selector: live.selector})
	if err != nil {
		return nil, fmt.Errorf("listing the %ss of %s: %w", kind, live.name, err)
	}
	owner, hash, highest := live.uid, "", int64(0) // those of the pods, and the number of their template
	for i := range list.Items {
		of, number := &list.Items[i], integer(list.Items[i].Object, "revision")
		if kind == "ReplicaSet" {
			number, _ = strconv.ParseInt(of.GetAnnotations()[deploymentRevision], 10, 64) // 0 if it has none yet
		}
		if by := metav1.GetControllerOf(of); by == nil || string(by.UID) != live.uid || number <= highest {
			continue
		}
		highest, hash = number, cmp.Or(of.GetLabels()[key], of.GetName()) // the pods of a StatefulSet have the name
		if kind == "ReplicaSet" {
			owner = string(of.GetUID())
		}
	}
	return func(pod *corev1.Pod) bool {
		by := metav1.GetControllerOf(pod)
		return by != nil && string(by.UID) == owner && hash != "" && pod.Labels[key] == hash
	}, nil
}

// trackBroken notes since when a site does not work. A short failure is only reported and retried.
func (p *synced) trackBroken(site string, state v1.SiteState, memory *siteMemory) {
	result, now, before := p.results[site], brokenSite{}, &memory.broken
	switch {
	case p.spec.Rollout == nil, p.sites[site].allSilent():
	case result.untried: // as before
		return
	case state.Phase == v1.SiteFailed:
		revision := cmp.Or(p.targets[site].Templates, &gridchild.Templates{}).Revision
		now = brokenSite{revision, state.Reason + ": " + state.Message, p.clock.Now()}
		if before.why != "" && before.revision == now.revision {
			now.since = before.since
		}
	case state.Phase == v1.SiteStalled && result.child != nil:
		// A Deployment's own deadline also passes while its site is silent.
		now = brokenSite{result.child.revision, state.Message, memory.progressAt.Add(memory.rested)}
	}
	if over := now.since.Add(p.spec.ProgressDeadline()); now.why != "" && p.clock.Now().Before(over) {
		p.requeueAt(over)
	}
	// The plan must know of it. Why may differ at each pass.
	if (now.why == "") != (before.why == "") || now.revision != before.revision || !now.since.Equal(before.since) {
		p.requeueAt(p.clock.Now())
	}
	*before = now
}

func (p *planned) describeRollout() string {
	status, wave := p.rollout.Status, ""
	if status.Wave != "" {
		wave = "wave " + status.Wave
	}
	parts := []string{"rollout of " + p.update.Revision, wave, string(status.Phase), status.Message}
	parts = slices.DeleteFunc(parts, func(part string) bool { return part == "" })
	return gridchild.Shorten(strings.Join(parts, ": "))
}

// halted reports whether the rollout has halted or goes back, progresses whether it continues by itself.
func halted(status *v1.RolloutStatus) bool {
	return slices.Contains([]v1.RolloutPhase{
		v1.RolloutHalted, v1.RolloutRollingBack, v1.RolloutRolledBack, v1.RolloutOutage,
	}, status.Phase)
}

func progresses(status *v1.RolloutStatus) bool {
	return status.Phase == v1.RolloutProgressing || status.Phase == v1.RolloutSoaking
}
