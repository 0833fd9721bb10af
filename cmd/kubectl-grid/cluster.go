package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // whatever logs users in to their clusters
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/version"
)

// kindOf finds a kind by what a user may call it: deploymentgrids, deploymentgrid, dg, with the group or without.
func kindOf(name string) (v1.GridKind, error) {
	var names []string
	lower := strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(name, "."+v1.GroupName), "."+v1.GroupVersion.Version))
	for _, k := range v1.Kinds {
		if slices.Contains([]string{k.Plural, k.Singular, k.Short}, lower) {
			return k, nil
		}
		names = append(names, fmt.Sprintf("%s (%s)", k.Plural, k.Short))
	}
	return v1.GridKind{}, usageError{fmt.Errorf("%q is no kind of grid; there are %s", name, strings.Join(names, ", "))}
}

// loader reads the kubeconfig, as kubectl does.
func (c *command) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.DefaultClientConfig = &clientcmd.DefaultClientConfig
	rules.ExplicitPath = c.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &c.overrides)
}

// cluster is the way to the API server.
type cluster struct {
	api    client.Client
	config *rest.Config
	stderr io.Writer
}

// connect makes the way to the API server, and tells the namespace to ask for.
func (c *command) connect() (cluster, string, error) {
	loader := c.loader()
	config, err := loader.ClientConfig()
	if err != nil {
		return cluster{}, "", err
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return cluster{}, "", err
	}
	config.UserAgent = "kubectl-grid/" + strings.Fields(version.String())[0]
	// One command asks for few things, and all at once.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{authenticationv1.AddToScheme, check.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return cluster{}, "", fmt.Errorf("building the scheme: %w", err)
		}
	}
	// Without the look at everything that the API server serves.
	mapper := meta.NewDefaultRESTMapper(nil)
	check.RegisterKinds(mapper)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("ControllerRevision"), meta.RESTScopeNamespace)
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	for _, k := range v1.Kinds {
		mapper.Add(k.Child, meta.RESTScopeNamespace)
		mapper.Add(v1.GroupVersion.WithKind(k.Kind), meta.RESTScopeNamespace)
	}
	api, err := client.New(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return cluster{}, "", fmt.Errorf("making a client: %w", err)
	}
	return cluster{api, config, c.stderr}, namespace, nil
}

// errNotServed is that the API server does not know a kind of grid.
var errNotServed = errors.New("the server has no superedge.io/v1: install application-grid-controller, which brings the grids' CRDs, or apply manifests/crds")

// explain says what to change where the API server's words do not.
func explain(err error) error {
	if isNotServed(err) {
		return errNotServed
	}
	return err
}

// isNotServed tells a resource that is not there from an object that is not there.
func isNotServed(err error) bool {
	if meta.IsNoMatchError(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool {
		return c.Type == metav1.CauseTypeUnexpectedServerResponse
	})
}

// warn tells of what is left out of the answer.
func (c cluster) warn(format string, args ...any) {
	fmt.Fprintf(c.stderr, "Warning: "+format+"\n", args...)
}

// nodes are the labels of all nodes.
func (c cluster) nodes(ctx context.Context) (map[string]topology.Labels, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := c.api.List(ctx, list); err != nil {
		return nil, err
	}
	nodes := make(map[string]topology.Labels, len(list.Items))
	for i := range list.Items {
		labels := list.Items[i].Labels
		if labels == nil {
			labels = topology.Labels{}
		}
		nodes[list.Items[i].Name] = labels
	}
	return nodes, nil
}

// children are the objects of one kind that are labelled as children of grids, by namespace and name.
func (c cluster) children(ctx context.Context, k v1.GridKind, namespace string) (map[string]map[string]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.Child.GroupVersion().WithKind(k.Child.Kind + "List"))
	if err := c.api.List(ctx, list, client.InNamespace(namespace), client.HasLabels{v1.LabelGridSelector}); err != nil {
		return nil, err
	}
	children := map[string]map[string]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		item := &list.Items[i]
		if children[item.Namespace] == nil {
			children[item.Namespace] = map[string]*metav1.PartialObjectMetadata{}
		}
		children[item.Namespace][item.Name] = item
	}
	return children, nil
}
