package grid

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// bareSites adds nodes that nothing runs on, one in each of this many sites.
func (f *fixture) bareSites(count int) {
	f.Helper()
	for i := range count {
		f.bareNode(fmt.Sprintf("%s-site-%d", f.namespace, i), fmt.Sprintf("u%d", i))
	}
}

// TestSteadyState: where nothing changes nothing is written, however much the nodes report.
func TestSteadyState(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.gridsOfEveryKind()
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, template: {serviceName: x, ` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("StatefulSetGrid", "db", 2)
	f.awaitRest(time.Second)
	mark := f.auditMark()
	// Ten minutes of heartbeats, one every ten seconds, of every node.
	for beat := range 60 {
		for i := 1; i <= f.nodes; i++ {
			patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"Beat","message":"%d"}]}}`, beat)
			_, err := f.client.CoreV1().Nodes().Patch(f.ctx, fmt.Sprintf("%s-%d", f.namespace, i),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			f.Must(err)
		}
	}
	time.Sleep(2 * time.Second)
	// Grids of tests that ran before may still lose their last nodes.
	ours := func(r cluster.Request) bool { return r.IsWrite() && r.ObjectRef.Namespace == f.namespace }
	if writes := f.requests(mark, ours); len(writes) > 0 {
		f.Errorf("%d writes in a steady state: %v\nstatus: %v", len(writes), writes, f.get("DeploymentGrid", "demo").Object["status"])
	}

	// A controller that starts finds everything as it should be.
	mark = f.auditMark()
	f.Must(f.killController(f.ctx))
	f.Must(f.controller.Start(f.ctx))
	f.led()
	time.Sleep(2 * time.Second)
	f.Must(f.noWrites(mark))
}

// probe begins the names of the grids that led makes.
const probe = "probe-"

// led waits until the controller acts upon a change.
func (f *fixture) led() {
	f.Helper()
	name := fmt.Sprint(probe, time.Now().UnixNano())
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: ` + name +
		`}, spec: {gridUniqKey: KEY, template: {ports: [{port: 80}]}}}`)
	f.Eventually("the controller leads", func() error {
		_, err := f.of("Service").Get(f.ctx, name+"-svc", metav1.GetOptions{})
		return err
	})
	f.Must(f.of("ServiceGrid").Delete(f.ctx, name, metav1.DeleteOptions{}))
}

// TestKilledAtRandom: the controller is killed again and again while it works, and kube-apiserver once. In the
// end everything is there, was made once, and is as the grids say.
func TestKilledAtRandom(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	const sites = 60
	f.bareSites(sites)
	mark := f.auditMark()
	ctx, stop := context.WithCancel(f.ctx)
	var killing sync.WaitGroup
	kills := 0
	killing.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(rand.N(1500 * time.Millisecond))
			if err := f.killController(f.ctx); err != nil {
				f.Logf("the Lease of the killed controller stays: %v", err) // kube-apiserver is killed, too
			}
			kills++
			if err := f.controller.Launch(); err != nil {
				f.Error(err)
				return
			}
			if err := f.controller.WaitReady(f.ctx); err != nil {
				f.Error(err)
				return
			}
			time.Sleep(rand.N(3 * time.Second))
		}
	})
	f.apply(quietGrid("demo"))
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, template: {replicas: 0, serviceName: x, ` + selector + `, template: ` + podTemplate + `}}}`)
	for i := range 4 {
		time.Sleep(2500 * time.Millisecond)
		if i == 1 {
			f.Cluster.APIServer.Kill()
			f.Must(f.Cluster.APIServer.Start(f.ctx))
		}
		f.Eventually("a change of the template", func() error {
			_, err := f.of("DeploymentGrid").Patch(f.ctx, "demo", types.MergePatchType,
				fmt.Appendf(nil, `{"spec":{"template":{"replicas":0,"minReadySeconds":%d}}}`, i), metav1.PatchOptions{})
			return err
		})
	}
	stop()
	killing.Wait()
	f.Logf("killed %d times", kills)
	f.expectReady("DeploymentGrid", "demo", sites)
	f.expectReady("StatefulSetGrid", "db", sites)
	// Creates that were in flight when a process was killed are in no log; none may be there twice.
	for _, resource := range []string{"deployments", "statefulsets"} {
		creates := f.creates(mark, resource)
		f.Logf("%d of %d creates of %s were logged", len(creates), sites, resource)
		for name, count := range creates {
			if count != 1 {
				f.Errorf("%s was created %d times", name, count)
			}
		}
	}
	list, err := f.of("Deployment").List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, d := range list.Items {
		if seconds, _, _ := unstructured.NestedInt64(d.Object, "spec", "minReadySeconds"); seconds != 3 {
			f.Errorf("%s has minReadySeconds %d", d.GetName(), seconds)
		}
	}
	if deletes := f.requests(mark, func(a cluster.Request) bool { return a.Verb == "delete" && a.ObjectRef.Namespace == f.namespace }); len(deletes) > 0 {
		f.Errorf("something was deleted: %v", deletes)
	}
}

