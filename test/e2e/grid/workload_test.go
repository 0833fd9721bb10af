package grid

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

const (
	podTemplate = `{metadata: {labels: {app: x}}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: one}]}}`
	selector    = `selector: {matchLabels: {app: x}}`
)

func deploymentGrid(name string) string {
	return `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: ` + name + `}, spec: {gridUniqKey: KEY,
		template: {replicas: 2, ` + selector + `, template: ` + podTemplate + `}}}`
}

func TestDeployments(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.nodesIn("east", "east", "west")
	mark := f.auditMark()
	f.apply(deploymentGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectNames("one Deployment per site", "Deployment", "demo-east demo-west")
	for _, site := range []string{"east", "west"} {
		for _, pod := range f.pods("demo-" + site) {
			node, err := f.client.CoreV1().Nodes().Get(f.ctx, pod.Spec.NodeName, metav1.GetOptions{})
			f.Must(err)
			if node.Labels[f.key] != site {
				f.Errorf("pod %s runs in site %s", pod.Name, node.Labels[f.key])
			}
		}
	}
	f.expectEvent("DeploymentGrid", "demo", "Applied", "east, west")

	f.node("north")
	f.expectReady("DeploymentGrid", "demo", 3)
	f.expectNames("a node with a new site", "Deployment", "demo-east demo-north demo-west")

	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 1}}`)
	f.expectReady("DeploymentGrid", "demo", 3)
	f.Eventually("the others end", suite.Is(3, f.demoPods)) // a Deployment is complete before
	f.expectOneCreateEach(mark, "deployments", 3)
	applies := f.requests(mark, func(a cluster.Request) bool {
		return a.ObjectRef.Resource == "deployments" && a.ObjectRef.Namespace == f.namespace && a.IsWrite()
	})
	if len(applies) != 6 {
		f.Errorf("want 6 writes, one to create and one to change each: %v", applies)
	}
}

// expectOneCreateEach counts the applies that created something: exactly one per child.
func (f *fixture) expectOneCreateEach(mark int64, resource string, children int) {
	f.Helper()
	creates := f.creates(mark, resource)
	if len(creates) != children {
		f.Errorf("%d %s were created, want %d", len(creates), resource, children)
	}
	for name, count := range creates {
		if count != 1 {
			f.Errorf("%s was created %d times", name, count)
		}
	}
}

// creates counts the requests that created something, by name.
func (f *fixture) creates(mark int64, resource string) map[string]int {
	f.Helper()
	creates := map[string]int{}
	for _, request := range f.requests(mark, func(a cluster.Request) bool {
		return a.ObjectRef.Resource == resource && a.ObjectRef.Namespace == f.namespace && a.ResponseStatus.Code == 201
	}) {
		creates[request.ObjectRef.Name]++
	}
	return creates
}

func TestDrift(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY,
		template: {` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("DeploymentGrid", "demo", 1)

	f.patch("Deployment", "demo-east", `{metadata: {labels: {superedge.io/grid-uniq-key: other}}, spec: {template: {spec: {nodeSelector: {KEY: other}, containers: [{name: c, image: theirs}]}}}}`)
	f.Eventually("drift is reverted", func() error {
		d := f.get("Deployment", "demo-east")
		site, _, _ := unstructured.NestedString(d.Object, "spec", "template", "spec", "nodeSelector", f.key)
		containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
		if image := containers[0].(map[string]any)["image"]; site != "east" || image != "one" ||
			d.GetLabels()["superedge.io/grid-uniq-key"] != f.key {
			return fmt.Errorf("site %s, image %s, labels %v", site, image, d.GetLabels())
		}
		return nil
	})
	f.patch("Deployment", "demo-east", `metadata: {labels: {superedge.io/grid-selector: null}}`)
	f.Eventually("the label that makes it a child comes back",
		suite.Is("demo", func() string { return f.get("Deployment", "demo-east").GetLabels()["superedge.io/grid-selector"] }))
	f.Must(f.of("Deployment").Delete(f.ctx, "demo-east", metav1.DeleteOptions{}))
	f.Eventually("a deleted child comes back", func() error {
		_, err := f.of("Deployment").Get(f.ctx, "demo-east", metav1.GetOptions{})
		return err
	})

	// What the template does not say is others' business: an autoscaler's replicas, an injected annotation.
	f.patch("Deployment", "demo-east", `spec: {replicas: 3}`, "scale")
	f.patch("Deployment", "demo-east", `metadata: {annotations: {injected: x}}`)
	f.stays("replicas and annotations of others stay", 3*time.Second, func() error {
		d := f.get("Deployment", "demo-east")
		if replicas, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas"); replicas != 3 ||
			d.GetAnnotations()["injected"] != "x" {
			return fmt.Errorf("replicas %d, annotations %v", replicas, d.GetAnnotations())
		}
		return nil
	})
	f.patch("DeploymentGrid", "demo", `{metadata: {labels: {team: a}}, spec: {template: {minReadySeconds: 1}}}`)
	f.Eventually("also through a change of the grid", func() error {
		d := f.get("Deployment", "demo-east")
		replicas, _, _ := unstructured.NestedInt64(d.Object, "spec", "replicas")
		ready, _, _ := unstructured.NestedInt64(d.Object, "spec", "minReadySeconds")
		if replicas != 3 || ready != 1 || d.GetLabels()["team"] != "a" || d.GetAnnotations()["injected"] != "x" {
			return fmt.Errorf("replicas %d, minReadySeconds %d, %v", replicas, ready, d.GetLabels())
		}
		return nil
	})
}

