package grid

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// rolloutDeadline is how long 30 sites may take to become ready, wave by wave, on a busy machine.
const rolloutDeadline = 3 * time.Minute

// rolloutWaves are the sites of the tests, by wave.
var rolloutWaves = map[string]int{"lab": 2, "eu": 8, "us": 20}

// rolloutGrid is a grid that is rolled out to them. EXTRA stands for more of spec.rollout. All sites begin at once, so
// that its deadline is for a busy machine; failsAfter sets another one.
const rolloutGrid = `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, progressDeadlineSeconds: 180,
	template: {` + selector + `, template: ` + podTemplate + `},
	rollout: {waves: [
		{name: lab, sites: {names: ["lab-*"]}, maxUnavailable: 1},
		{name: eu, sites: {nodeSelector: {matchLabels: {region: eu}}}, maxUnavailable: 3},
		{name: rest, maxUnavailable: 5}], EXTRA}}}`

// rolledOut makes the grid, and waits until it runs everywhere. It returns the node of each site.
func (f *fixture) rolledOut(extra string) map[string]string {
	f.Helper()
	var sites []string
	var labels []map[string]string
	for region, count := range rolloutWaves {
		for i := range count {
			site := fmt.Sprintf("%s-%d", region, i)
			of := map[string]string{f.key: site, "region": region}
			if region == "lab" {
				of["arch"] = "new"
			}
			sites, labels = append(sites, site), append(labels, of)
		}
	}
	nodes := map[string]string{}
	for i, name := range f.nodesWith(labels) {
		nodes[sites[i]] = name
	}
	f.apply(strings.ReplaceAll(rolloutGrid, "EXTRA", extra))
	f.expectReady("DeploymentGrid", "demo", 30)
	f.expectRollout("Complete", "")
	return nodes
}

// failsAfter sets how long a site may take to become ready.
func (f *fixture) failsAfter(seconds int) {
	f.Helper()
	f.patch("DeploymentGrid", "demo", fmt.Sprintf(`spec: {progressDeadlineSeconds: %d}`, seconds))
}

// setImage changes the template; selecting makes it fit only where nodes have the label.
func (f *fixture) setImage(image, nodeSelector string) {
	f.Helper()
	f.patch("DeploymentGrid", "demo", fmt.Sprintf(`spec: {template: {template: {spec: {nodeSelector: %s, containers: [{name: c, image: %s}]}}}}`, nodeSelector, image))
}

func (f *fixture) rolloutOf(name string) map[string]any {
	f.Helper()
	status, _, err := unstructured.NestedMap(f.get("DeploymentGrid", name).Object, "status", "rollout")
	f.Must(err)
	return status
}

// expectRollout waits for a phase with a wave, of the generation that there is.
func (f *fixture) expectRollout(phase, wave string, says ...string) {
	f.Helper()
	f.inTime(fmt.Sprintf("the rollout is %s %s", phase, wave), func() error {
		u := f.get("DeploymentGrid", "demo")
		status, _, _ := unstructured.NestedMap(u.Object, "status", "rollout")
		observed, _, _ := unstructured.NestedInt64(u.Object, "status", "observedGeneration")
		at, _ := status["wave"].(string)
		message, _ := status["message"].(string)
		if observed != u.GetGeneration() || status["phase"] != phase || at != wave {
			return fmt.Errorf("generation %d of %d: %v", observed, u.GetGeneration(), status)
		}
		for _, want := range says {
			if !strings.Contains(message, want) {
				return fmt.Errorf("it does not say %q: %s", want, message)
			}
		}
		return nil
	})
}

// inTime is eventually for what takes a whole rollout.
func (f *fixture) inTime(what string, ask func() error) {
	f.Helper()
	f.lookedAt(between, what, ask)
}

// lookedAt is inTime with this pause between two looks.
func (f *fixture) lookedAt(between time.Duration, what string, ask func() error) {
	f.Helper()
	took := await.Patience{Within: rolloutDeadline, Between: between}.Until(f.T, what, ask)
	f.Logf("%-60s %dms", what, took.Milliseconds())
}

