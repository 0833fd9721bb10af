package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/gridcontroller/rollout"
	"github.com/application-grid/application-grid/pkg/gridcontroller/workloadpatch"
)

// Limits restrict what grids may ask for, in clusters that several tenants share.
type Limits struct {
	// SiteKeys are the keys of node labels that a grid may use; empty for any.
	SiteKeys []string
	// SitesPerGrid is the largest number of sites of one grid; 0 for no limit.
	SitesPerGrid int
}

func (l Limits) check(key string, sites int) error {
	switch {
	case len(l.SiteKeys) > 0 && !slices.Contains(l.SiteKeys, key):
		return gridchild.Errorf(v1.ReasonNotAllowed,
			"spec.gridUniqKey %q is not one of those that the controller's --allowed-site-keys names: %s",
			key, strings.Join(l.SiteKeys, ", "))
	case l.SitesPerGrid > 0 && sites > l.SitesPerGrid:
		return gridchild.Errorf(v1.ReasonNotAllowed,
			"spec.gridUniqKey %q makes %d sites, and the controller's --max-sites-per-grid allows %d; "+
				"nothing is changed", key, sites, l.SitesPerGrid)
	}
	return nil
}

type reconciler struct {
	v1.GridKind
	// cache reads children that condenseChild has reduced. apiReader reads from the API server.
	cache, apiReader client.Reader
	writer           client.Client
	clock            clock.PassiveClock
	nodes            corev1listers.NodeLister
	recorder         events.EventRecorder
	schemas          *workloadpatch.Schemas // for the patches of overrides
	config           Config

	grids sync.Map // of *gridMemory, each of which belongs to the worker that reconciles the grid, by name
}

// gridMemory is the memory of a grid between reconciliations. It may be lost without harm.
type gridMemory struct {
	uid types.UID
	// templates has the results of each variant. They and the revisions are of the generation and labels in madeFor.
	madeFor   string
	templates map[string]*templateMemory
	// sites has the memory of each site. A ServiceGrid has one, with the name "", for its Service.
	sites map[string]*siteMemory
	// losses are status.losses, by site. approved has the sites whose losses someone has approved. key is
	// status.gridUniqKey, the key that the workloads follow.
	losses   map[string]v1.SiteLoss
	approved map[string]bool
	key      string
	// revisions are the grid's ControllerRevisions; nil if they must be read. jobs are the Jobs of checks, by name, as
	// they were at jobsAt. heartbeats are those of the last plan.
	revisions  []*appsv1.ControllerRevision
	jobs       map[string]*batchv1.Job
	jobsAt     time.Time
	heartbeats []rollout.Heartbeat
	// lastPass is when the last pass began, and leap how far the clock was set since the first one.
	lastPass time.Time
	leap     time.Duration
	// withheld has the sites that the last pass left alone, because their losses wait for an approval.
	withheld map[string]bool
	// lastRecorded is the last failure of the grid as a whole for which there was an event.
	lastRecorded gridchild.Error
	// writtenAt is when the status was last written, writtenVersion the resource version of the grid that this made.
	// largest is how many bytes of states the status may have.
	writtenAt      time.Time
	writtenVersion string
	largest        int
}

// siteMemory is the memory of a site and its child between reconciliations. It must not be used concurrently.
type siteMemory struct {
	// state is what the last pass found, at first what the status says.
	state v1.SiteState
	// desired is the identity of the site's child, as long as gridMemory.templates is valid.
	desired identity
	// broken is why the site does not work. asked are its pods for the rollout, when silentSince was askedSince.
	broken     brokenSite
	asked      rollout.Pods
	askedSince time.Time
	// same has the digest of the desired child, and the specHash of the live child, that were last
	// found to belong together. As long as desired is the same, another specHash is drift.
	same struct{ desired, specHash string }
	// applied is the child after the last apply.
	applied   liveChild
	appliedAt time.Time
	// failure is the error of the last attempt to sync; nil after a success. failed is the digest that it was for.
	failure error
	failed  string
	retries int
	retryAt time.Time
	// mark identifies the desired child; it is empty before the first one. The live child last made progress towards it
	// at progressAt: best are the largest numbers of pods that were updated, ready and available, and reached is set if
	// it was ready. It has been ready since readyAt. rested is how much of the time since progressAt does not count
	// towards its deadline: it was ready, or a node was silent. silent is how many nodes of the site were silent.
	mark                string
	best                [3]int64
	reached             bool
	progressAt, readyAt time.Time
	rested              time.Duration
	silent              int
	// pod is the problem that was found, at podAt, with the pods of a child that makes no progress.
	pod   string
	podAt time.Time
}

