package grid

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// theirManager is under which SuperEdge's controller wrote, by updates: the name of its program.
const theirManager = "application-grid-controller"

// theirGrids are SuperEdge's samples, as its controller left them: written as Go structs write themselves, with
// the hash of each template among the labels of its pods.
const theirGrids = `
apiVersion: superedge.io/v1
kind: DeploymentGrid
metadata:
  name: deploymentgrid-demo
  labels: {team: a}
spec:
  gridUniqKey: KEY
  template:
    replicas: 2
    selector:
      matchLabels: {appGrid: echo}
    strategy: {}
    template:
      metadata:
        creationTimestamp: null
        labels: {appGrid: echo, superedge.io/template-hash-key: "2876342374"}
      spec:
        containers:
          - name: echo
            image: superedge/echoserver:2.2
            ports: [{containerPort: 8080, protocol: TCP}]
            env:
              - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
              - {name: OLD, value: x}
            resources: {}
status:
  states:
    east:
      replicas: 2
      readyReplicas: 2
      conditions: [{type: Available, status: "True", reason: MinimumReplicasAvailable, lastTransitionTime: null, lastUpdateTime: null}]
    gone: {replicas: 1}
---
apiVersion: superedge.io/v1
kind: StatefulSetGrid
metadata:
  name: statefulsetgrid-demo
spec:
  gridUniqKey: KEY
  template:
    replicas: 2
    selector:
      matchLabels: {appGrid: echo-ss}
    serviceName: servicegrid-demo-svc
    updateStrategy: {}
    template:
      metadata:
        creationTimestamp: null
        labels: {appGrid: echo-ss, superedge.io/template-hash-key: "731562348"}
      spec:
        terminationGracePeriodSeconds: 10
        containers:
          - {name: echo, image: superedge/echoserver:2.2, resources: {}}
---
apiVersion: superedge.io/v1
kind: ServiceGrid
metadata:
  name: servicegrid-demo
spec:
  gridUniqKey: KEY
  template:
    selector: {appGrid: echo}
    ports: [{protocol: TCP, port: 80, targetPort: 8080}]
status: {loadBalancer: {}}
`

// TestFromSuperEdge: what SuperEdge's controller left behind, with its CRDs, is taken over. No pod is replaced; what
// the old controller had written is the grids' from then on, also where it leaves them.
func TestFromSuperEdge(t *testing.T) {
	f := newFixture(t)
	f.nodesIn("east", "west")
	f.Must(killController(f.ctx))
	f.Cleanup(func() { _ = controller.Launch() }) // it runs already, if the test came that far
	f.theirCRDs()
	grids := f.createTheirGrids()
	f.createTheirChildren(grids)
	f.Eventually("the pods run", func() error { return f.running(8) })
	f.expectSaid("grid status -n "+f.namespace, 3, "is application-grid-controller running?")
	before := f.Identities(f.dynamic, f.namespace)

	begin := time.Now()
	f.Must(controller.Start(f.ctx))
	f.expectReady("DeploymentGrid", "deploymentgrid-demo", 2)
	f.expectReady("StatefulSetGrid", "statefulsetgrid-demo", 2)
	f.expectCondition("ServiceGrid", "servicegrid-demo", "Ready=True", "Ready")
	f.Logf("taken over %s after the start", time.Since(begin))
	f.expectSaid("grid status -n "+f.namespace, 0)
	f.expectOurCRDs()
	f.stays("pods and the workloads' history stay", 3*time.Second, func() error {
		if after := f.Identities(f.dynamic, f.namespace); !maps.Equal(before, after) {
			return fmt.Errorf("before %v\nafter %v", before, after)
		}
		return nil
	})
	f.expectOnlyApplied()
	for _, name := range []string{"deploymentgrid-demo-east", "deploymentgrid-demo-west"} {
		labels := f.get("Deployment", name).GetLabels()
		if labels["left"] != "" || labels["team"] != "a" || labels["superedge.io/grid-uniq-key"] != f.key {
			f.Errorf("%s: what their controller had written and no grid says was to go: %v", name, labels)
		}
	}
	states, _, _ := unstructured.NestedMap(f.get("DeploymentGrid", "deploymentgrid-demo").Object, "status", "states")
	if got := slices.Sorted(maps.Keys(states)); !slices.Equal(got, []string{"east", "west"}) {
		f.Errorf("status of sites %v", got)
	}

	f.expectDriftReverted()
	f.expectChangeCarriedOut()

	for _, grid := range grids {
		f.Must(f.of(grid.GetKind()).Delete(f.ctx, grid.GetName(), metav1.DeleteOptions{}))
	}
	for _, kind := range []string{"Deployment", "StatefulSet", "Service"} {
		f.expectNames("children go with their grid", kind, "")
	}
}

