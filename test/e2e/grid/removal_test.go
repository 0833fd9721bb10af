package grid

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/suite"
)

// quietGrid is a grid whose workloads make no pods.
func quietGrid(name string) string {
	return `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: ` + name + `}, spec: {gridUniqKey: KEY,
		template: {replicas: 0, ` + selector + `, template: ` + podTemplate + `}}}`
}

// approval is what condition Degraded of a grid asks for.
func (f *fixture) approval(kind, name string) string {
	f.Helper()
	c := meta.FindStatusCondition(conditions(f.get(kind, name)), "Degraded")
	if c == nil {
		f.Fatal("there is no condition Degraded")
	}
	_, after, _ := strings.Cut(c.Message, "superedge.io/approve-removal=")
	token, _, _ := strings.Cut(after, ";")
	return token
}

// unlabelAll takes the label of the sites from all nodes, as kubectl label nodes --all key- does.
func (f *fixture) unlabelAll() {
	f.Helper()
	nodes, err := f.client.CoreV1().Nodes().List(f.ctx, metav1.ListOptions{LabelSelector: f.key})
	f.Must(err)
	for _, node := range nodes.Items {
		_, err := f.client.CoreV1().Nodes().Patch(f.ctx, node.Name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{%q:null}}}`, f.key), metav1.PatchOptions{})
		f.Must(err)
	}
}

// TestMassRemoval: an operator takes the label from all nodes, or mistypes the key. No site goes down; what is meant is
// approved of.
func TestMassRemoval(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.bareSites(12)
	f.apply(quietGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 12)
	before := f.names("Deployment")
	mark := f.auditMark()

	f.patch("DeploymentGrid", "demo", `spec: {gridUniqKey: KEY-typo}`)
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "MassRemoval",
		"from "+f.key+" to "+f.key+"-typo", "12 sites")
	f.expectEvent("DeploymentGrid", "demo", "MassRemoval", "gridUniqKey")
	f.Must(f.controller.Restart(f.ctx))
	f.stays("a mistyped key removes nothing", grace+2*time.Second, suite.Is(before, f.deployments))
	f.expectSaid("grid status -n "+f.namespace, 3, "MassRemoval: spec.gridUniqKey has changed")
	f.patch("DeploymentGrid", "demo", `spec: {gridUniqKey: KEY}`)
	f.expectReady("DeploymentGrid", "demo", 12)
	if writes := f.requests(mark, func(r request) bool {
		return r.IsWrite() && r.ObjectRef.Resource == "deployments" && r.ObjectRef.Namespace == f.namespace &&
			!f.changedNothing(r)
	}); len(writes) > 0 {
		f.Errorf("Deployments were written: %v", writes)
	}

	f.unlabelAll()
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "MassRemoval",
		"12 sites have no node any more", "only 1 of 12")
	f.stays("nodes without labels remove nothing", grace+2*time.Second, suite.Is(before, f.deployments))
	f.expectSaid("grid status -n "+f.namespace, 3,
		"u3 0 0 0 Removing: no node is in this site any more; Deployment demo-u3 stays until the removal of so many sites is approved")
	f.patch("DeploymentGrid", "demo", `metadata: {annotations: {superedge.io/approve-removal: "12"}}`)
	f.stays("nor does an approval of something else", 2*time.Second, suite.Is(before, f.deployments))
	f.patch("DeploymentGrid", "demo", `metadata: {annotations: {superedge.io/approve-removal: `+f.approval("DeploymentGrid", "demo")+`}}`)
	f.expectNames("what was approved of goes", "Deployment", "")
}

func TestRetain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.bareSites(3)
	f.apply(quietGrid("demo"))
	f.patch("DeploymentGrid", "demo", `spec: {removal: {policy: Retain, graceSeconds: 0}}`)
	f.expectReady("DeploymentGrid", "demo", 3)
	f.unlabelAll()
	f.expectReady("DeploymentGrid", "demo", 0)
	f.stays("what is retained stays", 3*time.Second, suite.Is("demo-u0 demo-u1 demo-u2", f.deployments))
}

// TestUnreachable: the node controller has lost a site. It is counted apart, and the rest is ready.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	name := f.namespace + "-far"
	f.bareNode(name, "far")
	f.apply(deploymentGrid("demo"))
	f.report(name, corev1.ConditionUnknown)
	f.Eventually("one site is ready, and one cannot be reached", suite.Is("2 1 1", func() string {
		status, _, _ := unstructured.NestedMap(f.get("DeploymentGrid", "demo").Object, "status")
		return fmt.Sprint(status["sites"], status["readySites"], status["unreachableSites"])
	}))
	f.expectCondition("DeploymentGrid", "demo", "Ready=True", "Ready", "all 1 sites are ready",
		"1 more cannot be reached: far")
	f.expectCondition("DeploymentGrid", "demo", "Available=True", "Ready")
	f.expectCondition("DeploymentGrid", "demo", "Degraded=False", "AsDesired")
	f.expectSaid("grid status -n "+f.namespace, 3,
		"far 2 0 2 Unreachable: the control plane has lost contact with all nodes of this site")
	f.report(name, corev1.ConditionTrue)
	f.expectCondition("DeploymentGrid", "demo", "Ready=False", "SitesNotReady", "far")
}

// TestStalled: what cannot go on is told as such, with the reason of a pod, and not as progress.
func TestStalled(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	f.apply(deploymentGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 1)
	// The quota refuses the new pod; the old ones go on serving.
	remove := f.quota(2)
	f.patch("DeploymentGrid", "demo", `spec: {template: {strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}, template: {spec: {containers: [{name: c, image: two}]}}}}`)
	f.expectCondition("DeploymentGrid", "demo", "Stalled=True", "SitesStalled", "east: FailedCreate",
		"exceeded quota")
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "SitesStalled", "exceeded quota")
	f.expectCondition("DeploymentGrid", "demo", "Available=True", "Ready")
	f.expectCondition("DeploymentGrid", "demo", "Progressing=False", "AsDesired")
	f.expectSaid("grid status -n "+f.namespace, 3, "Stalled: FailedCreate: ")
	remove()
	f.patch("DeploymentGrid", "demo", `spec: {template: {minReadySeconds: 1}}`)
	f.expectReady("DeploymentGrid", "demo", 1)
	f.expectCondition("DeploymentGrid", "demo", "Stalled=False", "AsDesired")

	// A StatefulSet has no such condition: the grid's deadline, and a pod that finds no node.
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, progressDeadlineSeconds: 2, template: {serviceName: x, ` + selector + `,
		template: {metadata: {labels: {app: x}}, spec: {nodeSelector: {absent: here}, containers: [{name: c, image: one}]}}}}}`)
	f.expectCondition("StatefulSetGrid", "db", "Stalled=True", "SitesStalled", "no progress for 2s",
		"pod db-east-0: Unschedulable: 0/")
	f.expectEvent("StatefulSetGrid", "db", "ProgressDeadlineExceeded", "east")
	f.expectSaid("grid status ssg -n "+f.namespace, 3,
		"east 1 0 1 Stalled: ProgressDeadlineExceeded: no progress for 2s", "pod db-east-0: Unschedulable")
}