// TestImmutableField: what the API server refuses is told in its words, for the sites that it concerns.
func TestImmutableField(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "west")
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY,
		template: {` + selector + `, template: ` + podTemplate + `},
		templatePool: {b: {` + selector + `, template: ` + podTemplate + `}}, templates: {west: b}}}`)
	f.expectReady("DeploymentGrid", "demo", 2)
	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 2}, templatePool: {b: {selector: {matchLabels: {app: z}}, template: {metadata: {labels: {app: z}}}}}}`)
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "SitesFailed", "1 of 2 sites",
		"west: Rejected", "field is immutable")
	f.expectCondition("DeploymentGrid", "demo", "Ready=False", "SitesNotReady", "west")
	f.expectEvent("DeploymentGrid", "demo", "Rejected", "west", "field is immutable")
	f.Eventually("site east has 2 pods", suite.Is(2, func() int { return len(f.pods("demo-east")) }))
	if pods := f.pods("demo-west"); len(pods) != 1 {
		f.Errorf("site west was to keep its pod, and has %d", len(pods))
	}
	f.patch("DeploymentGrid", "demo", `spec: {templates: null}`)
	f.expectReady("DeploymentGrid", "demo", 2)
	f.expectCondition("DeploymentGrid", "demo", "Degraded=False", "AsDesired")
}

func TestSiteVanishes(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	east := f.node("east")
	f.node("west")
	f.apply(deploymentGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 2)
	f.relabel(east, "")
	f.expectCondition("DeploymentGrid", "demo", "Progressing=True", "SitesProgressing",
		"no node is in east")
	f.expectEvent("DeploymentGrid", "demo", "SiteVanished", "east", grace.String())
	f.relabel(east, "east")
	f.expectReady("DeploymentGrid", "demo", 2)
	f.stays("a site that came back keeps its workload", grace+time.Second, func() error {
		_, err := f.of("Deployment").Get(f.ctx, "demo-east", metav1.GetOptions{})
		return err
	})
	f.Must(f.Cluster.RemoveNode(f.ctx, east))
	begin := time.Now()
	f.expectNames("one that is gone for good loses it", "Deployment", "demo-west")
	if took := time.Since(begin); took < grace-time.Second {
		f.Errorf("removed after %s, the grace time is %s", took, grace)
	}
	f.expectReady("DeploymentGrid", "demo", 1)
	f.expectEvent("DeploymentGrid", "demo", "Removed", "east")
}

func TestDeletion(t *testing.T) {
	t.Parallel()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationForeground,
		metav1.DeletePropagationBackground, metav1.DeletePropagationOrphan} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, shared)
			f.nodesIn("east", "west")
			f.apply(deploymentGrid("demo"))
			f.expectReady("DeploymentGrid", "demo", 2)
			before := f.get("Deployment", "demo-east").GetUID()
			f.Must(f.of("DeploymentGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{PropagationPolicy: &policy}))
			f.expectNames("the grid goes", "DeploymentGrid", "")
			if policy != metav1.DeletePropagationOrphan {
				f.expectNames("its children go", "Deployment", "")
				return
			}
			f.stays("its children stay", 2*time.Second, suite.Is("demo-east demo-west", f.deployments))
			f.apply(deploymentGrid("demo"))
			f.expectReady("DeploymentGrid", "demo", 2)
			after := f.get("Deployment", "demo-east")
			if after.GetUID() != before || len(after.GetOwnerReferences()) != 1 {
				f.Errorf("a new grid of that name was to adopt them: %v", after.GetOwnerReferences())
			}
		})
	}
}