// expectDriftReverted changes children that were taken over, as somebody else would, and waits until that is reverted.
func (f *fixture) expectDriftReverted() {
	f.Helper()
	f.patch("Deployment", "deploymentgrid-demo-east", `spec: {replicas: 5}`)
	f.patch("StatefulSet", "statefulsetgrid-demo-west", `spec: {template: {spec: {nodeSelector: {KEY: east}}}}`)
	f.patch("Service", "servicegrid-demo-svc", `metadata: {annotations: {topologyKeys: null}}`)
	f.Eventually("drift is reverted", func() error {
		replicas, _, _ := unstructured.NestedInt64(f.get("Deployment", "deploymentgrid-demo-east").Object, "spec",
			"replicas")
		site, _, _ := unstructured.NestedString(f.get("StatefulSet", "statefulsetgrid-demo-west").Object, "spec",
			"template", "spec", "nodeSelector", f.key)
		keys := f.get("Service", "servicegrid-demo-svc").GetAnnotations()["topologyKeys"]
		if replicas != 2 || site != "west" || keys != `["`+f.key+`"]` {
			return fmt.Errorf("%d replicas, site %s, topologyKeys %s", replicas, site, keys)
		}
		return nil
	})
	f.expectReady("StatefulSetGrid", "statefulsetgrid-demo", 2)
}

// expectChangeCarriedOut changes the templates of grids whose children were taken over, and waits until these follow.
func (f *fixture) expectChangeCarriedOut() {
	f.Helper()
	f.patch("DeploymentGrid", "deploymentgrid-demo",
		`spec: {template: {template: {spec: {containers: [{name: echo, image: superedge/echoserver:2.3}]}}}}`)
	f.patch("ServiceGrid", "servicegrid-demo", `spec: {template: {selector: {appGrid: null, app: other}}}`)
	f.Eventually("a change of the template reaches the children, and what is gone from it goes", func() error {
		for _, name := range []string{"deploymentgrid-demo-east", "deploymentgrid-demo-west"} {
			d, err := f.client.AppsV1().Deployments(f.namespace).Get(f.ctx, name, metav1.GetOptions{})
			f.Must(err)
			if c := d.Spec.Template.Spec.Containers[0]; c.Image != "superedge/echoserver:2.3" || len(c.Env) != 0 ||
				len(c.Ports) != 0 {
				return fmt.Errorf("%s: %+v", name, c)
			}
		}
		s, err := f.client.CoreV1().Services(f.namespace).Get(f.ctx, "servicegrid-demo-svc", metav1.GetOptions{})
		f.Must(err)
		if len(s.Spec.Selector) != 1 || s.Spec.Selector["app"] != "other" {
			return fmt.Errorf("selector %v", s.Spec.Selector)
		}
		return nil
	})
	f.expectReady("DeploymentGrid", "deploymentgrid-demo", 2)
}

func (f *fixture) crds() dynamic.ResourceInterface {
	return f.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
}

