package gridcontroller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridchild"
)

const (
	// firstRetry and lastRetry bound the pause after a failure, which doubles from one to the next.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// cacheLag is how long a child that was just applied may be missing in the cache before the API server is
	// asked whether it is there.
	cacheLag = 2 * time.Second
)

// cluster is the way to the API server.
type cluster struct {
	// cache has children, condensed; live asks the API server.
	cache, live client.Reader
	writer      client.Client
	clock       clock.PassiveClock
}

// childMemory is what is remembered of one child between reconciliations. Losing it costs a comparison, or an apply
// that changes nothing, per child. One reconciliation at a time uses it.
type childMemory struct {
	// same is the pair of what was desired and what was owned that were last found to be the same. As long as this is
	// desired, owning anything else is drift.
	same struct{ desired, owned string }
	// applied is the last apply.
	applied struct {
		digest, resourceVersion string
		at                      time.Time
	}
	// failure is the last problem of an attempt to sync, with what was desired; nil after a success.
	failure error
	failed  string
	retries int
	retryAt time.Time
	// taken: another grid has the name that the child would have first.
	taken bool
	// selectsUnit is whether the selector of a workload that is about to be adopted names the unit; nil for none.
	selectsUnit *bool
	// mark is what was last seen of the child's progress, progressAt when that was new.
	mark       string
	progressAt time.Time
	// pod is what was found of the pods of a child that makes no progress, at podAt.
	pod   string
	podAt time.Time
}

// result is what came of the sync of one child.
type result struct {
	// child is the live child as far as it is known; nil if there is none, or it is not the grid's.
	child *child
	// err is why it is not as desired.
	err error
	// applied: something was written.
	applied bool
	// handedOver is with how many replicas the child stays, whose template says nothing of them any more.
	handedOver string
	// again is when to look again, if no event will tell; zero if one will.
	again time.Time
}

// sync makes the live child what is desired, if it is not. The caller has asked settled.
func (c *cluster) sync(ctx context.Context, k kind, o *gridchild.Owner, d *desired, m *childMemory) result {
	r := c.attempt(ctx, k, o, d, m)
	now := c.clock.Now()
	if r.err == nil {
		m.failure, m.retries, m.retryAt = nil, 0, time.Time{}
		return r
	}
	if m.failed != d.digest {
		m.retries = 0
	}
	m.failure, m.failed = r.err, d.digest
	pause := min(firstRetry<<min(m.retries, 10), lastRetry)
	pause += rand.N(pause / 5) //nolint:gosec // spreads retries
	m.retries++
	m.retryAt = now.Add(pause)
	r.again = m.retryAt
	return r
}

// settled answers from the cache and the memory. It returns false if the API server has to be asked, with sync.
func (c *cluster) settled(ctx context.Context, k kind, o *gridchild.Owner, d *desired, m *childMemory) (result, bool) {
	live, err := c.get(ctx, c.cache, k, d.namespace, d.name)
	if err != nil {
		return result{err: gridchild.Errorf(v1.ReasonSyncFailed, "%v", err)}, false
	}
	mine := live
	if live != nil && !live.ownedBy(o) {
		mine = nil
	}
	now := c.clock.Now()
	if mine != nil && !mine.deleting && m.sameAs(mine, d) {
		m.failure, m.retries = nil, 0
		return result{child: mine}, true
	}
	if m.failure != nil && m.failed == d.digest && now.Before(m.retryAt) {
		return result{child: mine, err: m.failure, again: m.retryAt}, true
	}
	if mine != nil && mine.deleting {
		// Its end is an event.
		return result{child: mine}, true
	}
	if m.applied.digest == d.digest && now.Before(m.applied.at.Add(cacheLag)) {
		if live == nil || older(live.resourceVersion, m.applied.resourceVersion) {
			return result{child: mine, again: m.applied.at.Add(cacheLag)}, true
		}
	}
	return result{}, false
}