func newMemory(grid v1.Object) *gridMemory {
	m := &gridMemory{
		uid: grid.GetUID(), sites: map[string]*siteMemory{}, losses: map[string]v1.SiteLoss{},
		approved: map[string]bool{}, largest: largestStates,
	}
	if _, status := v1.SpecAndStatus(grid); status != nil {
		m.key = status.GridUniqKey
		for site, state := range status.States {
			m.sites[site] = &siteMemory{state: state}
		}
		for _, loss := range status.Losses {
			m.losses[loss.Site] = loss
		}
	}
	return m
}

func (m *gridMemory) ofSite(site string) *siteMemory {
	if m.sites[site] == nil {
		m.sites[site] = &siteMemory{}
	}
	return m.sites[site]
}

// Reconcile applies the children of one grid, and writes the grid's status and events.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	name := request.NamespacedName
	grid, err := r.readGrid(ctx, r.cache, name)
	if grid == nil || err != nil {
		return reconcile.Result{}, err
	}
	known, _ := r.grids.Load(name)
	m, ok := known.(*gridMemory)
	if ok = ok && m.uid == grid.GetUID(); ok && r.cacheIsStale(ctx, grid, m) {
		return reconcile.Result{RequeueAfter: batchPeriod}, nil
	}
	// The cache may be older than the last actions of a former controller, or of this one, which nothing may undo.
	if !ok || older(grid.GetResourceVersion(), m.writtenVersion) {
		if grid, err = r.readGrid(ctx, r.apiReader, name); grid == nil || err != nil {
			return reconcile.Result{}, err
		}
	}
	if !ok || m.uid != grid.GetUID() { // the memory is that of a former grid of the name
		m = newMemory(grid)
		m.writtenVersion = grid.GetResourceVersion()
		r.grids.Store(name, m)
	}
	owner := gridchild.NewOwner(r.GridKind, grid)
	switch changed := grid.DeepCopyObject().(type) {
	case *v1.ServiceGrid:
		requeueTime := r.reconcileService(ctx, changed, owner, m)
		return r.writeStatus(ctx, grid, changed, m, requeueTime)
	case v1.Object:
		return r.reconcileWorkloads(ctx, grid, changed, owner, m)
	}
	return reconcile.Result{}, fmt.Errorf("%T is not a grid", grid)
}

// readGrid reads a grid; nil if there is none, or it is being deleted.
func (r *reconciler) readGrid(ctx context.Context, from client.Reader, name types.NamespacedName) (v1.Object, error) {
	grid := r.New()
	switch err := from.Get(ctx, name, grid); {
	case apierrors.IsNotFound(err), err == nil && grid.GetDeletionTimestamp() != nil:
		// The garbage collector deletes the children, unless they are to be orphaned.
		r.grids.Delete(name)
		return nil, nil //nolint:nilnil // as the comment says
	case err != nil:
		return nil, fmt.Errorf("reading the grid: %w", err)
	}
	return grid, nil
}

// cacheIsStale reports whether the caches do not show yet what this controller has written. It waits for that, but not
// long.
func (r *reconciler) cacheIsStale(ctx context.Context, grid v1.Object, m *gridMemory) bool {
	now, o := r.clock.Now(), gridchild.NewOwner(r.GridKind, grid)
	if older(grid.GetResourceVersion(), m.writtenVersion) && now.Before(m.writtenAt.Add(cacheLag)) {
		return true
	}
	for _, of := range m.sites {
		if now.Before(of.appliedAt.Add(cacheLag)) {
			live, err := r.getChild(ctx, r.cache, o, of.applied.name)
			if err == nil && (live == nil || older(live.resourceVersion, of.applied.resourceVersion)) {
				return true
			}
		}
	}
	return false
}

