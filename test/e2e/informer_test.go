package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/client-go/features"
	featuretesting "k8s.io/client-go/features/testing"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

// requests notes what a client asked for.
type requests struct {
	mu         sync.Mutex
	lists      []string // guarded by mu
	watchLists []string // guarded by mu
}

// record makes the configuration's client note its requests.
func (r *requests) record(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			query := request.URL.Query()
			r.mu.Lock()
			switch {
			case query.Get("sendInitialEvents") != "":
				r.watchLists = append(r.watchLists, request.URL.Path)
			case query.Get("watch") == "":
				r.lists = append(r.lists, request.URL.Path)
			}
			r.mu.Unlock()
			return next.RoundTrip(request)
		})
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }

// informerClient is one client-go informer client behind a node's wrapper.
type informerClient struct {
	node     *cluster.Node
	factory  informers.SharedInformerFactory
	requests requests
}

func (f *fixture) startInformers(node *cluster.Node, contentType string) *informerClient {
	c := &informerClient{node: node}
	config := node.WrapperConfig(cluster.RoleKubeProxy)
	config.ContentType = contentType
	config.AcceptContentTypes = contentType
	c.requests.record(config)
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	c.factory = informers.NewSharedInformerFactory(client, 0)
	c.factory.Core().V1().Services().Informer()
	c.factory.Discovery().V1().EndpointSlices().Informer()
	c.factory.Start(f.ctx.Done())
	f.Cleanup(c.factory.Shutdown) // the test's context ends before
	return c
}

// TestInformersConverge drives client-go informers through every node's wrapper and lets the cluster change.
// In the end every one must hold exactly the view of its node.
func TestInformersConverge(t *testing.T) {
	for _, protocol := range []cluster.Protocol{cluster.WatchList, cluster.ListThenWatch} {
		t.Run(string(protocol), func(t *testing.T) {
			featuretesting.SetFeatureDuringTest(t, features.WatchListClient, protocol == cluster.WatchList)
			f := newFixture(t)
			f.daemonSet("before", siteLabel)

			var clients []*informerClient
			for i, node := range shared.Nodes() {
				contentType := "application/json"
				if i%2 == 0 {
					contentType = "application/vnd.kubernetes.protobuf"
				}
				clients = append(clients, f.startInformers(node, contentType))
			}
			f.expectViews("what existed", clients)

			f.daemonSet("ordered", corev1.LabelHostname, siteLabel)
			f.daemonSet("open")
			f.Must(workload.In(f.client, f.namespace).CreateDeployment(f.ctx, "scaled", 5, nil))
			f.service("scaled", workload.ServiceOptions{TopologyKeys: []string{siteLabel}, Headless: true})
			f.expectViews("new workloads", clients)

			f.relabel("a2", siteB)
			f.relabel("b1", "")
			f.setReady("ordered", "a1", corev1.ConditionFalse)
			f.Must(workload.In(f.client, f.namespace).Scale(f.ctx, "scaled", 2))
			f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "open", siteLabel))
			f.Must(workload.In(f.client, f.namespace).SetTopologyKeys(f.ctx, "before"))
			f.expectViews("relabelled, scaled, unready, annotated", clients)

			f.relabel("b1", siteB)
			f.relabel("a2", siteA)
			f.Must(f.client.CoreV1().Services(f.namespace).Delete(f.ctx, "ordered", metav1.DeleteOptions{}))
			f.expectViews("moved back, a Service deleted", clients)

			f.eachNode(func(node *cluster.Node) error { return node.Wrapper.Stop() })
			f.setReady("before", "b2", corev1.ConditionFalse)
			f.eachNode(func(node *cluster.Node) error { return node.Wrapper.Start(f.ctx) })
			f.expectViews("the wrappers restarted", clients)

			for _, client := range clients {
				client.requests.mu.Lock()
				lists, watchLists := len(client.requests.lists), len(client.requests.watchLists)
				client.requests.mu.Unlock()
				if protocol == cluster.WatchList && (lists > 0 || watchLists == 0) {
					t.Errorf("%s: the client should have used watch-lists only: %d lists, %d watch-lists",
						client.node.Spec.Name, lists, watchLists)
				}
				if protocol == cluster.ListThenWatch && watchLists > 0 {
					t.Errorf("%s: the client should not have used watch-lists", client.node.Spec.Name)
				}
			}
		})
	}
}

// expectViews waits until every client holds what kube-apiserver has, as its node should see it.
func (f *fixture) expectViews(what string, clients []*informerClient) {
	f.Helper()
	f.Eventually(what, func() error {
		if err := f.settled(); err != nil {
			return err
		}
		nodes, err := f.client.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		services, err := f.client.CoreV1().Services("").List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		slices, err := f.client.DiscoveryV1().EndpointSlices("").List(f.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, client := range clients {
			view := viewOf(client.node.Spec.Name, nodes.Items, services.Items, slices.Items)
			if err := client.compare(services.Items, view); err != nil {
				return fmt.Errorf("at %s: %w", client.node.Spec.Name, err)
			}
		}
		return nil
	})
}

// settled tells whether the controllers have done their work: otherwise "equal" would be true too early, of
// slices that do not have their endpoints yet.
func (f *fixture) settled() error {
	sets, err := f.client.AppsV1().DaemonSets(f.namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, set := range sets.Items {
		if set.Status.ObservedGeneration < set.Generation ||
			set.Status.CurrentNumberScheduled < set.Status.DesiredNumberScheduled ||
			set.Status.DesiredNumberScheduled == 0 {
			return fmt.Errorf("DaemonSet %s is not rolled out", set.Name)
		}
	}
	deployments, err := f.client.AppsV1().Deployments(f.namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, deployment := range deployments.Items {
		if deployment.Status.ObservedGeneration < deployment.Generation ||
			deployment.Status.ReadyReplicas != *deployment.Spec.Replicas {
			return fmt.Errorf("Deployment %s is not rolled out", deployment.Name)
		}
	}
	return nil
}

func (c *informerClient) compare(services []corev1.Service, view map[string]*discoveryv1.EndpointSlice) error {
	want := map[string]metav1.Object{}
	for i := range services {
		want["Service "+services[i].Namespace+"/"+services[i].Name] = &services[i]
	}
	for key, slice := range view {
		want["EndpointSlice "+key] = slice
	}
	got := map[string]metav1.Object{}
	known, err := c.factory.Core().V1().Services().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	for _, service := range known {
		got["Service "+service.Namespace+"/"+service.Name] = service.DeepCopy()
	}
	slices, err := c.factory.Discovery().V1().EndpointSlices().Lister().List(labels.Everything())
	if err != nil {
		return err
	}
	for _, slice := range slices {
		got["EndpointSlice "+slice.Namespace+"/"+slice.Name] = slice.DeepCopy()
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d Services and EndpointSlices, want %d", len(got), len(want))
	}
	for name, object := range want {
		if got[name] == nil {
			return fmt.Errorf("there is no %s", name)
		}
		normalize(object)
		normalize(got[name])
		if !equality.Semantic.DeepEqual(got[name], object) {
			return fmt.Errorf("%s differs: %s", name, diff.Diff(object, got[name]))
		}
	}
	return nil
}
