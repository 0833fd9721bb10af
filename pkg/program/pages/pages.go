// Package pages reads lists of the API server page by page, so that the requests of a command are bounded, however
// large the cluster is.
package pages

import (
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Size is how many objects are asked for at a time. A Node with its list of images has 10 kB.
const Size = 500

// Metadata makes an empty list of the metadata of objects of a kind.
func Metadata(kind schema.GroupVersionKind) *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	return list
}

// Each lists in pages, and calls visit for every object. empty is a list of the kind. If the API server forgets the
// revision of the first page meanwhile, the further pages are of a newer one.
func Each[T runtime.Object](
	ctx context.Context, api client.Reader, empty client.ObjectList, visit func(T), options ...client.ListOption,
) error {
	token := ""
	for {
		// Each page gets a new list, because decoding JSON into a used one keeps fields that the page does not have.
		page, ok := empty.DeepCopyObject().(client.ObjectList)
		if !ok {
			return fmt.Errorf("%T is not a list", empty)
		}
		err := api.List(ctx, page, append(slices.Clone(options), client.Limit(Size), client.Continue(token))...)
		var expired apierrors.APIStatus
		if apierrors.IsResourceExpired(err) && errors.As(err, &expired) {
			if newer := expired.Status().Continue; newer != "" && newer != token {
				token = newer
				continue
			}
		}
		if err != nil {
			return err
		}
		err = meta.EachListItem(page, func(item runtime.Object) error {
			object, ok := item.(T)
			if !ok {
				return fmt.Errorf("a %T has a %T in it", page, item)
			}
			visit(object)
			return nil
		})
		if err != nil {
			return fmt.Errorf("reading a page: %w", err)
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}

// Keep lists in pages, and returns the results of keep for the objects for which it reports true. empty is a list of
// the kind.
func Keep[T runtime.Object, Kept any](
	ctx context.Context, api client.Reader, empty client.ObjectList, keep func(T) (Kept, bool),
	options ...client.ListOption,
) ([]Kept, error) {
	var all []Kept
	err := Each(ctx, api, empty, func(object T) {
		if kept, ok := keep(object); ok {
			all = append(all, kept)
		}
	}, options...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// Client is a client whose lists are read in pages.
type Client struct{ client.Client }

// List implements client.Reader. A caller that sets a limit reads the pages itself.
func (c Client) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	var set client.ListOptions
	set.ApplyOptions(options)
	if set.Limit > 0 {
		return c.Client.List(ctx, list, options...)
	}
	items, err := Keep(ctx, c.Client, list, func(item runtime.Object) (runtime.Object, bool) { return item, true },
		options...)
	if err != nil {
		return err
	}
	if err := meta.SetList(list, items); err != nil {
		return fmt.Errorf("joining the pages: %w", err)
	}
	return nil
}
