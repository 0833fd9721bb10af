package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/cluster"
)

const (
	siteLabel = "zone1"
	namespace = "bench"
	// loaders is how many objects are created at once.
	loaders = 16
	// images is how many container images every node's status names, as on a node that has worked for a while.
	images = 50
	// endpoints is how many a Service has.
	endpoints = 50
)

// fleet is the load: nodes in sites, and Services whose endpoints are spread over them at random. It is the
// same in every run.
type fleet struct{ nodes, sites, services int }

func (f fleet) String() string {
	return fmt.Sprintf("%d nodes in %d sites, %d Services of %d endpoints", f.nodes, f.sites, f.services, endpoints)
}

func (f fleet) site(i int) string { return fmt.Sprintf("site-%03d", i%f.sites) }

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func sliceName(i int) string { return fmt.Sprintf("svc-%05d-abcde", i) }

func parallel(ctx context.Context, count int, create func(context.Context, int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(loaders)
	for i := range count {
		group.Go(func() error { return create(ctx, i) })
	}
	return group.Wait()
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

// service has the address that kube-apiserver would give it, which gives those before these.
func (f fleet) service(i int) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("svc-%05d", i), Namespace: namespace,
			Annotations: map[string]string{"topologyKeys": fmt.Sprintf("[%q]", siteLabel)}},
		Spec: corev1.ServiceSpec{
			Ports:      []corev1.ServicePort{{Name: "http", Port: 80}},
			ClusterIP:  fmt.Sprintf("10.96.%d.%d", 128+i/250, 1+i%250),
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
		},
	}
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	return s
}

func (f fleet) slice(i int) *discoveryv1.EndpointSlice {
	r := rand.New(rand.NewPCG(uint64(i), 0)) //nolint:gosec // a load, the same in every run
	name := fmt.Sprintf("svc-%05d", i)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: sliceName(i), Namespace: namespace, Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "edge-bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080)),
			Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for e := range endpoints {
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

// store writes the fleet as kube-apiserver has it in etcd, and waits until kube-apiserver's watch caches have all
// slices, which are written last. With 10,000 nodes and 20,000 Services kube-apiserver would take a quarter of an hour
// for what etcd takes in seconds.
func (f fleet) store(ctx context.Context, c *cluster.Cluster) error {
	ofNamespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := c.Client().CoreV1().Namespaces().Create(ctx, ofNamespace, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating the namespace: %w", err)
	}
	err := parallel(ctx, f.nodes, func(ctx context.Context, i int) error {
		return put(ctx, c, corev1.SchemeGroupVersion, "minions", f.node(i))
	})
	if err != nil {
		return err
	}
	err = parallel(ctx, f.services, func(ctx context.Context, i int) error {
		err := put(ctx, c, corev1.SchemeGroupVersion, "services/specs/"+namespace, f.service(i))
		if err != nil {
			return err
		}
		return put(ctx, c, discoveryv1.SchemeGroupVersion, "endpointslices/"+namespace, f.slice(i))
	})
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(c.RESTConfig())
	if err != nil {
		return fmt.Errorf("making a client for metadata: %w", err)
	}
	all := client.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")).Namespace(namespace)
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := all.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(list.Items) == f.services, err
	})
}

func put(ctx context.Context, c *cluster.Cluster, version schema.GroupVersion, under string, o interface {
	runtime.Object
	metav1.Object
}) error {
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(metav1.Now())
	var encoded bytes.Buffer
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	if err := scheme.Codecs.EncoderForVersion(encoder, version).Encode(o, &encoded); err != nil {
		return fmt.Errorf("encoding %s: %w", o.GetName(), err)
	}
	err := c.AskEtcd(ctx, "kv/put", map[string][]byte{
		"key": []byte("/registry/" + under + "/" + o.GetName()), "value": encoded.Bytes(),
	}, nil)
	if err != nil {
		return fmt.Errorf("writing %s: %w", o.GetName(), err)
	}
	return nil
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
