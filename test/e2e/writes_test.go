package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/util/retry"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
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

var writtenIn = map[string]string{"json": "application/json", "protobuf": "application/vnd.kubernetes.protobuf"}

// patientBackoff is for writers that others overtake again and again.
var patientBackoff = func() wait.Backoff {
	backoff := retry.DefaultBackoff
	backoff.Steps = 20
	return backoff
}()

// TestWritesThroughTheWrapper: reading and writing back, as controllers do, ends well, in both encodings.
func TestWritesThroughTheWrapper(t *testing.T) {
	for name, contentType := range writtenIn {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.service("written", workload.ServiceOptions{})
			services := f.writer(contentType).CoreV1().Services(f.namespace)
			f.Eventually("the wrapper has the Service", func() error {
				_, err := services.Get(f.ctx, "written", metav1.GetOptions{})
				return err
			})
			f.writeAtOnce(services)
			f.writeAlone(services)
			old := f.writeReturned(services)
			f.patchOld(services, old)
			f.applyOld(services, old)
			f.deleteOld(services, old)
		})
	}
}

// writeAtOnce has several writers change one object, some of them directly: everyone's change is in it in the end.
func (f *fixture) writeAtOnce(services typedcorev1.ServiceInterface) {
	f.Helper()
	var writers sync.WaitGroup
	const each = 5
	for writer := range 4 {
		through := services
		if writer == 3 {
			through = f.client.CoreV1().Services(f.namespace)
		}
		writers.Go(func() {
			for i := range each {
				err := retry.RetryOnConflict(patientBackoff, func() error {
					s, err := through.Get(f.ctx, "written", metav1.GetOptions{})
					if err != nil {
						return err
					}
					if s.Annotations == nil {
						s.Annotations = map[string]string{}
					}
					s.Annotations[fmt.Sprintf("writer-%d-%d", writer, i)] = "was here"
					_, err = through.Update(f.ctx, s, metav1.UpdateOptions{})
					return err
				})
				if err != nil {
					f.Errorf("writer %d: %v", writer, err)
				}
			}
		})
	}
	writers.Wait()
	direct, err := f.client.CoreV1().Services(f.namespace).Get(f.ctx, "written", metav1.GetOptions{})
	f.Must(err)
	if len(direct.Annotations) != 4*each {
		f.Errorf("the Service has the annotations of %d writes, want those of %d", len(direct.Annotations),
			4*each)
	}
	if len(direct.ManagedFields) == 0 {
		f.Error("the Service has lost its managedFields")
	}
	f.Eventually("the wrapper has the last write", func() error {
		s, err := services.Get(f.ctx, "written", metav1.GetOptions{})
		if err == nil && len(s.Annotations) != 4*each {
			err = fmt.Errorf("%d annotations", len(s.Annotations))
		}
		return err
	})
}

// writeAlone has one client read right after it has written: what it reads may be older than what it wrote.
func (f *fixture) writeAlone(services typedcorev1.ServiceInterface) {
	f.Helper()
	for i := range 10 {
		f.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			s, err := services.Get(f.ctx, "written", metav1.GetOptions{})
			if err == nil {
				s.Annotations["alone"] = fmt.Sprint(i)
				_, err = services.Update(f.ctx, s, metav1.UpdateOptions{})
			}
			return err
		}))
	}
	f.Eventually("the wrapper has the last of these", func() error {
		s, err := services.Get(f.ctx, "written", metav1.GetOptions{})
		if err == nil && s.Annotations["alone"] != "9" {
			err = fmt.Errorf("it has %q", s.Annotations["alone"])
		}
		return err
	})
}

// writeReturned writes again what a write returns, which has the upstream's resourceVersion, and returns the Service as
// it was before.
func (f *fixture) writeReturned(services typedcorev1.ServiceInterface) *corev1.Service {
	f.Helper()
	s, err := services.Get(f.ctx, "written", metav1.GetOptions{})
	f.Must(err)
	old := s.DeepCopy()
	for range 3 {
		s.Labels = map[string]string{"turn": s.ResourceVersion}
		s, err = services.Update(f.ctx, s, metav1.UpdateOptions{})
		f.Must(err)
	}
	s.Status.Conditions = []metav1.Condition{{Type: "Tested", Status: metav1.ConditionTrue, Reason: "Tested",
		LastTransitionTime: metav1.Now()}}
	_, err = services.UpdateStatus(f.ctx, s, metav1.UpdateOptions{})
	f.Must(err)
	return old
}

