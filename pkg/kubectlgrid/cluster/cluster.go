package cluster

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/gridview"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/check"
	"github.com/application-grid/application-grid/pkg/program/pages"
	"github.com/application-grid/application-grid/pkg/program/restmapper"
	"github.com/application-grid/application-grid/pkg/program/version"
	"github.com/application-grid/application-grid/pkg/topology"
)

// Cluster is a connection to an API server.
type Cluster struct {
	// API reads lists in pages.
	API client.Client
	// Watcher also watches. Its lists are not read in pages.
	Watcher client.WithWatch
	// Config is the configuration of API.
	Config *rest.Config
	// Warnings receives warnings about parts that an answer leaves out.
	Warnings io.Writer
}

// Connect makes the connection. It sends no request. config is changed.
func Connect(config *rest.Config, warnings io.Writer) (Cluster, error) {
	config.UserAgent = "kubectl-grid/" + strings.Fields(version.String())[0]
	// A command sends few requests, and all of them at once.
	config.QPS, config.Burst = 50, 100
	config.WarningHandler = rest.NoWarnings{}
	// controller-runtime complains on the terminal if it has no logger. The commands report everything that a user can
	// act upon.
	log.SetLogger(logr.Discard())
	c, scheme := Cluster{Config: config, Warnings: warnings}, runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		authenticationv1.AddToScheme, batchv1.AddToScheme, check.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return Cluster{}, fmt.Errorf("building the scheme: %w", err)
		}
	}
	root := append(slices.Clone(check.RootKinds), authenticationv1.SchemeGroupVersion.WithKind("SelfSubjectReview"))
	mapper := restmapper.New(scheme, root, check.FurtherKinds...)
	var err error
	c.Watcher, err = client.NewWithWatch(config, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return Cluster{}, fmt.Errorf("making a client: %w", err)
	}
	c.API = pages.Client{Client: c.Watcher}
	return c, nil
}

// Warn writes a warning about a part that is left out of the answer.
func (c Cluster) Warn(format string, args ...any) {
	fmt.Fprintf(c.Warnings, "Warning: "+format+"\n", args...)
}

// Source returns the source of the cluster's findings, which lacks the server if that does not answer.
func (c Cluster) Source(ctx context.Context) (check.Source, error) {
	server, err := check.AskServer(ctx, c.Config)
	return check.Source{API: c.API, Server: server, Now: time.Now()}, err
}

// Diagnose returns the findings that concern the answers of all commands.
func (c Cluster) Diagnose(ctx context.Context, services check.Services) *gridview.Diagnosis {
	source, err := c.Source(ctx)
	d := check.Diagnose(ctx, source, services)
	if err != nil {
		d.Unread = append(d.Unread, check.Unread(gridview.Object{Kind: "API server"}, err, "its version is not known"))
	}
	return d
}

// Groupings returns the nodes with the findings that concern Services. Without the nodes it returns an error, because
// their labels are the sites.
func (c Cluster) Groupings(ctx context.Context) (*gridview.Groupings, error) {
	d := c.Diagnose(ctx, check.WithoutServices)
	for _, f := range d.Unread {
		if f.Object.Kind == "Node" {
			return nil, fmt.Errorf("asking for nodes, whose labels are the sites: %s", f.Message)
		}
	}
	return &gridview.Groupings{Nodes: d.Nodes, Diagnosis: d}, nil
}

// NodeList makes an empty list of the metadata of nodes.
func NodeList() *metav1.PartialObjectMetadataList {
	return pages.Metadata(corev1.SchemeGroupVersion.WithKind("Node"))
}

// Nodes reads the labels of all nodes, by name.
func Nodes(ctx context.Context, api client.Reader) (map[string]topology.Labels, error) {
	nodes := map[string]topology.Labels{}
	err := pages.Each(ctx, api, NodeList(), func(node *metav1.PartialObjectMetadata) {
		nodes[node.Name] = gridview.LabelsOf(node)
	})
	if err != nil {
		return nil, err
	}
	return nodes, nil
}

// Revisions reads the ControllerRevisions of a grid.
func Revisions(ctx context.Context, api client.Reader, grid v1.Object) ([]*appsv1.ControllerRevision, error) {
	own := func(r *appsv1.ControllerRevision) (*appsv1.ControllerRevision, bool) {
		return r, metav1.IsControlledBy(r, grid)
	}
	revisions, err := pages.Keep(ctx, api, &appsv1.ControllerRevisionList{}, own,
		client.InNamespace(grid.GetNamespace()), client.MatchingLabels{v1.LabelGridSelector: grid.GetName()})
	if err != nil {
		return nil, fmt.Errorf("asking for the ControllerRevisions: %w", err)
	}
	return revisions, nil
}

// CheckNamespace returns an error if the namespace is known not to exist.
func CheckNamespace(ctx context.Context, api client.Reader, name string) error {
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if name == "" {
		return nil
	}
	if err := api.Get(ctx, client.ObjectKey{Name: name}, namespace); !apierrors.IsNotFound(err) || IsNotServed(err) {
		return nil
	}
	return fmt.Errorf("namespace %s does not exist; -A asks for all", name)
}
