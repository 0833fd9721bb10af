package grid

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/application-grid/application-grid/pkg/gridcontroller/gridrevision"
)

// asBefore stops the controller, and leaves everything of the grid demo as the version before would have: a revision
// with replicas in it, and a name that follows from them. It returns the name.
func (f *fixture) asBefore() string {
	f.Helper()
	f.Must(controller.Stop())
	f.Cleanup(func() {
		if controller.PID() == 0 {
			if err := controller.Start(context.Background()); err != nil { // the test's context is done
				f.Error(err)
			}
		}
	})
	revisions := f.client.AppsV1().ControllerRevisions(f.namespace)
	all, err := revisions.List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	if len(all.Items) != 1 {
		f.Fatalf("there are %d ControllerRevisions", len(all.Items))
	}
	object := all.Items[0].DeepCopy()
	var data map[string]any
	f.Must(json.Unmarshal(object.Data.Raw, &data))
	data["template"].(map[string]any)["replicas"] = 1
	raw, err := json.Marshal(data)
	f.Must(err)
	sum := sha256.Sum256(fmt.Appendf(nil, "DeploymentGrid/demo\n%s", raw))
	old := "demo-" + hex.EncodeToString(sum[:5])
	if !(gridrevision.Revision{Name: old, Data: raw}).IsOf("DeploymentGrid", "demo") {
		f.Fatal("the names of revisions are made in another way")
	}
	object.ObjectMeta = metav1.ObjectMeta{
		Name: old, Namespace: object.Namespace, Labels: object.Labels, OwnerReferences: object.OwnerReferences,
	}
	object.Data = runtime.RawExtension{Raw: raw}
	f.Must(revisions.Delete(f.ctx, all.Items[0].Name, metav1.DeleteOptions{}))
	_, err = revisions.Create(f.ctx, object, metav1.CreateOptions{})
	f.Must(err)
	for _, name := range strings.Fields(f.names("Deployment")) {
		f.patch("Deployment", name, `metadata: {annotations: {superedge.io/revision: `+old+`}}`)
	}
	f.patch("DeploymentGrid", "demo", `status: {currentRevision: `+old+`, updateRevision: `+old+`, rollout: {startTime: null, heard: null, proven: null}}`, "status")
	return old
}