// TestConflict: the name that a site of one grid would have is another grid's. The site gets another one, and keeps it.
func TestConflict(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.nodesIn("b-c", "c")
	f.apply(deploymentGrid("a"))
	f.expectReady("DeploymentGrid", "a", 2)
	f.apply(deploymentGrid("a-b"))
	f.expectReady("DeploymentGrid", "a-b", 2)
	f.expectNames("both grids have theirs", "Deployment", "a-b-b-c a-b-c a-b-c-4e84717d a-c")
	if site := f.get("Deployment", "a-b-c-4e84717d").GetLabels()["superedge.io/grid-site"]; site != "c" {
		f.Errorf("it is labelled for site %q", site)
	}
	f.expectSaid("grid status dg/a-b -o wide -n "+f.namespace, 0, "c 2 2 2 2 1 default a-b-c-4e84717d - Ready\n")
	f.Must(f.of("DeploymentGrid").Delete(f.ctx, "a", metav1.DeleteOptions{}))
	f.expectNames("it keeps its name", "Deployment", "a-b-b-c a-b-c-4e84717d")
	f.expectReady("DeploymentGrid", "a-b", 2)

	// What is no grid's is left alone, and told.
	f.apply(`{apiVersion: apps/v1, kind: Deployment, metadata: {name: mine-c}, spec: {` + selector + `, template: ` +
		podTemplate + `}}`)
	f.apply(deploymentGrid("mine"))
	f.expectCondition("DeploymentGrid", "mine", "Degraded=True", "SitesFailed", "c: NameConflict",
		"was not made by this grid")
	f.expectEvent("DeploymentGrid", "mine", "NameConflict", "mine-c")
	f.Eventually("the metrics count the conflict", func() error { // of the controller's cache
		metrics, err := f.controller.Metrics(f.ctx)
		if err == nil && !strings.Contains(metrics, `application_grid_controller_conflicts{kind="DeploymentGrid"} 1`) {
			err = errors.New("they do not")
		}
		return err
	})
}

func TestKeyWithASlash(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.key = "topology.kubernetes.io/" + f.namespace
	f.node("eu-1")
	f.apply(deploymentGrid("demo"))
	f.expectReady("DeploymentGrid", "demo", 1)
	d := f.get("Deployment", "demo-eu-1")
	if d.GetLabels()["superedge.io/grid-uniq-key"] != "topology.kubernetes.io_"+f.namespace ||
		d.GetAnnotations()["superedge.io/grid-uniq-key"] != f.key {
		f.Errorf("got %v, %v", d.GetLabels(), d.GetAnnotations())
	}
	f.apply(`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, template: {selector: {app: x}, ports: [{port: 80}]}}}`)
	f.expectCondition("ServiceGrid", "demo", "Ready=True", "Ready")
	if got := f.get("Service", "demo-svc").GetAnnotations()["topologyKeys"]; got != `["`+f.key+`"]` {
		f.Errorf("got topologyKeys %s", got)
	}
}