func (r *reconciler) reconcileWorkloads(
	ctx context.Context, grid, changed v1.Object, owner *gridchild.Owner, m *gridMemory,
) (reconcile.Result, error) {
	if deleted, err := r.deleteUnusedTemplates(ctx, grid, changed); err != nil || deleted {
		return reconcile.Result{}, err // the change of the grid causes another reconciliation
	}
	children, err := r.childrenOf(ctx, owner)
	if err != nil {
		return reconcile.Result{}, err
	}
	p := r.newPass(grid, owner, m)
	_, status := v1.SpecAndStatus(changed)
	c := conditions{&status.Conditions, grid.GetGeneration()}
	err = cmp.Or(gridchild.CheckKey(owner.Key), r.config.Limits.check(owner.Key, len(p.names)))
	if err == nil {
		err = p.checkKeyChange(children)
	}
	if err != nil {
		m.heartbeats = nil // the clocks of sites stop
		status.ObservedGeneration = grid.GetGeneration()
		c.setFailed(r.recordGridEvent(grid, m, err))
		return r.writeStatus(ctx, grid, changed, m, time.Time{})
	}
	// A plan gives a new revision only to sites that the written status lists, so the status may be written last.
	report, err := p.runStages(ctx, children)
	if err != nil { // existing workloads are left alone
		told := r.recordGridEvent(grid, m, err)
		// If no plan was made for long, no controller followed the rollout in that time.
		if of := p.status.Rollout; of != nil && of.HeardTime != nil &&
			r.clock.Since(of.HeardTime.Time) >= p.spec.ProgressDeadline() {
			m.heartbeats = nil
		}
		c.setProblem(v1.ConditionDegraded, told.Reason, told.Message)
		_, unwritten := r.writeStatus(ctx, grid, changed, m, time.Time{})
		return reconcile.Result{}, errors.Join(err, unwritten)
	}
	report.summarize(status)
	report.recordEvents()
	shrinkStatus(status, m.largest)
	result, err := r.writeStatus(ctx, grid, changed, m, p.requeueTime)
	if err != nil || changed.GetResourceVersion() == grid.GetResourceVersion() {
		return result, err
	}
	report.recordRollout()
	size := func(s *v1.RolloutStatus) int {
		of := ptr.Deref(s, v1.RolloutStatus{})
		return len(of.Sites) + len(of.Passed) + len(of.ProvenSites)
	}
	if size(status.Rollout) < size(report.rollout.Status) {
		err = errors.New("the API server has dropped fields of the status: apply this release's CRDs; no site gets a " +
			"change before")
	}
	return result, err
}

// deleteUnusedTemplates deletes the templates that no site can get, if the grid asks for that. changed is a copy of it.
func (r *reconciler) deleteUnusedTemplates(
	ctx context.Context, grid, changed v1.Object,
) (deleted bool, err error) {
	spec, _ := v1.SpecAndStatus(changed)
	unused := gridchild.UnusedTemplates(spec)
	if !spec.AutoDeleteUnusedTemplate || len(unused) == 0 {
		return false, nil
	}
	for _, name := range unused {
		delete(spec.TemplatePool, name)
	}
	// This makes the next generation. A person's request in this one stays valid.
	generation := grid.GetGeneration()
	if to, now := strings.CutSuffix(grid.GetAnnotations()[v1.AnnotationAtOnce], fmt.Sprintf("/%d", generation)); now {
		annotations := changed.GetAnnotations()
		annotations[v1.AnnotationAtOnce] = gridrevision.AtOnce(to, generation+1)
		changed.SetAnnotations(annotations)
	}
	// The lock makes it a conflict if someone has begun to use one of the templates meanwhile.
	patch := client.MergeFromWithOptions(grid, client.MergeFromWithOptimisticLock{})
	if err := r.writer.Patch(ctx, changed, patch); err != nil {
		return false, fmt.Errorf("deleting unused templates: %w", err)
	}
	r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonTemplatesDeleted, "DeleteTemplates",
		"Removed unused templates from spec.templatePool: %s", nameSome(unused))
	return true, nil
}

// reconcileService applies the Service of a grid, and fills in the grid's status. It returns when to do that again.
func (r *reconciler) reconcileService(
	ctx context.Context, grid *v1.ServiceGrid, o *gridchild.Owner, m *gridMemory,
) time.Time {
	//nolint:gosec // no more than there are nodes
	grid.Status.ObservedGeneration, grid.Status.Sites = grid.Generation, int32(len(sitesOf(r.nodes, o.Key)))
	c := conditions{&grid.Status.Conditions, grid.Generation}
	child, err := gridchild.RenderService(o, grid.Spec.Template)
	outcome := result{err: cmp.Or(gridchild.CheckKey(o.Key), r.config.Limits.check(o.Key, 0), err)}
	if outcome.err == nil {
		outcome = r.syncChild(ctx, o, &desired{
			identity:     identity{child.GetName(), "", child.GetAnnotations()[v1.AnnotationAppliedDigest]},
			fieldSetHash: &atomic.Value{}, child: child,
		}, m.ofSite(""))
	}
	if outcome.applied {
		r.recorder.Eventf(grid, nil, corev1.EventTypeNormal, v1.ReasonApplied, "Apply", "Applied Service %s%s",
			grid.Name, v1.ServiceSuffix)
	}
	if outcome.err != nil {
		c.setFailed(r.recordGridEvent(grid, m, outcome.err))
		return outcome.requeueTime
	}
	m.lastRecorded = gridchild.Error{}
	making := ""
	if live := outcome.child; live == nil || live.deleting {
		making = "the Service is being made"
		c.set(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonSitesProgressing, making)
	} else {
		c.set(v1.ConditionReady, metav1.ConditionTrue, v1.ReasonReady, "Service "+live.name+" is as the grid says")
	}
	c.setProblem(v1.ConditionProgressing, v1.ReasonSitesProgressing, making)
	c.setProblem(v1.ConditionDegraded, "")
	return outcome.requeueTime
}