// attempt asks the API server, and applies if that is due.
func (c *cluster) attempt(ctx context.Context, k kind, o *gridchild.Owner, d *desired, m *childMemory) result {
	namespace, name := d.namespace, d.name
	live, err := c.get(ctx, c.cache, k, namespace, name)
	if err == nil && (live == nil || !live.ownedBy(o)) {
		// The cache has grids' children only, and may lag behind; whose name it is, the API server decides.
		live, err = c.get(ctx, c.live, k, namespace, name)
	}
	if err != nil {
		return result{err: c.explain(k, name, err)}
	}
	var adopted bool
	if live != nil {
		if err := c.mayTake(ctx, k, o, live); errors.Is(err, gridchild.ErrLeftOver) {
			// Its end is an event, unless it was known under another label.
			return result{again: c.clock.Now().Add(cacheLag)}
		} else if err != nil {
			return result{err: err}
		}
		adopted = !live.ownedBy(o)
		if live.deleting {
			return result{child: live, again: c.clock.Now().Add(cacheLag)}
		}
		if live.selectsUnit != d.selectsUnit {
			m.selectsUnit = ptr.To(live.selectsUnit)
			return result{again: c.clock.Now()}
		}
		if live.tree == nil && live.applied == d.digest && m.same.desired != d.digest {
			// By the digest there is nothing to apply. Whether somebody has changed it since, its managedFields tell.
			if live, err = c.get(ctx, c.live, k, namespace, name); err != nil || live == nil || !live.ownedBy(o) {
				return result{err: err, again: c.clock.Now().Add(cacheLag)}
			}
		}
		if m.sameAs(live, d) {
			return result{child: live}
		}
		if live.legacy || adopted {
			taken, err := c.takeOver(ctx, k, namespace, name, adopted)
			if err != nil {
				return result{child: live, err: c.explain(k, name, err)}
			}
			if taken != nil {
				live = taken
			}
		}
	}
	if live == nil && m.selectsUnit != nil { // what was to be adopted is gone
		m.selectsUnit = nil
		return result{again: c.clock.Now()}
	}
	handedOver := ""
	if live != nil && live.ownsReplicas && !d.hasReplicas() {
		if handedOver, err = c.handOver(ctx, k, namespace, live); err != nil {
			return result{child: live, err: c.explain(k, name, err)}
		}
	}
	applied, err := c.apply(ctx, k, d, live)
	if err != nil {
		if live != nil && !live.ownedBy(o) {
			live = nil
		}
		return result{child: live, err: c.explain(k, name, err)}
	}
	// However the API server, and its webhooks, have written it: this is what came of what is desired.
	d.shape.learn(applied)
	m.same.desired, m.same.owned = d.digest, applied.owned
	m.applied.digest, m.applied.resourceVersion, m.applied.at = d.digest, applied.resourceVersion, c.clock.Now()
	changed := live == nil || live.resourceVersion != applied.resourceVersion
	if changed {
		klog.FromContext(ctx).V(2).Info("Applied",
			"child", klog.KRef(namespace, name), "kind", k.Child.Kind, "created", live == nil)
	}
	return result{child: applied, applied: changed, handedOver: handedOver}
}

// get returns nil if there is no such child.
func (c *cluster) get(ctx context.Context, from client.Reader, k kind, namespace, name string) (*child, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k.Child)
	err := from.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", k.Child.Kind, name, err)
	}
	return k.childOf(u)
}

// mayTake says why a live object must not be made the grid's child; nil if it is, or may be adopted.
func (c *cluster) mayTake(ctx context.Context, k kind, o *gridchild.Owner, live *child) error {
	if err := gridchild.Claim(o, k.GridKind, live.name, live.controller, live.grid); err != nil || live.ownedBy(o) {
		return err
	}
	// The cache may not know yet that the grid is being deleted with its children left alone.
	grid := &metav1.PartialObjectMetadata{}
	grid.SetGroupVersionKind(v1.GroupVersion.WithKind(o.Kind))
	if err := c.live.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: o.Name}, grid); err != nil {
		return gridchild.Errorf(v1.ReasonSyncFailed, "before adopting %s %s: %v", k.Child.Kind, live.name, err)
	}
	if string(grid.UID) != o.UID || grid.DeletionTimestamp != nil {
		return gridchild.Errorf(v1.ReasonSyncFailed, "%s %s is not adopted: this grid is being deleted",
			k.Child.Kind, live.name)
	}
	return nil
}

