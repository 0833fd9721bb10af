package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/csaupgrade"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

const (
	// firstRetry is the pause after a first failure. It doubles with each further failure, up to lastRetry.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// cacheLag is how long what was just written may be missing in the cache before that is used all the same.
	cacheLag = 2 * time.Second
)

// desired is the desired state of a child. The object is rendered only when it is needed: rendering ten thousand
// children takes seconds, and the digests of most show that they need no change.
type desired struct {
	identity

	site string
	// fieldSetHash is the hash of the fields that our manager owns in a child of the same template, once one was
	// applied. The others differ only in the site, so it owns the same fields of them.
	fieldSetHash *atomic.Value
	// child must not be changed. It is nil before it is needed.
	child *unstructured.Unstructured
}

// identity identifies the content of a desired child by its name, by what it is made from (the revision, the variants
// of its templates, whether its selector names the site), and by its digest.
type identity struct{ name, variant, digest string }

// result is what became of a child.
type result struct {
	// child is the live child as far as it is known; nil if it does not exist, or is not the grid's.
	child *liveChild
	// err is why the child is not as desired. untried is set if that is only because another site's child was refused.
	err     error
	untried bool
	// applied is set if something was written, and handedOver is how many replicas were handed over; "" for none.
	applied    bool
	handedOver string
	// requeueTime is when to sync again; zero if an event will cause it.
	requeueTime time.Time
}

// syncChild makes the live child as desired, if it is not.
func (r *reconciler) syncChild(ctx context.Context, o *gridchild.Owner, d *desired, m *siteMemory) result {
	outcome := childSync{r, o, d, m}.applyIfNeeded(ctx)
	outcome.err = gridchild.Rejected(outcome.err)
	if m.failed != d.digest || outcome.err == nil {
		m.retries = 0
	}
	if m.failure, m.failed = outcome.err, d.digest; outcome.err == nil {
		return outcome
	}
	pause := wait.Jitter(min(firstRetry<<min(m.retries, 10), lastRetry), 0.2) // spreads retries
	m.retries++
	m.retryAt = r.clock.Now().Add(pause)
	outcome.requeueTime = m.retryAt
	return outcome
}

// settled returns the result from the cache and the memory; false if syncChild must be called. live may be nil.
func settled(now time.Time, live *liveChild, d *desired, m *siteMemory) (result, bool) {
	switch {
	case live != nil && !live.deleting && m.upToDate(live, d):
		m.failure, m.retries = nil, 0
		return result{child: live}, true
	case m.failure != nil && m.failed == d.digest && now.Before(m.retryAt):
		return result{child: live, err: m.failure, requeueTime: m.retryAt}, true
	case live != nil && live.deleting: // the end of the deletion will be an event
		return result{child: live}, true
	}
	return result{}, false
}

type childSync struct {
	*reconciler
	o *gridchild.Owner
	d *desired
	m *siteMemory
}

// applyIfNeeded compares the child with the API server's, and applies it if that is necessary.
func (s childSync) applyIfNeeded(ctx context.Context) result {
	cached, err := s.getChild(ctx, s.cache, s.o, s.d.name)
	live, soon := cached, s.clock.Now().Add(cacheLag)
	if err == nil && (live == nil || !live.ownedBy(s.o)) {
		// The cache has only children of grids, and may be behind. So the API server is asked who has the name.
		live, err = s.getChild(ctx, s.apiReader, s.o, s.d.name)
	}
	if err == nil && live != nil {
		err = s.checkClaim(ctx, live)
	}
	switch {
	case errors.Is(err, gridchild.ErrLeftOver): // the end of its deletion causes an event, unless its label is wrong
		return result{requeueTime: soon}
	case err != nil:
		return result{err: err}
	case live == nil && cached != nil: // it was deleted, and the desired child may still be made for its selector
		return result{requeueTime: soon}
	case live == nil:
	case live.deleting, live.held,
		live.SelectsSite != gridchild.ExistingOf(s.d.child).SelectsSite: // the cache does not know yet
		return result{child: live, err: s.restoreLabel(ctx, live), requeueTime: soon}
	case s.m.upToDate(live, s.d):
		return result{child: live}
	case live.legacy, !live.ownedBy(s.o):
		taken, err := s.migrateManagedFields(ctx, !live.ownedBy(s.o))
		if err != nil {
			return result{child: live, err: fmt.Errorf("taking over: %w", err)}
		}
		live = cmp.Or(taken, live)
	}
	applied, handedOver, err := s.applyChild(ctx, live)
	if err != nil {
		if live != nil && !live.ownedBy(s.o) {
			live = nil
		}
		return result{child: live, err: err}
	}
	// The API server and its webhooks may have changed the object. The result counts as desired.
	s.d.fieldSetHash.Store(applied.fieldSetHash)
	s.m.same.desired, s.m.same.specHash = s.d.digest, applied.specHash
	s.m.applied, s.m.appliedAt = *applied, s.clock.Now()
	changed := live == nil || live.resourceVersion != applied.resourceVersion
	return result{child: applied, applied: changed, handedOver: handedOver}
}

