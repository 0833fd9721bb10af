package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
	"github.com/application-grid/application-grid/pkg/gridcontroller/workloadpatch"
)

// shared has what all reconcilers use.
type shared struct {
	cluster
	nodes    corev1listers.NodeLister
	recorder events.EventRecorder
	// grace is how long a workload outlives its site, unless its grid sets that.
	grace time.Duration
	// limits restrict what grids may ask for.
	limits Limits
	// schemas are for the patches of overrides.
	schemas *workloadpatch.Schemas
}

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

// workloadReconciler reconciles the grids of one kind of workload.
type workloadReconciler struct {
	shared
	v1.GridKind

	grids memories
}

// gridMemory is the memory of a grid between reconciliations. It may be lost without harm.
type gridMemory struct {
	uid types.UID
	// templates has the results of each template, by its name. They and what is known of the rollout's revisions are
	// valid for this generation and these labels of the grid.
	generation int64
	labels     map[string]string
	templates  map[string]*templateMemory
	// sites has the memory of each site. A ServiceGrid has one, with the name "", for its Service.
	sites map[string]*siteMemory
	// removals has the times at which the workloads of vanished sites are deleted.
	removals map[string]time.Time
	// losses are status.losses. approved has the sites whose losses someone has approved. key is the gridUniqKey to
	// which a change was approved.
	losses   map[string]time.Time
	approved map[string]bool
	key      string
	rollout  rolloutMemory
	// lastPass is when the last pass began, and leap how far the clock was set since the first one.
	lastPass time.Time
	leap     time.Duration
	// withheld has the sites that the last pass left alone, because they were about to suffer losses.
	withheld map[string]bool
	// told is the last failure of the grid as a whole for which there was an event.
	told   gridchild.Error
	status statusMemory
}

// siteMemory is the memory of a site between reconciliations.
type siteMemory struct {
	childMemory

	// desired is the identity of the site's child, as long as gridMemory.templates is valid.
	desired identity
	// told is the last failure for which there was an event.
	told gridchild.Error
	// broken is why the site does not work, and asked is the last state of its pods for the rollout. passed is the Job
	// of its check that has succeeded, until the status shows that.
	broken brokenSite
	asked  answer
	passed *batchv1.Job
}

func (m *gridMemory) ofSite(site string) *siteMemory {
	if m.sites[site] == nil {
		m.sites[site] = &siteMemory{}
	}
	return m.sites[site]
}

type memories struct {
	mu  sync.Mutex // guards all; a memory itself belongs to the worker that reconciles the grid
	all map[types.NamespacedName]*gridMemory
}

// readGrid reads a grid, and returns its memory. If the grid is deleted, or being deleted, it forgets the grid and
// returns nil: the garbage collector deletes its children, unless they are to be orphaned.
func (m *memories) readGrid(
	ctx context.Context, s *shared, name types.NamespacedName, grid client.Object,
) (*gridMemory, error) {
	err := s.cache.Get(ctx, name, grid)
	gone := apierrors.IsNotFound(err) || (err == nil && grid.GetDeletionTimestamp() != nil)
	if err != nil && !gone {
		return nil, fmt.Errorf("reading the grid: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if gone {
		delete(m.all, name)
		return nil, nil //nolint:nilnil // as the comment says
	}
	if m.all == nil {
		m.all = map[types.NamespacedName]*gridMemory{}
	}
	if of := m.all[name]; of == nil || of.uid != grid.GetUID() { // the memory is that of a former grid of the name
		m.all[name] = &gridMemory{uid: grid.GetUID(), sites: map[string]*siteMemory{}}
	}
	return m.all[name], nil
}

// Reconcile applies the children of one grid, and writes the grid's status and events.
func (r *workloadReconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	grid := r.New()
	m, err := r.grids.readGrid(ctx, &r.shared, request.NamespacedName, grid)
	if m == nil {
		return reconcile.Result{}, err
	}
	changed, ok := grid.DeepCopyObject().(v1.Object)
	if !ok {
		return reconcile.Result{}, fmt.Errorf("%T is not a grid", grid)
	}
	if deleted, err := r.deleteUnusedTemplates(ctx, grid, changed); err != nil || deleted {
		return reconcile.Result{}, err // the change of the grid causes another reconciliation
	}
	_, status := v1.Workload(changed)
	p := r.newPass(grid, m)
	err = cmp.Or(gridchild.CheckKey(p.spec.GridUniqKey), r.limits.check(p.spec.GridUniqKey, len(p.names)))
	if err != nil {
		r.recordGridEvent(grid, m, err)
		m.rollout.known = nil
		status.ObservedGeneration = grid.GetGeneration()
		conditions{&status.Conditions, grid.GetGeneration()}.stop(err)
		return r.writeStatus(ctx, grid, changed, &m.status, time.Time{})
	}
	report, err := p.run(ctx)
	if err != nil { // existing workloads are left alone
		r.recordGridEvent(grid, m, err)
		p.stopClocks()
		conditions{&status.Conditions, grid.GetGeneration()}.problem(v1.ConditionDegraded,
			gridchild.Tellable(err).Reason, gridchild.Tellable(err).Message)
		_, unwritten := r.writeStatus(ctx, grid, changed, &m.status, time.Time{})
		return reconcile.Result{}, errors.Join(err, unwritten)
	}
	report.summarize(status)
	report.recordEvents()
	shrinkStatus(status, m.status.limit())
	result, err := r.writeStatus(ctx, grid, changed, &m.status, p.again)
	if err == nil && changed.GetResourceVersion() != grid.GetResourceVersion() {
		m.rollout.written = changed
		if planned := report.rollout.Status; planned != nil &&
			(status.Rollout == nil || len(status.Rollout.Sites) < len(planned.Sites) ||
				len(status.Rollout.Passed)+len(status.Rollout.ProvenSites) <
					len(planned.Passed)+len(planned.ProvenSites)) {
			return result, errors.New("the API server has dropped fields of the status: apply this release's CRDs; " +
				"no site gets a change before")
		}
	}
	return result, err
}

// deleteUnusedTemplates deletes the templates that no site can get, if the grid asks for that. changed is a copy of it.
func (r *workloadReconciler) deleteUnusedTemplates(
	ctx context.Context, grid, changed v1.Object,
) (deleted bool, err error) {
	spec, _ := v1.Workload(changed)
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

// after returns the Result that requeues the request at the earliest of the times that are not zero.
func after(now time.Time, times ...time.Time) reconcile.Result {
	times = slices.DeleteFunc(times, time.Time.IsZero)
	if len(times) == 0 {
		return reconcile.Result{}
	}
	return reconcile.Result{RequeueAfter: max(slices.MinFunc(times, time.Time.Compare).Sub(now), time.Millisecond)}
}
