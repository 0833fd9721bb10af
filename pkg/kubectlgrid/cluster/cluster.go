package cluster

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/pages"
	"github.com/application-grid/application-grid/pkg/topology"
	"github.com/application-grid/application-grid/pkg/version"
)

// Cluster is a connection to an API server.
type Cluster struct {
	// API reads lists in pages.
	API client.Client
	// Watcher also watches. Its lists are not read in pages.
	Watcher client.WithWatch
	// Config, Scheme and Mapper are those of API.
	Config *rest.Config
	Scheme *runtime.Scheme
	Mapper meta.RESTMapper
	// Warnings is where it is said what an answer leaves out.
	Warnings io.Writer
}

// Connect makes the connection. It sends no request. config is changed.
func Connect(config *rest.Config, warnings io.Writer) (c Cluster, err error) {
	config.UserAgent = "kubectl-grid/" + strings.Fields(version.String())[0]
	// One command asks for few things, and for all of them at once.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	// controller-runtime complains on the terminal if it has no logger. What a user can act upon, the commands say.
	log.SetLogger(logr.Discard())
	c = Cluster{Config: config, Scheme: runtime.NewScheme(), Warnings: warnings}
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, check.AddToScheme, discoveryv1.AddToScheme,
	} {
		if err := add(c.Scheme); err != nil {
			return Cluster{}, fmt.Errorf("building the scheme: %w", err)
		}
	}
	// The kinds are registered, so that the client does not ask for everything that the API server serves.
	mapper := meta.NewDefaultRESTMapper(nil)
	check.RegisterKinds(mapper)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ServiceAccount"), meta.RESTScopeNamespace)
	for _, kind := range []string{"ControllerRevision", "ReplicaSet"} {
		mapper.Add(appsv1.SchemeGroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	mapper.Add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), meta.RESTScopeNamespace)
	mapper.Add(authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"), meta.RESTScopeRoot)
	mapper.Add(batchv1.SchemeGroupVersion.WithKind("Job"), meta.RESTScopeNamespace)
	// Lists have kinds of their own: a cache asks the mapper whether they are of one namespace.
	mapper.Add(corev1.SchemeGroupVersion.WithKind("NodeList"), meta.RESTScopeRoot)
	for _, k := range v1.Kinds {
		for _, suffix := range []string{"", "List"} {
			mapper.Add(k.Child.GroupVersion().WithKind(k.Child.Kind+suffix), meta.RESTScopeNamespace)
			mapper.Add(v1.GroupVersion.WithKind(k.Kind+suffix), meta.RESTScopeNamespace)
		}
	}
	c.Mapper = mapper
	c.Watcher, err = client.NewWithWatch(config, client.Options{Scheme: c.Scheme, Mapper: mapper})
	if err != nil {
		return Cluster{}, fmt.Errorf("making a client: %w", err)
	}
	c.API = pages.Client{Client: c.Watcher}
	return c, nil
}

// Warn says what is left out of the answer.
func (c Cluster) Warn(format string, args ...any) {
	fmt.Fprintf(c.Warnings, "Warning: "+format+"\n", args...)
}

// Diagnose finds out what concerns the answers of all commands, and says what of it is not known.
func (c Cluster) Diagnose(ctx context.Context) *gridview.Diagnosis {
	server, err := check.AskServer(ctx, c.Config)
	if err != nil {
		c.Warn("what kubectl grid check would find is left out: %v", err)
		return nil
	}
	diagnosis, unread := check.Diagnose(ctx, check.Source{API: c.API, Server: server, Now: time.Now()})
	if len(unread) > 0 {
		c.Warn("what kubectl grid check would find is left out in part: %s could not be read", unread[0].Object)
	}
	return diagnosis
}

// NodeList makes an empty list of the metadata of nodes.
func NodeList() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	return list
}

// Nodes reads the labels of all nodes, by name.
func Nodes(ctx context.Context, api client.Reader) (map[string]topology.Labels, error) {
	list := NodeList()
	if err := api.List(ctx, list); err != nil {
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

// CheckNamespace returns an error if there is no such namespace, as far as that may be known.
func CheckNamespace(ctx context.Context, api client.Reader, name string) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if name == "" {
		return nil
	}
	if err := api.Get(ctx, client.ObjectKey{Name: name}, namespace); !apierrors.IsNotFound(err) || IsNotServed(err) {
		return nil
	}
	return fmt.Errorf("there is no namespace %s; -A asks for all", name)
}

// Names reads the names of all objects of a list's kind, in a namespace or in all if it is empty.
func Names(ctx context.Context, api client.Reader, list *metav1.PartialObjectMetadataList, namespace string) ([]string,
	error) {
	if err := api.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}