// theirCRDs puts CRDs of SuperEdge's shape in the place of ours: no DaemonSetGrid, no status subresource; and one of
// them as it was stored through apiextensions.k8s.io/v1beta1, which let every unknown field pass.
func (f *fixture) theirCRDs() {
	f.Helper()
	names := map[string]string{"deploymentgrids": "DeploymentGrid dg", "statefulsetgrids": "StatefulSetGrid ssg",
		"servicegrids": "ServiceGrid sg", "daemonsetgrids": ""}
	for plural := range names {
		f.Must(f.crds().Delete(f.ctx, plural+".superedge.io", metav1.DeleteOptions{}))
	}
	for plural := range names {
		f.Eventually("no CRD "+plural, func() error {
			if _, err := f.crds().Get(f.ctx, plural+".superedge.io", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	f.expectSaid("grid status", 1, "the server has no superedge.io/v1: install application-grid-controller")
	for plural, kind := range names {
		if kind == "" {
			continue
		}
		kind, short, _ := strings.Cut(kind, " ")
		crd := &unstructured.Unstructured{}
		f.Must(yaml.Unmarshal([]byte(`{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: `+plural+`.superedge.io}, spec: {
			group: superedge.io, scope: Namespaced, names: {kind: `+kind+`, listKind: `+kind+`List, plural: `+plural+`, singular: `+strings.ToLower(kind)+`, shortNames: [`+short+`]},
			versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, properties: {
				spec: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {gridUniqKey: {type: string}}},
				status: {type: object, x-kubernetes-preserve-unknown-fields: true}}}}}]}}`), &crd.Object))
		_, err := f.crds().Create(f.ctx, crd, metav1.CreateOptions{FieldManager: theirManager})
		f.Must(err)
		f.Eventually(kind+" is served", func() error {
			_, err := f.of(kind).List(f.ctx, metav1.ListOptions{})
			return err
		})
	}
	f.storeUnpruned("deploymentgrids.superedge.io")
}

// storeUnpruned makes a CRD what v1beta1 made of it. kube-apiserver refuses to, so it is written past it.
func (f *fixture) storeUnpruned(crd string) {
	f.Helper()
	key := []byte("/registry/apiextensions.k8s.io/customresourcedefinitions/" + crd)
	var stored struct{ Kvs []struct{ Value []byte } }
	f.Must(shared.AskEtcd(f.ctx, "kv/range", map[string]any{"key": key}, &stored))
	if len(stored.Kvs) != 1 {
		f.Fatalf("etcd has %d CRDs %s", len(stored.Kvs), crd)
	}
	var object map[string]any
	f.Must(json.Unmarshal(stored.Kvs[0].Value, &object))
	f.Must(unstructured.SetNestedField(object, true, "spec", "preserveUnknownFields"))
	value, err := json.Marshal(object)
	f.Must(err)
	f.Must(shared.AskEtcd(f.ctx, "kv/put", map[string]any{"key": key, "value": value}, nil))
	f.Eventually("the CRD "+crd+" keeps unknown fields", func() error {
		u, err := f.crds().Get(f.ctx, crd, metav1.GetOptions{})
		f.Must(err)
		if keeps, _, _ := unstructured.NestedBool(u.Object, "spec", "preserveUnknownFields"); !keeps {
			return fmt.Errorf("got %v", u.Object["spec"])
		}
		return nil
	})
}

// createTheirGrids applies the samples as kubectl did, and writes them as their controller did.
func (f *fixture) createTheirGrids() []*unstructured.Unstructured {
	f.Helper()
	var grids []*unstructured.Unstructured
	for manifest := range strings.SplitSeq(theirGrids, "\n---\n") {
		grid := &unstructured.Unstructured{}
		f.Must(yaml.UnmarshalStrict([]byte(strings.ReplaceAll(manifest, "KEY", f.key)), &grid.Object))
		created, err := f.of(grid.GetKind()).Create(f.ctx, grid,
			metav1.CreateOptions{FieldManager: "kubectl-client-side-apply"})
		f.Must(err)
		created.SetAnnotations(map[string]string{"by": "theirs"})
		created, err = f.of(grid.GetKind()).Update(f.ctx, created, metav1.UpdateOptions{FieldManager: theirManager})
		f.Must(err)
		grids = append(grids, created)
	}
	return grids
}

// createTheirChildren makes the children of both sites as their controller did: created, then put as a whole.
func (f *fixture) createTheirChildren(grids []*unstructured.Unstructured) {
	f.Helper()
	for _, grid := range grids {
		meta := func(name string) metav1.ObjectMeta {
			labels := map[string]string{"superedge.io/grid-selector": grid.GetName(),
				"superedge.io/grid-uniq-key": f.key, "left": "over"}
			maps.Copy(labels, grid.GetLabels())
			return metav1.ObjectMeta{
				Name: name, Namespace: f.namespace, Labels: labels,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(grid, grid.GroupVersionKind())},
			}
		}
		template, _, err := unstructured.NestedMap(grid.Object, "spec", "template")
		f.Must(err)
		data, err := json.Marshal(template)
		f.Must(err)
		create := metav1.CreateOptions{FieldManager: theirManager}
		update := metav1.UpdateOptions{FieldManager: theirManager}
		for _, site := range []string{"east", "west"} {
			switch grid.GetKind() {
			case "DeploymentGrid":
				d := &appsv1.Deployment{ObjectMeta: meta(grid.GetName() + "-" + site)}
				f.Must(json.Unmarshal(data, &d.Spec))
				d.Spec.Template.Spec.NodeSelector = map[string]string{f.key: site}
				_, err = f.client.AppsV1().Deployments(f.namespace).Create(f.ctx, d, create)
				f.Must(err)
				_, err = f.client.AppsV1().Deployments(f.namespace).Update(f.ctx, d, update)
			case "StatefulSetGrid":
				s := &appsv1.StatefulSet{ObjectMeta: meta(grid.GetName() + "-" + site)}
				f.Must(json.Unmarshal(data, &s.Spec))
				s.Spec.Template.Spec.NodeSelector = map[string]string{f.key: site}
				_, err = f.client.AppsV1().StatefulSets(f.namespace).Create(f.ctx, s, create)
				f.Must(err)
				_, err = f.client.AppsV1().StatefulSets(f.namespace).Update(f.ctx, s, update)
			}
			f.Must(err)
		}
		if grid.GetKind() == "ServiceGrid" {
			s := &corev1.Service{ObjectMeta: meta(grid.GetName() + "-svc")}
			s.Annotations = map[string]string{"topologyKeys": `["` + f.key + `"]`}
			f.Must(json.Unmarshal(data, &s.Spec))
			_, err = f.client.CoreV1().Services(f.namespace).Create(f.ctx, s, create)
			f.Must(err)
		}
	}
}

// running says why not exactly this many pods are there and ready, and their workloads at rest.
func (f *fixture) running(count int) error {
	f.Helper()
	pods := f.pods("")
	ready := 0
	for _, pod := range pods {
		if readySince(pod).IsZero() || pod.Status.Phase != corev1.PodRunning {
			continue
		}
		ready++
	}
	if len(pods) != count || ready != count {
		return fmt.Errorf("%d of %d pods are ready, want %d", ready, len(pods), count)
	}
	deployments, err := f.client.AppsV1().Deployments(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, d := range deployments.Items {
		if d.Status.ObservedGeneration != d.Generation || d.Status.UpdatedReplicas != *d.Spec.Replicas {
			return fmt.Errorf("Deployment %s is not at rest: %+v", d.Name, d.Status)
		}
	}
	sets, err := f.client.AppsV1().StatefulSets(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, s := range sets.Items {
		if s.Status.ObservedGeneration != s.Generation || s.Status.UpdatedReplicas != *s.Spec.Replicas {
			return fmt.Errorf("StatefulSet %s is not at rest: %+v", s.Name, s.Status)
		}
	}
	return nil
}

// expectOurCRDs looks whether the CRDs are ours, in full.
func (f *fixture) expectOurCRDs() {
	f.Helper()
	for kind, resource := range resources {
		if resource.Group != "superedge.io" {
			continue
		}
		crd, err := f.crds().Get(f.ctx, resource.Resource+".superedge.io", metav1.GetOptions{})
		f.Must(err)
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		if _, ok, _ := unstructured.NestedMap(versions[0].(map[string]any), "subresources", "status"); !ok ||
			len(versions) != 1 {
			f.Errorf("the CRD of %s has no status subresource", kind)
		}
		if keeps, _, _ := unstructured.NestedBool(crd.Object, "spec", "preserveUnknownFields"); keeps {
			f.Errorf("the CRD of %s still keeps unknown fields", kind)
		}
	}
	if annotations := f.get("DeploymentGrid", "deploymentgrid-demo").GetAnnotations(); annotations["by"] != "theirs" {
		f.Errorf("the grid has lost its annotations: %v", annotations)
	}
}

// expectOnlyApplied looks whether anything is still owned by the updates of the old controller. It would never
// leave the child.
func (f *fixture) expectOnlyApplied() {
	f.Helper()
	for _, kind := range []string{"Deployment", "StatefulSet", "Service"} {
		list, err := f.of(kind).List(f.ctx, metav1.ListOptions{})
		f.Must(err)
		for _, item := range list.Items {
			for _, entry := range item.GetManagedFields() {
				if entry.Manager == theirManager && entry.Operation != metav1.ManagedFieldsOperationApply {
					f.Errorf("%s %s: fields are owned by updates: %s", kind, item.GetName(), entry.FieldsV1)
				}
			}
		}
	}
}