// TestNames: a site value that cannot be part of a name is in a label, and the workload has a name that can be one.
func TestNames(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "Shop_1", "v1.2")
	long := strings.Repeat("u", 50)
	f.node(long)
	f.apply(deploymentGrid("demo"))
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, template: {serviceName: db-svc, ` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("DeploymentGrid", "demo", 4)
	f.expectReady("StatefulSetGrid", "db", 4)
	f.expectNames("Deployments", "Deployment", "demo-east demo-shop-1-fa889286 demo-"+long+" demo-v1.2")
	f.expectNames("StatefulSets", "StatefulSet",
		"db-east db-shop-1-e4df6e34 db-"+long[:40]+"-3ec0bda8 db-v1-2-541a8744")
	for _, name := range strings.Fields(f.names("StatefulSet")) {
		set := f.statefulSet(name)
		if site := set.Labels["superedge.io/grid-site"]; site == "" ||
			set.Spec.Template.Spec.NodeSelector[f.key] != site {
			f.Errorf("%s is labelled for site %q, and selects %v", name, site, set.Spec.Template.Spec.NodeSelector)
		}
	}
	f.expectSaid("grid status -o wide -n "+f.namespace, 0,
		"demo $KEY Shop_1 2 2 2 2 1 default demo-shop-1-fa889286 - Ready\n")
}

// TestRefusedByTheSchema: what can be checked without the cluster's state is refused at once.
func TestRefusedByTheSchema(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	for manifest, says := range map[string]string{
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: x}, spec: {gridUniqKey: ""}}`:                                                             "gridUniqKey",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: x}, spec: {gridUniqKey: "a b"}}`:                                                          "must be the key of a node label",
		`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: x}, spec: {gridUniqKey: "a/b/c"}}`:                                                           "must be the key of a node label",
		`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: x}, spec: {gridUniqKey: a, templates: {east: b}}}`:                                         "templates names a template that is not in templatePool",
		`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: x}, spec: {gridUniqKey: a, defaultTemplateName: b, templatePool: {c: {}}}}`:              "defaultTemplateName names a template",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: x}, spec: {gridUniqKey: a, removal: {maxSites: 101%}}}`:                                   "percentage",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: x}, spec: {gridUniqKey: a, removal: {policy: Never}}}`:                                    "Retain",
		`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: x}, spec: {gridUniqKey: a, fallbackKeys: ["*", b]}}`:                                         "* must be the last one",
		`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: x}, spec: {gridUniqKey: a, fallbackKeys: ["b c"]}}`:                                          "must be keys of node labels",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: x}, spec: {gridUniqKey: a, template: 5}}`:                                                 "template",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, rollout: {waves: [{name: a}, {name: b}]}}}`:                "only the last wave may leave sites out",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, rollout: {waves: [{name: a, soak: 99999h}]}}}`:             "8760h at most",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, rollout: {waves: [{name: a, maxUnavailable: 0}]}}}`:        "a number of 1 or more",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, overrides: [{name: a, sites: {}, replicas: 1}]}}`:          "give names, nodeSelector or both",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, overrides: [{name: a, sites: {names: [x]}}]}}`:             "give replicas, images or patch",
		`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: bad}, spec: {gridUniqKey: KEY, overrides: [{name: a, sites: {names: [x]}, replicas: 1}]}}`: "a DaemonSet has a pod on every node",
		`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: ` + strings.Repeat("x", 64) +
			`}, spec: {gridUniqKey: a}}`: "63 characters",
		`{apiVersion: superedge.io/v1, kind: ServiceGrid, metadata: {name: ` + strings.Repeat("x", 60) +
			`}, spec: {gridUniqKey: a}}`: "63 characters",
	} {
		if err := f.tryApply(manifest); err == nil || !strings.Contains(err.Error(), says) {
			f.Errorf("%s: got %v", manifest, err)
		}
	}
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: fine}, spec: {gridUniqKey: example.com/a, defaultTemplateName: default, templatePool: {c: {}}, templates: {east: c, west: ""}}}`)
}