// images counts the Deployments that run each image, by region.
func (f *fixture) images() map[string]map[string]int {
	f.Helper()
	list, err := f.client.AppsV1().Deployments(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	images := map[string]map[string]int{}
	for i := range list.Items {
		region, _, _ := strings.Cut(strings.TrimPrefix(list.Items[i].Name, "demo-"), "-")
		if images[region] == nil {
			images[region] = map[string]int{}
		}
		images[region][list.Items[i].Spec.Template.Spec.Containers[0].Image]++
	}
	return images
}

func (f *fixture) expectImages(image string, regions ...string) {
	f.Helper()
	images := f.images()
	for _, region := range regions {
		if images[region][image] != rolloutWaves[region] {
			f.Errorf("not all of %s run %s: %v", region, image, images)
		}
	}
}

func complete(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == 1 &&
		d.Status.AvailableReplicas == 1 && d.Status.Replicas == 1
}

// keepsRules looks at one state of all Deployments: whether a wave has more sites that are not ready with the image
// than it may, and whether one has begun before the one before was done.
func (f *fixture) keepsRules(image string) error {
	list, err := f.client.AppsV1().Deployments(f.namespace).List(f.ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	unready, with, ready := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range list.Items {
		d := &list.Items[i]
		region, _, _ := strings.Cut(strings.TrimPrefix(d.Name, "demo-"), "-")
		if d.Spec.Template.Spec.Containers[0].Image != image {
			continue
		}
		with[region]++
		if complete(d) {
			ready[region]++
		} else {
			unready[region]++
		}
	}
	for region, limit := range map[string]int{"lab": 1, "eu": 3, "us": 5} {
		if unready[region] > limit {
			return fmt.Errorf("%d sites of %s are not ready with %s, %d may be", unready[region], region, image, limit)
		}
	}
	if with["eu"] > 0 && ready["lab"] < rolloutWaves["lab"] {
		return errors.New("eu has begun before lab was done")
	}
	if with["us"] > 0 && ready["eu"] < rolloutWaves["eu"] {
		return errors.New("the rest has begun before eu was done")
	}
	return nil
}

// TestRolloutWaves: a template that fits the first wave only halts in the second one; what is mended goes through all
// waves, and costs one write a site. Then the controller is killed again and again while a change is on its way.
func TestRolloutWaves(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	f.rolledOut("maxFailures: 2")
	f.failsAfter(15)
	f.setImage("broken", "{arch: new}")
	f.expectRollout("Halted", "eu", "3 failed, 2 allowed: eu-0: ")
	f.expectImages("broken", "lab")
	f.expectImages("one", "us")
	if broken := f.images()["eu"]["broken"]; broken < 3 || broken > 5 { // sites that may fail take no place
		t.Errorf("%d sites of eu have what is broken", broken)
	}
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "RolloutHalted", "wave eu")
	f.expectEvent("DeploymentGrid", "demo", "RolloutHalted", "3 failed, 2 allowed")
	f.patch("Deployment", "demo-us-3", `spec: {template: {spec: {containers: [{name: c, image: theirs}]}}}`)
	f.Eventually("a site that is not due is kept at its revision",
		suite.Is(rolloutWaves["us"], func() int { return f.images()["us"]["one"] }))

	mark := f.auditMark()
	quiet := func() error {
		writes := f.requests(mark, func(a cluster.Request) bool {
			return a.IsWrite() && a.ObjectRef.Namespace == f.namespace
		})
		if mark = f.auditMark(); len(writes) > 0 {
			return fmt.Errorf("%v", writes)
		}
		return nil
	}
	calm := func() error {
		<-time.After(time.Second)
		return quiet()
	}
	f.Eventually("all that belongs to the site's way back is written", calm)
	f.setImage("mended", "{arch: null}")
	f.expectRollout("Complete", "")
	f.expectImages("mended", "lab", "eu", "us")
	writes := f.requests(mark, func(a cluster.Request) bool {
		return a.ObjectRef.Resource == "deployments" && a.ObjectRef.Namespace == f.namespace && a.IsWrite()
	})
	if len(writes) != 30 {
		t.Errorf("%d writes of 30 Deployments: %v", len(writes), writes)
	}
	f.Eventually("the last status and the events are written", calm)
	f.stays("nothing is written when all is done", 2*time.Second, quiet)

	kills := 0
	f.setImage("next", "{}")
	f.lookedAt(closely, "the change gets everywhere though the controller is killed", func() error {
		if err := f.keepsRules("next"); err != nil {
			f.Fatal(err)
		}
		if kills < 5 && rand.IntN(8) == 0 {
			kills++
			f.Must(f.killController(f.ctx))
			f.Must(f.controller.Start(context.Background()))
		}
		if images := f.images(); images["us"]["next"] < rolloutWaves["us"] {
			return fmt.Errorf("%v", images)
		}
		return nil
	})
	t.Logf("the controller was killed %d times", kills)
	f.expectRollout("Complete", "")
}

// TestRollback: with onFailure Rollback the sites of both waves go back, those of the second wave before those of the
// first; a mended template goes through all waves.
func TestRollback(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.rolledOut("maxFailures: 0, onFailure: Rollback")
	f.failsAfter(15)
	mark := f.auditMark()
	f.setImage("broken", "{arch: new}")
	f.expectRollout("RolledBack", "", "0 allowed")
	f.expectImages("one", "lab", "eu", "us")
	// Each Deployment that was changed was written twice: there and back.
	writes, back := map[string]int{}, map[string]int{}
	for _, r := range f.requests(mark, f.writesDeployment) {
		if writes[r.ObjectRef.Name]++; writes[r.ObjectRef.Name] == 2 {
			region, _, _ := strings.Cut(strings.TrimPrefix(r.ObjectRef.Name, "demo-"), "-")
			back[region]++
		}
	}
	if failed := len(writes) - rolloutWaves["lab"]; failed < 1 ||
		!maps.Equal(back, map[string]int{"eu": failed, "lab": rolloutWaves["lab"]}) {
		t.Errorf("back went %v; writes: %v", back, writes)
	}
	f.setImage("mended", "{arch: null}")
	f.expectRollout("Complete", "")
	f.expectImages("mended", "lab", "eu", "us")
}

// expectSilent waits until the controller has heard that a site is silent.
func (f *fixture) expectSilent(site string) {
	f.Helper()
	f.Eventually(site+" is silent", suite.Is("Unreachable", func() string {
		phase, _, _ := unstructured.NestedString(f.get("DeploymentGrid", "demo").Object, "status", "states", site, "phase")
		return phase
	}))
}

// TestRolloutOffline: a site that cannot be reached does not hold up the rollout, and follows when it returns.
func TestRolloutOffline(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	nodes := f.rolledOut("unreachable: Defer")
	f.report(nodes["eu-4"], corev1.ConditionUnknown)
	f.expectSilent("eu-4")
	f.setImage("two", "{}")
	f.expectRollout("Complete", "")
	if images := f.images(); images["eu"]["one"] != 1 || images["us"]["two"] != rolloutWaves["us"] {
		t.Errorf("got %v", images)
	}
	if deferred := f.rolloutOf("demo")["deferred"]; deferred != int64(1) {
		t.Errorf("%v deferred", deferred)
	}
	f.report(nodes["eu-4"], corev1.ConditionTrue)
	f.Eventually("the site follows", suite.Is(rolloutWaves["eu"], func() int { return f.images()["eu"]["two"] }))
}

// TestOverrides: a strategic merge patch by kube-apiserver's schema merges lists by their keys; one that cannot be
// applied is an error of its sites alone.
func TestOverrides(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "west", "odd")
	f.apply(`{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY,
		template: {` + selector + `, template: {metadata: {labels: {app: x}}, spec: {terminationGracePeriodSeconds: 0, containers: [
			{name: c, image: one, env: [{name: A, value: a}]}, {name: d, image: side}]}}},
		overrides: [
			{name: big, sites: {names: [east]}, replicas: 3, images: {c: two},
			 patch: {template: {spec: {containers: [{name: c, env: [{name: MODE, value: big}]}]}}}},
			{name: wrong, sites: {names: [odd]}, patch: {template: {spec: {containers: [{image: nameless}]}}}}]}}`)
	f.Eventually("the overrides of one site", func() error {
		d, err := f.client.AppsV1().Deployments(f.namespace).Get(f.ctx, "demo-east", metav1.GetOptions{})
		if err != nil {
			return err
		}
		containers := d.Spec.Template.Spec.Containers
		if *d.Spec.Replicas != 3 || len(containers) != 2 || containers[0].Image != "two" ||
			containers[1].Image != "side" ||
			len(containers[0].Env) != 2 {
			return fmt.Errorf("got %d replicas, %+v", *d.Spec.Replicas, containers)
		}
		return nil
	})
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "SitesFailed",
		"odd: InvalidTemplate: spec.overrides[wrong].patch: it cannot be applied", "name")
	f.expectNames("the others go on", "Deployment", "demo-east demo-west")
}

