package faults

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	siteLabel = "zone1"
	siteA     = "site-a"
	siteB     = "site-b"

	// near1, near2 and far are the nodes with the endpoints: two in the site of all nodes that faults befall, one in
	// another. Their kube-proxies have no wrapper.
	near1 = "near1"
	near2 = "near2"
	far   = "far"

	// namespace is that of all objects.
	namespace = "faults"

	// writeDelay is the --state-write-delay of all wrappers.
	writeDelay = time.Second
	// atOnce is how many faults are under way at the same time. They wait for most of their time, but two cores must
	// suffice for the kube-proxies.
	atOnce = 8
)

var (
	shared *cluster.Cluster
	// echo is the Service of the traffic.
	echo *corev1.Service
)

func TestMain(m *testing.M) {
	node := func(name, site string) cluster.NodeSpec {
		return cluster.NodeSpec{Name: name, Labels: map[string]string{siteLabel: site}, Direct: true}
	}
	suite.Suite{
		Name: "faults", Parallel: atOnce, Cluster: &shared, Prepare: prepare, Finish: func() { results.print(os.Stdout) },
		Programs: []string{"application-grid-wrapper", "application-grid-hub"},
		Options: cluster.Options{
			HubReplicas: 2, HubInterposed: true, WrapperArgs: []string{"--state-write-delay=" + writeDelay.String()},
			Nodes: []cluster.NodeSpec{node(near1, siteA), node(near2, siteA), node(far, siteB)},
		},
	}.Main(m)
}

// prepare makes the namespace and the Service of the traffic.
func prepare(ctx context.Context) error {
	client := shared.Client()
	_, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	err = await.NoError(ctx, between, func(ctx context.Context) error { // without it pods are refused
		_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return err
	}
	echo, err = createService(ctx, "echo")
	return err
}

// createService creates a site-local Service with an endpoint on each of the three nodes, and waits
// until all are ready. A wrapper that starts then sees no change of the far one: it would not show it, and a slice that
// changed elsewhere only has another metadata.generation than the cloud's.
func createService(ctx context.Context, name string) (*corev1.Service, error) {
	for _, node := range []string{near1, near2, far} {
		if err := workload.In(shared.Client(), namespace).CreatePod(ctx, podName(name, node), name, node); err != nil {
			return nil, err
		}
	}
	service, err := workload.In(shared.Client(), namespace).CreateService(ctx, name,
		workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return service, await.NoError(ctx, between, func(ctx context.Context) error {
		list, err := shared.Client().DiscoveryV1().EndpointSlices(namespace).List(ctx,
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
		if err != nil {
			return err
		}
		ready := 0
		for _, slice := range list.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != 3 {
			return fmt.Errorf("%d of 3 endpoints of %s are ready", ready, name)
		}
		return nil
	})
}

// deleteService deletes what createService created. What fails to be deleted goes with the cluster.
func deleteService(name string) {
	client := shared.Client().CoreV1()
	for _, node := range []string{near1, near2, far} {
		client.Pods(namespace).Delete(context.Background(), podName(name, node), metav1.DeleteOptions{})
	}
	client.Services(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
}

func podName(service, node string) string { return service + "-" + node }