// TestBadTemplates: a condition and an event tell what is wrong; the grid beside it goes on.
func TestBadTemplates(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	for name, template := range map[string]string{
		"none":     `{}`,
		"selector": `{` + selector + `, template: {spec: {nodeSelector: [a], containers: [{name: c, image: i}]}}}`,
		"type":     `{replicas: many, ` + selector + `, template: ` + podTemplate + `}`,
		"rejected": `{` + selector + `, template: {metadata: {labels: {app: z}}, spec: {containers: [{name: c, image: i}]}}}`,
		"unknown":  `{newIn2030: true, ` + selector + `, template: ` + podTemplate + `}`,
	} {
		f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: ` + name +
			`}, spec: {gridUniqKey: KEY, template: ` + template + `}}`)
	}
	f.apply(deploymentGrid("good"))
	f.expectReady("DeploymentGrid", "good", 1)
	f.expectCondition("DeploymentGrid", "none", "Degraded=True", "SitesFailed", "Rejected",
		"spec.selector")
	f.expectCondition("DeploymentGrid", "selector", "Degraded=True", "SitesFailed", "InvalidTemplate",
		"nodeSelector is not an object")
	f.expectCondition("DeploymentGrid", "type", "Degraded=True", "SitesFailed", "Rejected", "replicas")
	f.expectCondition("DeploymentGrid", "rejected", "Degraded=True", "SitesFailed", "Rejected",
		"does not match")
	// It got as far as the API server, which is older than the field.
	f.expectCondition("DeploymentGrid", "unknown", "Degraded=True", "SitesFailed", "newIn2030")
	f.expectEvent("DeploymentGrid", "rejected", "Rejected", "does not match")
	f.patch("DeploymentGrid", "rejected", `spec: {template: {template: {metadata: {labels: {app: x}}}}}`)
	f.expectReady("DeploymentGrid", "rejected", 1)
}

func TestDaemonSets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	f.apply(`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: agent}, spec: {gridUniqKey: KEY, template: {` + selector + `, template: ` + podTemplate + `}}}`)
	f.expectReady("DaemonSetGrid", "agent", 1)
	joined := f.node("east")
	podsOf := func(node string) int {
		count := 0
		for _, pod := range f.pods("agent-") {
			if pod.Spec.NodeName == node && pod.Status.Phase == corev1.PodRunning {
				count++
			}
		}
		return count
	}
	f.Eventually("a node that joins a site gets its pod", suite.Is(1, func() int { return podsOf(joined) }))
	f.expectReady("DaemonSetGrid", "agent", 1)
	f.relabel(joined, "west")
	f.expectReady("DaemonSetGrid", "agent", 2)
	f.expectNames("in another site it has that site's", "DaemonSet", "agent-east agent-west")
	f.relabel(joined, "")
	f.Eventually("one that leaves all sites loses it", suite.Is(0, func() int { return podsOf(joined) }))
}

const volumes = `volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: manual, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}}]`

// TestStatefulSets behave through a grid as StatefulSets do.
func TestStatefulSets(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.node("east")
	for i := range 3 {
		_, err := f.client.CoreV1().PersistentVolumes().Create(f.ctx, &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", f.namespace, i)},
			Spec: corev1.PersistentVolumeSpec{
				Capacity:               corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")},
				StorageClassName:       "manual",
				AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/nowhere"}},
			},
		}, metav1.CreateOptions{})
		f.Must(err)
	}
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, template: {
		serviceName: db-svc, replicas: 3, ` + selector + `, template: ` + podTemplate + `, ` + volumes + `}}}`)
	f.expectReady("StatefulSetGrid", "db", 1)
	pods := f.pods("db-east-")
	for i := 1; i < len(pods); i++ {
		if pods[i].CreationTimestamp.Before(readySince(pods[i-1])) {
			f.Errorf("%s was created before %s was ready", pods[i].Name, pods[i-1].Name)
		}
	}
	images := func() string {
		var images []string
		for _, pod := range f.pods("db-east-") {
			images = append(images, pod.Spec.Containers[0].Image)
		}
		return strings.Join(images, "/")
	}
	expectImages := func(what, want string) {
		f.Helper()
		f.Eventually(what, suite.Is(want, images))
	}

	f.patch("StatefulSetGrid", "db", `spec: {template: {updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 2}}, template: {spec: {containers: [{name: c, image: two}]}}}}`)
	expectImages("a canary: partition 2", "one/one/two")
	f.expectReady("StatefulSetGrid", "db", 1)
	f.stays("the partition holds", 2*time.Second, suite.Is("one/one/two", images))
	mark := f.auditMark()
	f.patch("StatefulSetGrid", "db", `spec: {template: {updateStrategy: {rollingUpdate: {partition: 0}}}}`)
	expectImages("the rest follows", "two/two/two")
	f.expectReady("StatefulSetGrid", "db", 1)
	made, err := f.Cluster.Audited(mark, func(r request) bool {
		return r.ObjectRef.Resource == "pods" && r.ObjectRef.Namespace == f.namespace && r.ResponseStatus.Code == 201 &&
			r.ObjectRef.Subresource == ""
	})
	f.Must(err)
	if len(made) != 2 || made[0].ObjectRef.Name != "db-east-1" || made[1].ObjectRef.Name != "db-east-0" {
		f.Errorf("the update was to go from the last to the first: %+v", made)
	}

	f.patch("StatefulSetGrid", "db", `spec: {template: {updateStrategy: {type: OnDelete, rollingUpdate: null}, template: {spec: {containers: [{name: c, image: three}]}}}}`)
	f.Eventually("the set waits for deletions", func() error {
		set := f.statefulSet("db-east")
		if set.Spec.UpdateStrategy.Type != "OnDelete" || set.Spec.UpdateStrategy.RollingUpdate != nil ||
			set.Status.ObservedGeneration != set.Generation {
			return fmt.Errorf("%+v", set.Spec.UpdateStrategy)
		}
		return nil
	})
	f.stays("OnDelete", 2*time.Second, suite.Is("two/two/two", images))
	f.Must(f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, "db-east-1", metav1.DeleteOptions{}))
	expectImages("the deleted pod is the new one", "two/three/two")

	f.patch("StatefulSetGrid", "db", `spec: {template: {replicas: 1}}`)
	f.Eventually("scaled down", func() error {
		if pods := f.pods("db-east-"); len(pods) != 1 || pods[0].Name != "db-east-0" {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	claims, err := f.client.CoreV1().PersistentVolumeClaims(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	if len(claims.Items) != 3 {
		f.Errorf("the claims were to stay, and %d are left", len(claims.Items))
	}
}

func readySince(pod corev1.Pod) *metav1.Time {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return &condition.LastTransitionTime
		}
	}
	return &metav1.Time{}
}