// TestRolloutOfOtherKinds: a StatefulSetGrid whose template has a partition waits until that is smaller, without a
// deadline; and a DaemonSetGrid.
func TestRolloutOfOtherKinds(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.nodesIn("east", "west")
	const rollout = `progressDeadlineSeconds: 10, rollout: {waves: [{name: first, sites: {names: [east]}, approval: Manual}, {name: rest}]}`
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY,
		template: {replicas: 2, serviceName: x, updateStrategy: {rollingUpdate: {partition: 1}}, ` + selector + `, template: ` + podTemplate + `}, ` + rollout + `}}`)
	f.apply(`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: agent}, spec: {gridUniqKey: KEY,
		template: {` + selector + `, template: ` + podTemplate + `}, ` + rollout + `}}`)
	f.expectReady("StatefulSetGrid", "db", 2)
	f.expectReady("DaemonSetGrid", "agent", 2)
	for kind, name := range map[string]string{"StatefulSetGrid": "db", "DaemonSetGrid": "agent"} {
		f.patch(kind, name, `spec: {template: {template: {spec: {containers: [{name: c, image: two}]}}}}`)
		child := strings.TrimSuffix(kind, "Grid")
		image := func(site string) string { return f.imageOf(child, name+"-"+site) }
		reaches := func(phase, says string) func() error {
			return func() error {
				rollout, _, _ := unstructured.NestedMap(f.get(kind, name).Object, "status", "rollout")
				message, _ := rollout["message"].(string)
				if rollout["phase"] != phase || !strings.Contains(message, says) || image("east") != "two" || image("west") != "one" {
					return fmt.Errorf("%v: %s; %s and %s", rollout["phase"], message, image("east"), image("west"))
				}
				return nil
			}
		}
		if name == "db" {
			const waits = "east: updateStrategy.rollingUpdate.partition is 1, and keeps db-east-0 as before"
			f.Eventually("it waits for a smaller partition", reaches("Progressing", waits))
			f.stays("it has no deadline", 12*time.Second, reaches("Progressing", waits))
			if pods := f.pods("db-east-"); pods[0].Spec.Containers[0].Image != "one" || pods[1].Spec.Containers[0].Image != "two" {
				t.Errorf("the partition is not kept: %v", pods)
			}
			f.patch(kind, name, `spec: {template: {updateStrategy: {rollingUpdate: {partition: 0}}}}`)
		}
		f.Eventually(kind+" waits for an approval", reaches("AwaitingApproval", "the wave asks for an approval"))
		f.expectSaid("grid rollout approve "+strings.ToLower(kind)+"/"+name+" -n "+f.namespace, 0)
		f.Eventually(kind+" goes on", suite.Is("two", func() string { return image("west") }))
	}
}