// TestTwoReplicas: one leads; the other takes over at once when it ends, and after the Lease when it is killed.
func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.node("east")
	second, err := f.Cluster.NewController(f.ctx, "second", program, slices.Concat(arguments(), shortLease)...)
	f.Must(err)
	f.Must(second.Start(f.ctx))
	f.Cleanup(second.Kill)
	f.led()
	begin := time.Now()
	f.Must(f.controller.Stop())
	if code := f.controller.ExitCode(); code != 0 {
		f.Errorf("exit code %d after SIGTERM", code)
	}
	f.led()
	f.Logf("taken over %s after SIGTERM", time.Since(begin))
	f.Must(f.controller.Start(f.ctx))

	begin = time.Now()
	second.Kill()
	took := suite.Unhindered(f.led)
	f.Logf("taken over %s after SIGKILL", time.Since(begin))
	if took > 10*time.Second { // a Lease of 4 s
		f.Errorf("taken over %s after SIGKILL", took)
	}
	mark := f.auditMark()
	f.Must(second.Start(f.ctx))
	f.apply(deploymentGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 1)
	f.expectOneCreateEach(mark, "deployments", 1)
}

func (f *fixture) crds() dynamic.ResourceInterface {
	return f.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"})
}

// TestForeignCRDs: with CRDs that check nothing, as SuperEdge's, the controller tells of bad input itself. Its
// start brings its own ones back.
func TestForeignCRDs(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.nodesIn("east", "west")
	crd, err := f.crds().Get(f.ctx, "deploymentgrids.superedge.io", metav1.GetOptions{})
	f.Must(err)
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	f.Must(err)
	crd.SetAnnotations(nil) // as SuperEdge's, they have no version
	versions[0].(map[string]any)["schema"] = map[string]any{"openAPIV3Schema": map[string]any{"type": "object",
		"x-kubernetes-preserve-unknown-fields": true}}
	f.Must(unstructured.SetNestedSlice(crd.Object, versions, "spec", "versions"))
	_, err = f.crds().Update(f.ctx, crd, metav1.UpdateOptions{})
	f.Must(err)
	f.Eventually("the API server takes anything", func() error {
		return f.tryApply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: empty}, spec: {gridUniqKey: "", template: {}}}`)
	})
	f.expectCondition("DeploymentGrid", "empty", "Degraded=True", "InvalidKey",
		"spec.gridUniqKey is empty")
	f.expectEvent("DeploymentGrid", "empty", "InvalidKey", "is empty")
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, templates: {east: canary},
		template: {` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "SitesFailed",
		`1 of 2 sites failed: east: TemplateNotFound: there is no spec.templatePool.canary`)
	f.expectEvent("DeploymentGrid", "demo", "TemplateNotFound", "canary")
	f.expectNames("the other site has its Deployment", "Deployment", "demo-west")
	f.Must(f.of("DeploymentGrid").Delete(f.ctx, "empty", metav1.DeleteOptions{}))
	f.Must(f.of("DeploymentGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{}))
	f.Must(f.controller.Restart(f.ctx))
	// Each time a new one: what is there already may keep a value that is not allowed any more.
	again := 0
	f.Eventually("the API server refuses it again", func() error {
		again++
		err := f.tryApply(fmt.Sprintf(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: empty-%d}, spec: {gridUniqKey: "", template: {}}}`, again))
		if err == nil || !strings.Contains(err.Error(), "gridUniqKey") {
			return fmt.Errorf("got %v", err) //nolint:errorlint // there may be none
		}
		return nil
	})
}

// TestCRDsAreNotDowngraded: the controller leaves alone CRDs that are newer than its own, and older ones that a GitOps
// tool keeps; it replaces other older ones, and its own that somebody has altered.
func TestCRDsAreNotDowngraded(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	const name = "daemonsetgrids.superedge.io"
	before, err := f.crds().Get(f.ctx, name, metav1.GetOptions{})
	f.Must(err)
	ours := before.GetAnnotations()["superedge.io/crd-version"]
	set := func(version string, labels map[string]any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{"superedge.io/crd-version": version},
				"labels": labels},
			"spec": map[string]any{"names": map[string]any{"categories": []string{"grids", "theirs"}}},
		})
		f.Must(err)
		_, err = f.crds().Patch(f.ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "someone"})
		f.Must(err)
		f.Must(f.controller.Restart(f.ctx))
		f.led()
	}
	version := func() string {
		crd, err := f.crds().Get(f.ctx, name, metav1.GetOptions{})
		f.Must(err)
		categories, _, err := unstructured.NestedStringSlice(crd.Object, "spec", "names", "categories")
		f.Must(err)
		return fmt.Sprint(crd.GetAnnotations()["superedge.io/crd-version"], " ", len(categories))
	}
	t.Cleanup(func() {
		_, err := f.crds().Patch(context.Background(), name, types.MergePatchType,
			[]byte(`{"metadata":{"labels":null,"annotations":{"superedge.io/crd-version":"1"}}}`),
			metav1.PatchOptions{})
		if err != nil || f.controller.Restart(context.Background()) != nil {
			t.Errorf("the CRD was not put back: %v", err)
		}
	})
	set("99", nil)
	if got := version(); got != "99 2" {
		f.Errorf("a newer one was replaced: %s", got)
	}
	set("1", map[string]any{"kustomize.toolkit.fluxcd.io/name": "grids"})
	if got := version(); got != "1 2" {
		f.Errorf("one that Flux keeps was replaced: %s", got)
	}
	set("1", map[string]any{"kustomize.toolkit.fluxcd.io/name": nil})
	if got := version(); got != ours+" 1" {
		f.Errorf("an older one was not replaced: %s", got)
	}
	set(ours, nil)
	if got := version(); got != ours+" 1" {
		f.Errorf("one that has our version and another spec was not replaced: %s", got)
	}
}