// patchOld updates and patches with an older revision of the wrapper's, which is a conflict, and with the present one.
func (f *fixture) patchOld(services typedcorev1.ServiceInterface, old *corev1.Service) {
	f.Helper()
	old.Labels = map[string]string{"too": "late"}
	if _, err := services.Update(f.ctx, old, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		f.Errorf("updating an old version: got %v, want a conflict", err)
	}
	patch := func(kind types.PatchType, resourceVersion string) error {
		body := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"labels":{"patched":"yes"}}}`, resourceVersion)
		if kind == types.JSONPatchType {
			body = fmt.Sprintf(`[{"op":"test","path":"/metadata/resourceVersion","value":%q},{"op":"add","path":"/metadata/labels/patched","value":"yes"}]`, resourceVersion)
		}
		_, err := services.Patch(f.ctx, "written", kind, []byte(body), metav1.PatchOptions{})
		return err
	}
	for _, kind := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType,
		types.JSONPatchType} {
		if err := patch(kind, old.ResourceVersion); err == nil {
			f.Errorf("%s with an old resourceVersion was taken", kind)
		}
		f.Must(retry.RetryOnConflict(patientBackoff, func() error {
			now, err := services.Get(f.ctx, "written", metav1.GetOptions{})
			if err != nil {
				return err
			}
			err = patch(kind, now.ResourceVersion)
			if kind == types.JSONPatchType && apierrors.IsInvalid(err) {
				err = apierrors.NewConflict(schema.GroupResource{}, "written", err) // the test failed, as tests of JSON patches do
			}
			return err
		}))
	}
}

// applyOld applies with an older revision, which is a conflict, and with the present one.
func (f *fixture) applyOld(services typedcorev1.ServiceInterface, old *corev1.Service) {
	f.Helper()
	applied := applycorev1.Service("written", f.namespace).WithAnnotations(map[string]string{"applied": "yes"})
	_, err := services.Apply(f.ctx, applied.WithResourceVersion(old.ResourceVersion),
		metav1.ApplyOptions{FieldManager: "e2e", Force: true})
	if !apierrors.IsConflict(err) {
		f.Errorf("applying with an old resourceVersion: got %v, want a conflict", err)
	}
	f.Must(retry.RetryOnConflict(patientBackoff, func() error {
		now, err := services.Get(f.ctx, "written", metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, err = services.Apply(f.ctx, applied.WithResourceVersion(now.ResourceVersion),
			metav1.ApplyOptions{FieldManager: "e2e", Force: true})
		return err
	}))
}

// deleteOld deletes with an older revision as a precondition, which is a conflict, and with the present one.
func (f *fixture) deleteOld(services typedcorev1.ServiceInterface, old *corev1.Service) {
	f.Helper()
	remove := func(resourceVersion string) error {
		return services.Delete(f.ctx, "written",
			metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &old.UID,
				ResourceVersion: &resourceVersion}})
	}
	if err := remove(old.ResourceVersion); !apierrors.IsConflict(err) {
		f.Errorf("deleting an old version: got %v, want a conflict", err)
	}
	f.Must(retry.RetryOnConflict(patientBackoff, func() error {
		now, err := services.Get(f.ctx, "written", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return remove(now.ResourceVersion)
	}))
	if _, err := f.client.CoreV1().Services(f.namespace).Get(f.ctx, "written",
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		f.Errorf("the Service is not gone: %v", err)
	}
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
	_, err = slices.Patch(f.ctx, pruned.Name, types.JSONPatchType, []byte(`[{"op":"remove","path":"/endpoints/0"}]`),
		metav1.PatchOptions{})
	refused("JSON patch of the endpoints", err)
	_, err = slices.Apply(f.ctx, applydiscoveryv1.EndpointSlice(pruned.Name,
		f.namespace).WithAddressType(pruned.AddressType).WithEndpoints(),
		metav1.ApplyOptions{FieldManager: "e2e", Force: true})
	refused("apply of the endpoints", err)
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

	// The metadata alone takes nothing away.
	_, err = slices.Patch(f.ctx, pruned.Name, types.StrategicMergePatchType,
		[]byte(`{"metadata":{"annotations":{"e2e":"patched"}}}`), metav1.PatchOptions{})
	f.Must(err)
	direct, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Get(f.ctx, pruned.Name, metav1.GetOptions{})
	f.Must(err)
	if len(direct.Endpoints) != 4 || direct.Annotations["e2e"] != "patched" {
		t.Errorf("got %d endpoints and the annotations %v, want 4 and the patch's", len(direct.Endpoints),
			direct.Annotations)
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
