// Package pages reads lists of the API server page by page, so that a request of a command is bounded however large the
// cluster is.
package pages

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// Size is how many objects are asked for at a time. A Node with its list of images has 10 kB.
	Size = 500
	// restarts is how often a list begins again because the API server has forgotten the revision of its first page.
	restarts = 3
)

// Each lists in pages and calls visit for every object. If the list expires between two pages it begins again, after
// restart, which has to forget what visit has seen. empty is a list of the kind.
func Each(ctx context.Context, api client.Reader, empty client.ObjectList, restart func(), visit func(runtime.Object),
	options ...client.ListOption) error {
	token := ""
	for again := 0; ; {
		// A new one for each page: what decodes JSON leaves in a used one what the page does not have.
		page, ok := empty.DeepCopyObject().(client.ObjectList)
		if !ok {
			return fmt.Errorf("%T is no list", empty)
		}
		err := api.List(ctx, page, append(slices.Clone(options), client.Limit(Size), client.Continue(token))...)
		switch {
		case apierrors.IsResourceExpired(err) && token != "" && again < restarts:
			again++
			token = ""
			restart()
			continue
		case err != nil:
			return err
		}
		if err := meta.EachListItem(page, func(item runtime.Object) error { visit(item); return nil }); err != nil {
			return fmt.Errorf("reading a page: %w", err)
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
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
	items := []runtime.Object{}
	err := Each(ctx, c.Client, list, func() { items = items[:0] }, func(item runtime.Object) {
		items = append(items,
			item)
	}, options...)
	if err != nil {
		return err
	}
	if err := meta.SetList(list, items); err != nil {
		return fmt.Errorf("joining the pages: %w", err)
	}
	return nil
}