// apply writes the child. If there was none, it fails where it would take a field from someone who has made
// one meanwhile.
func (c *cluster) apply(ctx context.Context, k kind, d *desired, live *child) (*child, error) {
	object, err := d.object()
	if err != nil {
		return nil, err
	}
	u := object.DeepCopy()
	options := []client.ApplyOption{client.FieldOwner(v1.FieldManager)}
	if live != nil {
		u.SetUID(types.UID(live.uid)) // this object, not another one of its name
		options = append(options, client.ForceOwnership)
	}
	if err := c.writer.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...); err != nil {
		return nil, err
	}
	return k.childOf(u)
}

// remove deletes a child that is the grid's.
func (c *cluster) remove(ctx context.Context, k kind, namespace string, live *child) error {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k.Child)
	u.SetNamespace(namespace)
	u.SetName(live.name)
	uid := types.UID(live.uid)
	err := c.writer.Delete(ctx, u, client.Preconditions{UID: &uid},
		client.PropagationPolicy(metav1.DeletePropagationBackground))
	return client.IgnoreNotFound(err)
}

// nodeIn asks the API server for a node of a unit; "" if there is none. A cluster without any node is none that
// answers for its nodes: one that has them has lost its data, and in one that has none nothing runs that could be
// removed.
func (c *cluster) nodeIn(ctx context.Context, key, unit string) (string, error) {
	first := func(options ...client.ListOption) (string, error) {
		nodes := &metav1.PartialObjectMetadataList{}
		nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
		if err := c.live.List(ctx, nodes, append(options, client.Limit(1))...); err != nil {
			return "", fmt.Errorf("asking for the nodes of the unit: %w", err)
		}
		if len(nodes.Items) == 0 {
			return "", nil
		}
		return nodes.Items[0].Name, nil
	}
	if len(validation.IsValidLabelValue(unit)) == 0 { // else it is the end of some name, and no unit
		if node, err := first(client.MatchingLabels{key: unit}); node != "" || err != nil {
			return node, err
		}
	}
	if other, err := first(); other != "" || err != nil {
		return "", err
	}
	return "", errors.New("the API server knows no node at all, and is not believed")
}

// ownerIndex is the index of children by the UID of the object that controls them.
const ownerIndex = "controller"

// ownerOf is the key of an object in ownerIndex.
func ownerOf(object client.Object) []string {
	if by := metav1.GetControllerOf(object); by != nil {
		return []string{string(by.UID)}
	}
	return nil
}

// of returns a grid's children from the cache, by name.
func (c *cluster) of(ctx context.Context, k kind, o *gridchild.Owner) (map[string]*child, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	err := c.cache.List(ctx, list, client.InNamespace(o.Namespace), client.MatchingFields{ownerIndex: o.UID},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the children: %w", err)
	}
	children := make(map[string]*child, len(list.Items))
	for i := range list.Items {
		live, err := k.childOf(&list.Items[i])
		if err != nil {
			return nil, err
		}
		if live.ownedBy(o) {
			children[live.name] = live
		}
	}
	return children, nil
}

// ownedBy reports whether the grid is the child's controller.
func (c *child) ownedBy(o *gridchild.Owner) bool {
	return c.controller != nil && string(c.controller.UID) == o.UID
}

// sameAs reports whether the child is as desired, and remembers that it is.
func (m *childMemory) sameAs(live *child, d *desired) bool {
	switch {
	case live.legacy:
		return false
	case m.same.desired == d.digest:
		return m.same.owned == live.owned
	case live.tree != nil:
		if !live.is(d) {
			return false
		}
		d.shape.learn(live)
	case live.applied != d.digest || !d.shape.fits(live):
		return false
	}
	m.same.desired, m.same.owned = d.digest, live.owned
	return true
}

// older reports whether a resourceVersion comes before another one.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// explain turns the error of a request into words for the user.
func (c *cluster) explain(k kind, name string, err error) error {
	reason := v1.ReasonSyncFailed
	switch {
	case gridchild.Refused(err):
		reason = v1.ReasonRejected
	case apierrors.IsConflict(err):
		return gridchild.Errorf(v1.ReasonSyncFailed, "%s %s was changed by someone else at the same time: %s",
			k.Child.Kind, name, gridchild.Shorten(err.Error()))
	}
	return &gridchild.Error{Reason: reason, Message: gridchild.Shorten(err.Error())}
}
