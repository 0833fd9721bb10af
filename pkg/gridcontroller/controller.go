package gridcontroller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridcontroller/gridchild"
	"github.com/application-grid/application-grid/pkg/gridcontroller/workloadpatch"
	"github.com/application-grid/application-grid/pkg/program/restmapper"
)

// Config configures the controller.
type Config struct {
	// API is the client configuration of the API server.
	API *rest.Config
	// Manager has the addresses of /healthz, /readyz and /metrics, the leader election, and how many grids of each kind
	// are reconciled at once. Run sets the rest.
	Manager ctrl.Options
	// Namespaces are the namespaces whose grids are reconciled; empty for all.
	Namespaces []string
	// SiteRemovalGrace is how long a workload outlives the last node of its site, unless its grid sets that.
	SiteRemovalGrace time.Duration
	// Limits restrict what grids may ask for.
	Limits Limits
	// ManageCRDs makes the controller install missing CRDs of grids at the start, and replace older ones, unless
	// another tool manages them. Otherwise it waits until somebody else has installed them.
	ManageCRDs bool
	// Also, if set, adds other controllers to the manager.
	Also func(manager.Manager) error
}

const nodeKeyIndex = "spec.gridUniqKey"

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	return scheme, errors.Join(corev1.AddToScheme(scheme), appsv1.AddToScheme(scheme), batchv1.AddToScheme(scheme),
		v1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme))
}

// Run runs the controller until ctx ends, or returns an error, for example because it has lost the leadership.
func Run(ctx context.Context, c Config) error {
	logger := klog.FromContext(ctx)
	ctrllog.SetLogger(logger)
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	mapper := restmapper.New(scheme, []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("Node"),
		apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"),
	})
	// The caches can start only when the API server serves the grids, so the CRDs come first.
	api, err := client.New(c.API, client.Options{Scheme: scheme, Mapper: mapper, FieldOwner: v1.FieldManager})
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := ensureCRDs(ctx, api, c); err != nil {
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the caller ended it
		}
		return err
	}
	m, err := newManager(c, scheme, mapper)
	if err != nil {
		return err
	}
	if err = addReconcilers(ctx, m, c); err == nil && c.Also != nil {
		err = c.Also(m)
	}
	if err != nil {
		return err
	}
	return m.Start(ctx)
}

func newManager(c Config, scheme *runtime.Scheme, mapper meta.RESTMapper) (manager.Manager, error) {
	labelled, err := labels.Parse(v1.LabelGridSelector) // with any value
	if err != nil {
		return nil, fmt.Errorf("building the selector of children: %w", err)
	}
	byObject := map[client.Object]cache.ByObject{&corev1.Node{}: {Transform: stripNode}}
	for _, k := range v1.Kinds {
		byObject[childObject(k)] = cache.ByObject{
			Label: labelled, Transform: condenseChild, UnsafeDisableDeepCopy: new(true),
		}
	}
	namespaces := map[string]cache.Config{} // empty for all
	for _, namespace := range c.Namespaces {
		namespaces[namespace] = cache.Config{}
	}
	options := c.Manager
	options.Scheme, options.Logger = scheme, klog.Background()
	options.GracefulShutdownTimeout = new(10 * time.Second) // the Lease is released after that
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil }
	options.Client.FieldOwner = v1.FieldManager
	options.Cache = cache.Options{
		ByObject: byObject, DefaultNamespaces: namespaces, DefaultTransform: cache.TransformStripManagedFields(),
	}
	options.Controller.SkipNameValidation, options.Controller.EnableWarmup = new(true), new(true)
	options.LeaderElectionReleaseOnCancel = true
	m, err := ctrl.NewManager(c.API, options)
	if err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	// A replica is ready if it could lead at once. Its caches are filled even while another replica leads.
	filled := func(request *http.Request) error {
		ctx, cancel := context.WithTimeout(request.Context(), time.Second)
		defer cancel()
		if !m.GetCache().WaitForCacheSync(ctx) {
			return errors.New("the caches are not filled yet")
		}
		return nil
	}
	return m, errors.Join(m.AddHealthzCheck("ping", healthz.Ping), m.AddReadyzCheck("caches", filled))
}

func childObject(k v1.GridKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(k.Child)
	return u
}

// stripNode reduces a node for the cache, which it may change, to names, labels, taints and the condition Ready.
func stripNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		node.Status = corev1.NodeStatus{
			Conditions: slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type != corev1.NodeReady
			}),
		}
		node.Spec, node.Annotations, node.ManagedFields = corev1.NodeSpec{Taints: node.Spec.Taints}, nil, nil
	}
	return object, nil
}

func addReconcilers(ctx context.Context, m manager.Manager, c Config) error {
	schemas, err := workloadpatch.NewForConfig(c.API)
	if err != nil {
		return err
	}
	informer, err := m.GetCache().GetInformer(ctx, &corev1.Node{})
	nodes, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return cmp.Or(err, fmt.Errorf("the cache of nodes is a %T, which has no index", informer))
	}
	// Its children do not depend on the status of a grid.
	changed := predicate.Or[client.Object](predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
		predicate.AnnotationChangedPredicate{})
	for _, k := range v1.Kinds {
		key := func(o client.Object) []string { return []string{gridchild.NewOwner(k, o).Key} }
		err := errors.Join(
			m.GetFieldIndexer().IndexField(ctx, k.New(), nodeKeyIndex, key),
			m.GetFieldIndexer().IndexField(ctx, childObject(k), ownerIndex, ownerOf),
			ctrl.NewControllerManagedBy(m).
				Named(k.Kind).
				For(k.New(), builder.WithPredicates(changed)).
				WithOptions(controller.Options{NewQueue: newQueue}).
				Watches(childObject(k), handler.EnqueueRequestsFromMapFunc(gridOf)).
				WatchesRawSource(watchNodes(m.GetCache(), k)).
				Complete(&reconciler{
					GridKind: k, cache: m.GetCache(), apiReader: m.GetAPIReader(), writer: m.GetClient(),
					clock: clock.RealClock{}, nodes: corev1listers.NewNodeLister(nodes.GetIndexer()),
					recorder: m.GetEventRecorder("application-grid-controller"), schemas: schemas, config: c,
				}))
		if err != nil {
			return fmt.Errorf("setting up the controller of %ss: %w", k.Kind, err)
		}
	}
	// Runnables start when this replica leads. The others have no metrics of grids.
	collect := func(context.Context) error { return metrics.Registry.Register(collector{m.GetCache()}) }
	return m.Add(manager.RunnableFunc(collect))
}
