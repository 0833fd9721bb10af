package preview

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/apis/enumerate"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/program/flags"
	"github.com/application-grid/application-grid/pkg/program/pages"
	"github.com/application-grid/application-grid/pkg/topology"
)

// candidates is how many label keys the error about a key names.
const candidates = 5

// Read reads the Services and EndpointSlices of a namespace, or of all if it is empty, a page at a time. The values of
// the label key would be the sites. A key that makes no sites is an error of usage.
func Read(ctx context.Context, api client.Reader, groupings *gridview.Groupings,
	key, namespace string) (*gridview.Previewer, error) {
	previewer := gridview.NewPreviewer(key, groupings)
	if len(previewer.Sites()) == 0 {
		return nil, keyError(key, groupings.Nodes)
	}
	in := client.InNamespace(namespace)
	if err := pages.Each(ctx, api, &corev1.ServiceList{}, previewer.AddService, in); err != nil {
		return nil, readError("Services", namespace, err)
	}
	if err := pages.Each(ctx, api, &discoveryv1.EndpointSliceList{}, previewer.AddSlice, in); err != nil {
		return nil, readError("EndpointSlices", namespace, err)
	}
	return previewer, nil
}

// readError adds advice if a right is missing.
func readError(what, namespace string, err error) error {
	if apierrors.IsForbidden(err) && namespace == "" {
		return fmt.Errorf("you may not read the %s of all namespaces; -n NAMESPACE asks for one: %w", what, err)
	}
	return fmt.Errorf("reading the %s: %w", what, err)
}

// keyError returns the error about a key that makes no sites, or that was not given. It names keys that would.
func keyError(key string, nodes map[string]topology.Labels) error {
	text := "give the label key whose values are the sites: --key"
	if key != "" {
		text = fmt.Sprintf("none of %s has the label %s", enumerate.Count(len(nodes), "node"), key)
	}
	keys, sites := gridview.DivideNodes(nodes)
	if len(keys) == 0 {
		return flags.Usage(errors.New(text + ". No label has different values on these nodes: give each the label of " +
			"its site first, kubectl label node NODE site=SITE, and then --key site"))
	}
	names := make([]string, 0, len(keys))
	for _, k := range keys {
		names = append(names, fmt.Sprintf("%s (%s)", k, enumerate.Count(sites[k], "site")))
	}
	return flags.Usage(errors.New(text + ". Labels that divide these nodes: " + enumerate.First(names, candidates)))
}
