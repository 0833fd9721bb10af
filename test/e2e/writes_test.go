package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"

	"github.com/application-grid/application-grid/test/cluster"
)

// writer is a client through a1's wrapper that may do everything, and sends bodies in one encoding.
func (f *fixture) writer(contentType string) kubernetes.Interface {
	f.Helper()
	node := f.Node("a1")
	config := node.WrapperConfig(cluster.RoleAdmin)
	config.ContentType = contentType
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
	return client
}

// TestWritesOfAlteredObjects: what is read here pruned cannot be written back, so other sites keep their endpoints.
func TestWritesOfAlteredObjects(t *testing.T) {
	f := newFixture(t)
	f.daemonSet("echo", siteLabel)
	client := f.writer("application/vnd.kubernetes.protobuf")
	slices := client.DiscoveryV1().EndpointSlices(f.namespace)
	var pruned *discoveryv1.EndpointSlice
	f.Eventually("the wrapper shows two of the four endpoints", func() error {
		list, err := slices.List(f.ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=echo"})
		if err != nil {
			return err
		}
		if len(list.Items) != 1 || len(list.Items[0].Endpoints) != 2 ||
			!strings.Contains(f.explain("a1", "echo"), `"kept":2,"hidden":2`) { // the wrapper has the others too
			return errors.New("not yet")
		}
		pruned = &list.Items[0]
		return nil
	})
	refused := func(what string, err error) {
		t.Helper()
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "API server directly") {
			t.Errorf("%s: got %v, want 403 that says what to do instead", what, err)
		}
	}
	_, err := slices.Update(f.ctx, pruned, metav1.UpdateOptions{})
	refused("update", err)
	_, err = slices.Patch(f.ctx, pruned.Name, types.MergePatchType, []byte(`{"endpoints":[]}`), metav1.PatchOptions{})
	refused("merge patch of the endpoints", err)
	_, err = slices.Patch(f.ctx, pruned.Name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"e2e":"patched"}}}`), metav1.PatchOptions{})
	refused("patch of the metadata", err)
	refused("deletion", slices.Delete(f.ctx, pruned.Name, metav1.DeleteOptions{}))
	refused("deletion of all", slices.DeleteCollection(f.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	f.Eventually("the wrapper has all Endpoints too, and refuses an update", func() error { // of another controller
		list, err := client.CoreV1().Endpoints(f.namespace).Get(f.ctx, "echo", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, err = client.CoreV1().Endpoints(f.namespace).Update(f.ctx, list, metav1.UpdateOptions{}); err == nil ||
			apierrors.IsConflict(err) {
			return fmt.Errorf("got %v", err) //nolint:errorlint // there may be none
		}
		refused("update of Endpoints", err)
		return nil
	})

	// Nothing of Services is altered.
	_, err = client.CoreV1().Services(f.namespace).Patch(f.ctx, "echo", types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"e2e":"patched"}}}`), metav1.PatchOptions{})
	f.Must(err)
	direct, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Get(f.ctx, pruned.Name, metav1.GetOptions{})
	f.Must(err)
	if len(direct.Endpoints) != 4 {
		t.Errorf("got %d endpoints, want 4", len(direct.Endpoints))
	}
}

// TestMetadataInformers: client-go's metadata informers hold the same metadata through the wrapper as without it, and
// follow what changes.
func TestMetadataInformers(t *testing.T) {
	f := newFixture(t)
	f.daemonSet("echo", siteLabel)
	f.daemonSet("plain")
	node := f.Node("b1")
	client, err := metadata.NewForConfig(node.WrapperConfig(cluster.RoleKubeProxy))
	f.Must(err)
	resources := []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("services"),
		discoveryv1.SchemeGroupVersion.WithResource("endpointslices")}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, f.namespace, nil)
	for _, r := range resources {
		factory.ForResource(r).Informer()
	}
	ctx, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	factory.Start(ctx.Done())
	for r, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Fatalf("the informer of %s did not sync", r.Resource)
		}
	}
	f.Must(f.client.CoreV1().Services(f.namespace).Delete(f.ctx, "plain", metav1.DeleteOptions{}))
	_, err = f.client.CoreV1().Services(f.namespace).Patch(f.ctx, "echo", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"e2e":"changed"}}}`), metav1.PatchOptions{})
	f.Must(err)
	direct, err := metadata.NewForConfig(shared.RESTConfig())
	f.Must(err)
	for _, r := range resources {
		f.Eventually("the metadata of "+r.Resource+" are those of the API server", func() error {
			want, err := direct.Resource(r).Namespace(f.namespace).List(f.ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			lister := factory.ForResource(r).Lister().ByNamespace(f.namespace)
			for _, item := range want.Items {
				object, err := lister.Get(item.Name)
				if err != nil {
					return err
				}
				accessor, err := meta.Accessor(object)
				if err != nil {
					return err
				}
				if accessor.GetUID() != item.UID || !maps.Equal(accessor.GetLabels(), item.Labels) ||
					!equality.Semantic.DeepEqual(accessor.GetOwnerReferences(), item.OwnerReferences) {
					return fmt.Errorf("%s: got %+v, want %+v", item.Name, accessor, item.ObjectMeta)
				}
			}
			if _, err := lister.Get("plain"); r.Resource == "services" && !apierrors.IsNotFound(err) {
				return fmt.Errorf("the deleted Service: %w", err)
			}
			return nil
		})
	}
}
