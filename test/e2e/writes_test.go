package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
)

// TestWritesOfAlteredObjects: what is read here pruned cannot be written back, so other sites keep their endpoints.
func TestWritesOfAlteredObjects(t *testing.T) {
	f := newFixture(t)
	f.daemonSet("echo", siteLabel)
	config := f.Node("a1").WrapperConfig(cluster.RoleAdmin)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(config)
	f.Must(err)
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
	_, err = slices.Update(f.ctx, pruned, metav1.UpdateOptions{})
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

// explain is what the node's wrapper explains of a Service.
func (f *fixture) explain(node, service string) string {
	f.Helper()
	n := f.Node(node)
	reply, err := n.Get(f.ctx, n.WrapperURL()+"/debug/explain/"+f.namespace+"/"+service)
	f.Must(err)
	return reply.Body
}