// restoreLabel gives a child its label back, if somebody has removed it. The cache has only objects with the label.
func (s childSync) restoreLabel(ctx context.Context, live *liveChild) error {
	if live.Grid != "" || live.deleting || live.held {
		return nil
	}
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"labels":{%q:%q}}}`, live.uid, v1.LabelGridSelector, s.o.Name)
	return s.writer.Patch(ctx, objectOf(s.o, live), client.RawPatch(types.MergePatchType, patch))
}

// checkClaim returns nil if a live object is the grid's child, or may be adopted, and else an error that says why not.
func (s childSync) checkClaim(ctx context.Context, live *liveChild) error {
	err := live.CheckClaim(s.o, live.name)
	if err != nil || live.ownedBy(s.o) {
		return err
	}
	// The cache may not show yet that the grid is being deleted, with its children orphaned on purpose.
	grid, err := s.readGrid(ctx, s.apiReader, types.NamespacedName{Namespace: s.o.Namespace, Name: s.o.Name})
	if grid != nil && grid.GetUID() == s.o.UID {
		return nil
	}
	return gridchild.Errorf(v1.ReasonSyncFailed, "%s %s is not adopted: %v", s.o.Child.Kind, live.name,
		cmp.Or(err, errors.New("this grid is being deleted")))
}

// applyChild applies the child, and returns the replicas that it has handed over before. It does not force a new child:
// it fails if someone else has created the object meanwhile and owns its fields.
func (s childSync) applyChild(ctx context.Context, live *liveChild) (applied *liveChild, handedOver string, err error) {
	u := s.d.child.DeepCopy()
	var options []client.ApplyOption
	if live != nil {
		u.SetUID(types.UID(live.uid)) // fails if the object was deleted and recreated
		options = append(options, client.ForceOwnership)
		if live.ownsReplicas && !gridchild.SetsReplicas(s.d.child) {
			if handedOver, err = s.handOver(ctx, live); err != nil {
				return nil, "", err
			}
		}
	}
	if err := s.writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return nil, "", err
	}
	applied, err = parseChild(u)
	return applied, handedOver, err
}

// deleteObject deletes an object that was read, but not another one of the same name.
func (r *reconciler) deleteObject(ctx context.Context, object client.Object) error {
	return client.IgnoreNotFound(r.writer.Delete(ctx, object, client.Preconditions{UID: new(object.GetUID())},
		client.PropagationPolicy(metav1.DeletePropagationBackground)))
}

// upToDate reports whether the child is as desired, and remembers that.
func (m *siteMemory) upToDate(live *liveChild, d *desired) bool {
	switch {
	case live.legacy:
		return false
	case m.same.desired == d.digest:
		return m.same.specHash == live.specHash
	case live.appliedDigest != d.digest || d.fieldSetHash.Load() != live.fieldSetHash:
		return false
	}
	m.same.desired, m.same.specHash = d.digest, live.specHash
	return true
}

func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// takenOver reports whether the fields of a manager become ours. Those of a controller with our name that updated
// instead of applying always do: otherwise it would continue to own them as well, and a field that is removed from the
// template would stay in the child. Fields that a person set with kubectl do when a child is adopted. Those of kubectl
// rollout restart do not, because removing them would replace the pods.
func takenOver(entry metav1.ManagedFieldsEntry, adopted bool) bool {
	if entry.Subresource != "" {
		return false
	}
	if entry.Manager == v1.FieldManager {
		return entry.Operation == metav1.ManagedFieldsOperationUpdate
	}
	command, isKubectl := strings.CutPrefix(entry.Manager, "kubectl")
	return adopted && isKubectl && slices.Contains([]string{
		"", "-client-side-apply", "-create", "-edit", "-replace", "-patch", "-set", "-label", "-annotate",
	}, command)
}

// migrateManagedFields makes fields of other managers ours, and returns the resulting child; nil if there were no such
// fields.
func (s childSync) migrateManagedFields(ctx context.Context, adopted bool) (*liveChild, error) {
	u := childObject(s.o.GridKind)
	if err := s.apiReader.Get(ctx, types.NamespacedName{Namespace: s.o.Namespace, Name: s.d.name}, u); err != nil {
		return nil, err
	}
	entries := u.GetManagedFields()
	managers := sets.New[string]()
	for i := range entries {
		if takenOver(entries[i], adopted) {
			managers.Insert(entries[i].Manager)
			entries[i].Operation = metav1.ManagedFieldsOperationUpdate // as csaupgrade expects
		}
	}
	if len(managers) == 0 {
		return nil, nil //nolint:nilnil // as the comment says
	}
	u.SetManagedFields(entries)
	// The patch is a conflict if the child has changed meanwhile.
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(u, managers, v1.FieldManager)
	if err == nil {
		err = s.writer.Patch(ctx, u, client.RawPatch(types.JSONPatchType, patch))
	}
	if err != nil {
		return nil, err
	}
	return parseChild(u)
}

// handOver gives the current spec.replicas to a separate field manager, and returns them. Otherwise the API server
// would reset the field to its default when the template stops setting it: 1 replica, in all sites at once.
func (s childSync) handOver(ctx context.Context, live *liveChild) (string, error) {
	only := objectOf(s.o, live)
	only.Object["spec"] = map[string]any{"replicas": live.progress.replicas}
	only.SetResourceVersion(live.resourceVersion) // a conflict if someone has scaled it meanwhile
	apply := client.ApplyConfigurationFromUnstructured(only)
	if err := s.writer.Apply(ctx, apply, client.FieldOwner(v1.HandOverManager)); err != nil {
		return "", fmt.Errorf("handing over the replicas: %w", err)
	}
	return strconv.FormatInt(live.progress.replicas, 10), nil
}
