package gridcontroller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
)

// getChild returns nil if the child does not exist.
func (r *reconciler) getChild(
	ctx context.Context, from client.Reader, o *gridchild.Owner, name string,
) (*liveChild, error) {
	u := childObject(o.GridKind)
	err := from.Get(ctx, types.NamespacedName{Namespace: o.Namespace, Name: name}, u)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // as the comment says
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", o.Child.Kind, name, err)
	}
	return parseChild(u)
}

// objectOf returns a child's kind, name and UID as an object.
func objectOf(o *gridchild.Owner, live *liveChild) *unstructured.Unstructured {
	u := childObject(o.GridKind)
	u.SetNamespace(o.Namespace)
	u.SetName(live.name)
	u.SetUID(types.UID(live.uid))
	return u
}

// ownerIndex is the name of the index of children by the UID of the object that controls them.
const ownerIndex = "controller"

func ownerOf(object client.Object) []string {
	return []string{string(ptr.Deref(metav1.GetControllerOf(object), metav1.OwnerReference{}).UID)}
}

// childrenOf returns a grid's children from the cache, by name.
func (r *reconciler) childrenOf(ctx context.Context, o *gridchild.Owner) (map[string]*liveChild, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(o.Child.GroupVersion().WithKind(o.Child.Kind + "List"))
	err := r.cache.List(ctx, list, client.InNamespace(o.Namespace), client.MatchingFields{ownerIndex: string(o.UID)},
		client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("listing the %ss: %w", o.Child.Kind, err)
	}
	children := make(map[string]*liveChild, len(list.Items))
	for i := range list.Items {
		live, err := parseChild(&list.Items[i])
		if err != nil {
			return nil, err
		}
		children[live.name] = live
	}
	return children, nil
}

func (c *liveChild) ownedBy(o *gridchild.Owner) bool {
	return c.Controller != nil && c.Controller.UID == o.UID
}