// TestReplicasAreHandedOver: a template that stops naming replicas, for an autoscaler to take over, leaves each site's.
func TestReplicasAreHandedOver(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "west")
	f.apply(deploymentGrid("demo"))
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, template: {replicas: 3, serviceName: x, ` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectReady("StatefulSetGrid", "db", 2)
	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: null}}`)
	f.patch("StatefulSetGrid", "db", `spec: {template: {replicas: null}}`)
	f.expectEvent("DeploymentGrid", "demo", "ReplicasHandedOver", "east 2", "west 2")
	f.expectEvent("StatefulSetGrid", "db", "ReplicasHandedOver", "east 3", "west 3")
	replicas := func() string {
		return fmt.Sprint(f.replicas("Deployment", "demo-east"), f.replicas("Deployment", "demo-west"),
			f.replicas("StatefulSet", "db-east"))
	}
	f.stays("the replicas stay", 2*time.Second, suite.Is("2 2 3", replicas))
	f.patch("Deployment", "demo-east", `spec: {replicas: 4}`, "scale") // as an autoscaler does
	f.patch("DeploymentGrid", "demo", `spec: {template: {minReadySeconds: 1}}`)
	f.expectReady("DeploymentGrid", "demo", 2)
	if got := replicas(); got != "4 2 3" {
		f.Errorf("got the replicas %s", got)
	}
	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 1}}`)
	f.Eventually("a template that names them again has its way", suite.Is("1 1 3", replicas))
}

func (f *fixture) replicas(kind, name string) int64 {
	f.Helper()
	replicas, _, err := unstructured.NestedInt64(f.get(kind, name).Object, "spec", "replicas")
	f.Must(err)
	return replicas
}

// TestSiteLabel: pods and selectors of two sites differ, so that what selects one selects no other; unless it is false.
func TestSiteLabel(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "west")
	without := func(name string) string {
		return strings.Replace(deploymentGrid(name), "gridUniqKey: KEY,", "gridUniqKey: KEY, siteLabel: false,", 1)
	}
	f.apply(deploymentGrid("demo"))
	f.apply(strings.ReplaceAll(without("plain"), "{app: x}", "{app: other}"))
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectReady("DeploymentGrid", "plain", 2)
	pods, err := f.client.CoreV1().Pods(f.namespace).List(f.ctx,
		metav1.ListOptions{LabelSelector: "superedge.io/grid-site=east"})
	f.Must(err)
	if len(pods.Items) != 2 || slices.ContainsFunc(pods.Items,
		func(p corev1.Pod) bool { return !strings.HasPrefix(p.Name, "demo-east-") }) {
		f.Errorf("%d pods have the label of site east", len(pods.Items))
	}
	for name, want := range map[string]string{"demo-west": "west", "plain-west": ""} {
		d := f.get("Deployment", name)
		got, _, _ := unstructured.NestedString(d.Object, "spec", "selector", "matchLabels", "superedge.io/grid-site")
		if got != want || d.GetLabels()["superedge.io/grid-site"] != "west" {
			f.Errorf("%s selects site %q, and is labelled %v", name, got, d.GetLabels())
		}
	}
	// An orphaned ReplicaSet of one site is adopted by its own site's Deployment.
	sets, err := f.client.AppsV1().ReplicaSets(f.namespace).List(f.ctx,
		metav1.ListOptions{LabelSelector: "superedge.io/grid-site=east"})
	f.Must(err)
	if len(sets.Items) != 1 {
		f.Fatalf("%d ReplicaSets", len(sets.Items))
	}
	_, err = f.client.AppsV1().ReplicaSets(f.namespace).Patch(f.ctx, sets.Items[0].Name, types.MergePatchType,
		[]byte(`{"metadata":{"ownerReferences":null}}`), metav1.PatchOptions{})
	f.Must(err)
	f.Eventually("the orphan is adopted", func() error {
		set, err := f.client.AppsV1().ReplicaSets(f.namespace).Get(f.ctx, sets.Items[0].Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if by := metav1.GetControllerOf(set); by == nil || by.Name != "demo-east" {
			return fmt.Errorf("it belongs to %v", by)
		}
		return nil
	})
	if err := f.tryApply(without("demo")); err == nil || !strings.Contains(err.Error(), "siteLabel cannot be changed") {
		f.Errorf("got %v", err)
	}
}

// TestSiteLabelOfAdopted: a workload that is adopted keeps its selector, with the site or without. The grid says where
// that is not what it asks for, until the workload was recreated.
func TestSiteLabelOfAdopted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	labelled := func(value string) string {
		return strings.Replace(deploymentGrid("demo"), "gridUniqKey: KEY,", "gridUniqKey: KEY, siteLabel: "+value+",", 1)
	}
	with, without := labelled("true"), labelled("false")
	site := func(d *unstructured.Unstructured) string {
		site, _, _ := unstructured.NestedString(d.Object, "spec", "selector", "matchLabels", "superedge.io/grid-site")
		return site
	}
	selected := func() string { return site(f.get("Deployment", "demo-east")) }
	f.apply(without)
	f.expectReady("DeploymentGrid", "demo", 1)
	f.orphan()
	f.apply(with)
	f.expectReady("DeploymentGrid", "demo", 1)
	f.expectCondition("DeploymentGrid", "demo", "SpecWarning=True", "NoEffect",
		"selectors of the workloads of east")
	if got := selected(); got != "" {
		f.Errorf("the adopted workload selects site %q", got)
	}
	f.Must(f.of("Deployment").Delete(f.ctx, "demo-east", metav1.DeleteOptions{}))
	f.Eventually("the workload is recreated", func() error {
		d, err := f.of("Deployment").Get(f.ctx, "demo-east", metav1.GetOptions{})
		if err == nil && site(d) != "east" {
			err = fmt.Errorf("it selects site %q", site(d))
		}
		return err
	})
	f.Eventually("nothing is without effect", suite.Is(nil, func() *metav1.Condition {
		return meta.FindStatusCondition(conditions(f.get("DeploymentGrid", "demo")), "SpecWarning")
	}))
	f.expectReady("DeploymentGrid", "demo", 1)
	f.orphan()
	f.apply(without)
	f.expectReady("DeploymentGrid", "demo", 1)
	if got := selected(); got != "east" {
		f.Errorf("the adopted workload selects site %q, and did select east", got)
	}
}

// TestAdoptionOfFields: what a person with kubectl had written is the grid's from then on; what another manager owns is
// told.
func TestAdoptionOfFields(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	f.applyAs("kubectl", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: demo-east, labels: {superedge.io/grid-selector: demo}}, spec: {replicas: 3, minReadySeconds: 2, `+selector+`, template: `+podTemplate+`}}`)
	f.applyAs("argocd-controller", `{apiVersion: apps/v1, kind: Deployment, metadata: {name: demo-east}, spec: {progressDeadlineSeconds: 77}}`)
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("DeploymentGrid", "demo", 1)
	d := f.get("Deployment", "demo-east")
	if seconds, _, _ := unstructured.NestedInt64(d.Object, "spec", "minReadySeconds"); seconds != 0 {
		f.Errorf("minReadySeconds, which kubectl had written and the template does not say, is %d", seconds)
	}
	if replicas := f.replicas("Deployment", "demo-east"); replicas != 3 {
		f.Errorf("%d replicas; they were to stay", replicas)
	}
	f.applyAs("kubectl", `{apiVersion: v1, kind: Service, metadata: {name: demo-svc, labels: {superedge.io/grid-selector: demo}}, spec: {ports: [{port: 80}]}}`)
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 8080}]}}}`)
	f.expectCondition("ServiceGrid", "demo", "Ready=True", "Ready")
	f.expectSaid("grid status -o wide -n "+f.namespace, 0,
		"demo-east argocd-controller: spec.progressDeadlineSeconds Ready\n")
}

// TestSlowWebhook: a webhook that takes seconds holds up its own grid, and no other.
func TestSlowWebhook(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.bareSites(60)
	f.slowWebhook("slow", 2*time.Second)
	f.apply(quietGrid("slow"))
	f.Eventually("the grid that the webhook holds up has begun", func() error {
		if f.names("Deployment") == "" {
			return errors.New("it has not")
		}
		return nil
	})
	f.apply(strings.Replace(quietGrid("other"), "KEY", "KEY-none", 1))
	took := suite.Unhindered(func() {
		f.Eventually("another grid is answered", func() error {
			if c := meta.FindStatusCondition(conditions(f.get("DeploymentGrid", "other")), "Ready"); c == nil {
				return errors.New("it is not")
			}
			return nil
		})
	})
	if took > 15*time.Second {
		f.Errorf("that took %s", took)
	}
	f.expectReady("DeploymentGrid", "slow", 60)
}
