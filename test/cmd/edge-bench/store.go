package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// store writes objects as kube-apiserver has them in etcd. With 10,000 nodes and 20,000 Services kube-apiserver would
// take a quarter of an hour for what etcd takes in seconds.
type store struct {
	etcd    *clientv3.Client
	encoder runtime.Encoder
}

// store creates the fleet in etcd, and its namespace.
func (f fleet) store(ctx context.Context, config *rest.Config, etcd string) (err error) {
	if err := (fleet{}).load(ctx, config); err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}, Context: ctx})
	if err != nil {
		return fmt.Errorf("making a client for etcd: %w", err)
	}
	defer client.Close()
	s := store{client, protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)}
	if err := parallel(ctx, f.nodes, func(ctx context.Context, i int) error { return s.node(ctx, f, i) }); err != nil {
		return err
	}
	err = parallel(ctx, f.services, func(ctx context.Context, i int) error { return s.service(ctx, f, i) })
	if err != nil {
		return err
	}
	return f.cached(ctx, config)
}

func (s store) node(ctx context.Context, f fleet, i int) error {
	return put(ctx, s, corev1.SchemeGroupVersion, "minions", f.node(i))
}

func (s store) service(ctx context.Context, f fleet, i int) error {
	service, slice := f.service(i), f.slice(i)
	service.Namespace, slice.Namespace = namespace, namespace
	// The addresses before these are given by kube-apiserver.
	service.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", 128+i/250, 1+i%250)
	service.Spec.ClusterIPs = []string{service.Spec.ClusterIP}
	service.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	service.Spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	if err := put(ctx, s, corev1.SchemeGroupVersion, "services/specs/"+namespace, service); err != nil {
		return err
	}
	return put(ctx, s, discoveryv1.SchemeGroupVersion, "endpointslices/"+namespace, slice)
}

// cached waits until kube-apiserver's watch caches have all slices, which are written last.
func (f fleet) cached(ctx context.Context, config *rest.Config) error {
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client for metadata: %w", err)
	}
	all := client.Resource(discoveryv1.SchemeGroupVersion.WithResource("endpointslices")).Namespace(namespace)
	return wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := all.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		return err == nil && len(list.Items) == f.services, err
	})
}

func put[T interface {
	runtime.Object
	metav1.Object
}](ctx context.Context, s store, version schema.GroupVersion, under string, o T) error {
	o.SetUID(uuid.NewUUID())
	o.SetCreationTimestamp(metav1.Now())
	var encoded bytes.Buffer
	if err := scheme.Codecs.EncoderForVersion(s.encoder, version).Encode(o, &encoded); err != nil {
		return fmt.Errorf("encoding %s: %w", o.GetName(), err)
	}
	if _, err := s.etcd.Put(ctx, "/registry/"+under+"/"+o.GetName(), encoded.String()); err != nil {
		return fmt.Errorf("writing %s: %w", o.GetName(), err)
	}
	return nil
}
