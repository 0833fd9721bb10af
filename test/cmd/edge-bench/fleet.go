package main

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

const (
	siteLabel = "zone1"
	namespace = "bench"
	viewer    = "viewer"
	direct    = "direct"
	// loaders is how many objects are created at once.
	loaders = 16
	// images is how many container images every node's status names, as on a node that has worked for a while.
	images = 50
)

// fleet is the load: nodes in sites, and Services whose endpoints are spread over them at random. It is the
// same in every run.
type fleet struct{ nodes, sites, services, endpoints int }

func (f fleet) site(i int) string { return fmt.Sprintf("site-%03d", i%f.sites) }

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func serviceName(i int) string { return fmt.Sprintf("svc-%05d", i) }

// load creates the fleet.
func (f fleet) load(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client for the load: %w", err)
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating the namespace: %w", err)
	}
	create := func(ctx context.Context, i int) error { return f.createNode(ctx, client, i) }
	if err := parallel(ctx, f.nodes, create); err != nil {
		return err
	}
	return parallel(ctx, f.services, func(ctx context.Context, i int) error { return f.createService(ctx, client, i) })
}

func parallel(ctx context.Context, count int, create func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := range count {
		group.Go(func() error { return create(ctx, i) })
	}
	return group.Wait()
}

func (f fleet) createNode(ctx context.Context, client kubernetes.Interface, i int) error {
	node := f.node(i)
	created, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating node %s: %w", node.Name, err)
	}
	created.Status = node.Status
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("writing the status of node %s: %w", node.Name, err)
	}
	return nil
}

func (f fleet) node(i int) *corev1.Node {
	name := nodeName(i)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		siteLabel: f.site(i), corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
	}}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP,
		Address: fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)}}
	for j := range images {
		image := fmt.Sprintf("registry.example.com/library/image-%d", j)
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("%s@sha256:%064d", image, j), image + ":v1.2.3"},
			SizeBytes: int64(j) * 1_000_003,
		})
	}
	return node
}

func (f fleet) createService(ctx context.Context, client kubernetes.Interface, i int) error {
	name := serviceName(i)
	if _, err := client.CoreV1().Services(namespace).Create(ctx, f.service(i), metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating Service %s: %w", name, err)
	}
	if _, err := client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, f.slice(i),
		metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the slice of %s: %w", name, err)
	}
	return nil
}

func (f fleet) service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName(i),
			Annotations: map[string]string{"topologyKeys": fmt.Sprintf("[%q]", siteLabel)}},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

func sliceName(i int) string { return serviceName(i) + "-abcde" }

func (f fleet) slice(i int) *discoveryv1.EndpointSlice {
	r := rand.New(rand.NewPCG(uint64(i), 0)) //nolint:gosec // a load, the same in every run
	name := serviceName(i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: sliceName(i), Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "edge-bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080)),
			Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for e := range f.endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+i%64, (i/64*7+e)%256, 1+r.IntN(250))},
			NodeName:  ptr.To(nodeName(r.IntN(f.nodes))),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true),
				Terminating: ptr.To(false)},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, e),
				UID: types.UID(fmt.Sprintf("%08d-0000-0000-0000-%012d", i, e))},
		})
	}
	return s
}

// paced yields 0, 1, 2 and so on, so many a second, until it has yielded count numbers or ctx is done.
func paced(ctx context.Context, rate, count int) iter.Seq[int] {
	return func(yield func(int) bool) {
		tick := time.NewTicker(time.Second / time.Duration(rate))
		defer tick.Stop()
		for i := range count {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if !yield(i) {
				return
			}
		}
	}
}

// stampPatch changes a slice so that a watcher can recognise the change: an annotation, and a port.
func stampPatch(stamp string, port int) []byte {
	return []byte(strings.NewReplacer("STAMP", stamp, "PORT", strconv.Itoa(port)).Replace(
		`{"metadata":{"annotations":{"bench/stamp":"STAMP"}},"ports":[{"name":"http","port":PORT,"protocol":"TCP"}]}`))
}
