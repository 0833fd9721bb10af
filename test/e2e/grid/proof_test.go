package grid

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/test/suite"
)

// waved is a grid whose sites run the image one. ROLLOUT stands for its spec.rollout.
const waved = `{apiVersion: superedge.io/v1, kind: DeploymentGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY, progressDeadlineSeconds: 120,
	template: {replicas: 1, ` + selector + `, template: ` + podTemplate + `}, rollout: ROLLOUT}}`

// sites are sites of one node each, with the name of the node.
type sites map[string]string

// sites makes the sites u0, u1 and so on.
func (f *fixture) sites(count int) sites {
	f.Helper()
	s := sites{}
	for i := range count {
		s[fmt.Sprintf("u%d", i)] = ""
	}
	for i, name := range f.nodesIn(s.all()...) {
		s[fmt.Sprintf("u%d", i)] = name
	}
	return s
}

// waved makes sites, and the grid that runs in all of them, for changes of which some fail.
func (f *fixture) waved(count int, rollout string) sites {
	f.Helper()
	s := f.wavedWell(count, rollout)
	f.failsAfter(12)
	return s
}

// wavedWell is the same for changes that do not fail, however busy the machine is.
func (f *fixture) wavedWell(count int, rollout string) sites {
	f.Helper()
	s := f.sites(count)
	f.apply(strings.ReplaceAll(waved, "ROLLOUT", rollout))
	f.expectReady("DeploymentGrid", "demo", int64(count))
	f.expectRollout("Complete", "")
	return s
}

// heard has the control plane lose contact with sites, or hear of them again.
func (s sites) heard(f *fixture, ready corev1.ConditionStatus, sites ...string) {
	f.Helper()
	for _, site := range sites {
		f.report(s[site], ready)
	}
}

func (s sites) all() []string {
	var sites []string
	for i := range len(s) {
		sites = append(sites, fmt.Sprintf("u%d", i))
	}
	return sites
}

// runs is the image of every site's Deployment, in the order of the sites: "two one one".
func (f *fixture) runs() string {
	f.Helper()
	list, err := f.client.AppsV1().Deployments(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	var images []string
	for i := range list.Items { // in the order of their names
		images = append(images, list.Items[i].Spec.Template.Spec.Containers[0].Image)
	}
	return strings.Join(images, " ")
}

func (f *fixture) expectRuns(want string) {
	f.Helper()
	f.inTime("the sites run "+want, func() error {
		if got := f.runs(); got != want {
			return fmt.Errorf("they run %s: %v", got, f.rolloutOf("demo")["message"])
		}
		return nil
	})
}

func (f *fixture) staysAt(images string, d time.Duration) {
	f.Helper()
	f.stays("the sites run "+images, d, suite.Is(images, f.runs))
}

// canaryThenRest has the rest one site after the other.
const canaryThenRest = `{waves: [{name: canary, sites: {names: [u0]}}, {name: rest, maxUnavailable: 1}]}`

// started are the sites in which a kubelet has seen a pod with the image.
func (f *fixture) started(image string) map[string]bool {
	f.Helper()
	started := map[string]bool{}
	for _, pod := range f.pods("demo-") {
		if pod.Spec.Containers[0].Image == image && pod.Status.StartTime != nil {
			started[strings.Split(pod.Name, "-")[1]] = true
		}
	}
	return started
}

// TestSilenceProvesNothing: a change that runs nowhere, and then all nodes silent for longer than its deadline. Only
// the canary ever has it; it is put back meanwhile, as no kubelet has seen it.
func TestSilenceProvesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.waved(6, canaryThenRest)
	f.setImage("broken", "{no: where}")
	f.expectRuns("broken one one one one one")
	s.heard(f, corev1.ConditionUnknown, s.all()...)
	f.expectRuns("one one one one one one")
	f.staysAt("one one one one one one", 14*time.Second)
	s.heard(f, corev1.ConditionTrue, s.all()...)
	f.expectRollout("Halted", "canary", "u0: ")
	f.staysAt("broken one one one one one", 2*time.Second)
}

// TestSuspects: sites that fall silent as soon as they run a change. The next one begins while no more are silent than
// may be; then the rollout waits for a person.
func TestSuspects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, rollout string
		// runs are the images when it waits, in the wave, for what says says.
		runs, wave, says string
	}{
		{
			name:    "a canary",
			rollout: `{waves: [{name: canary, sites: {names: [u0]}, soak: 3s}, {name: rest, soak: 3s}]}`,
			runs:    "two one one one one one", wave: "canary", says: "no site of the wave has proven the change",
		},
		{
			name:    "one after the other",
			rollout: `{waves: [{name: all, maxUnavailable: 1, maxSilent: 2, soak: 3s}]}`,
			runs:    "two one one one one one", wave: "all", says: "1 sites fell silent with the change, and the wave has room for 1",
		},
		{
			name:    "as many as may, and one more",
			rollout: `{waves: [{name: some, sites: {names: [u0, u1, u2]}, maxUnavailable: 3, maxSilent: 1, soak: 3s}, {name: rest}]}`,
			runs:    "two two two one one one", wave: "some", says: "3 sites fell silent with the change, 1 allowed",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, shared)
			s := f.wavedWell(6, c.rollout)
			f.setImage("two", "{}")
			silent := map[string]bool{}
			f.inTime("sites fall silent", func() error {
				phase := f.rolloutOf("demo")["phase"] // first, so that in the end all that run the change are silent
				for site := range f.started("two") {
					if !silent[site] {
						silent[site] = true
						s.heard(f, corev1.ConditionUnknown, site)
					}
				}
				if phase != "AwaitingApproval" {
					return fmt.Errorf("phase %v", phase)
				}
				return nil
			})
			f.expectRollout("AwaitingApproval", c.wave, c.says)
			f.staysAt(c.runs, 3*time.Second)
			in := " -n " + f.namespace
			f.expectSaid("grid rollout status dg/demo"+in, 4, "a person is needed")
			// They come back, and prove what they run: nobody has to answer any more.
			s.heard(f, corev1.ConditionTrue, s.all()...)
			f.expectRollout("Complete", "")
			f.expectRuns("two two two two two two")
		})
	}
}

// TestApprovedSuspects: a person lets a rollout go on in spite of a silent canary.
func TestApprovedSuspects(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	s := f.wavedWell(3, `{waves: [{name: canary, sites: {names: [u0]}, soak: 2s}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.inTime("the canary has started", suite.Is(true, func() bool { return f.started("two")["u0"] }))
	s.heard(f, corev1.ConditionUnknown, "u0")
	f.expectRollout("AwaitingApproval", "canary")
	f.expectSaid("grid rollout approve dg/demo -n "+f.namespace, 0)
	f.expectRollout("Complete", "")
	f.expectRuns("two two two")
}

// TestUndoGoesToWhatRan: two attempts fail. An undo goes to what ran everywhere, and not to the first attempt.
func TestUndoGoesToWhatRan(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"", " --at-once"} {
		t.Run("undo"+how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, shared)
			f.waved(4, canaryThenRest)
			for _, attempt := range []string{"first", "second"} {
				f.setImage(attempt, "{no: where}")
				f.expectRuns(attempt + " one one one")
				f.expectRollout("Halted", "canary")
			}
			mark := f.auditMark()
			f.expectSaid("grid rollout undo dg/demo -n "+f.namespace+how, 0)
			f.expectRollout("Complete", "")
			f.expectRuns("one one one one")
			f.expectReady("DeploymentGrid", "demo", 4)
			writes := f.requests(mark, f.writesDeployment)
			if len(writes) != 1 || writes[0].ObjectRef.Name != "demo-u0" {
				t.Errorf("Deployments were written: %v", writes)
			}
		})
	}
}

// TestOrphansInWaves: a grid is deleted without its Deployments, and made again with another template.
func TestOrphansInWaves(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	const rollout = `{waves: [{name: canary, sites: {names: [u0]}, approval: Manual}, {name: rest, maxUnavailable: 1}]}`
	f.wavedWell(4, rollout)
	f.orphan()
	f.apply(strings.NewReplacer("ROLLOUT", rollout, "image: one", "image: two").Replace(waved))
	f.expectRollout("AwaitingApproval", "canary", "asks for an approval")
	f.staysAt("two one one one", 2*time.Second)
	f.expectSaid("grid rollout approve dg/demo -n "+f.namespace, 0)
	f.expectRollout("Complete", "")
	f.expectRuns("two two two two")
}

// TestHistoryWithoutRollout: a grid without waves can go back, and waves that it gets later know what runs.
func TestHistoryWithoutRollout(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.sites(3)
	in := " -n " + f.namespace
	f.apply(strings.ReplaceAll(waved, ", rollout: ROLLOUT", ""))
	f.expectReady("DeploymentGrid", "demo", 3)
	f.setImage("two", "{}")
	f.expectRuns("two two two")
	f.expectReady("DeploymentGrid", "demo", 3)
	f.expectSaid("grid rollout history dg/demo"+in, 0, "\n1 ", "\n2 ")
	f.expectSaid("grid rollout undo dg/demo"+in, 0)
	f.expectRuns("one one one")
	f.expectReady("DeploymentGrid", "demo", 3)

	pods := f.podUIDs()
	f.patch("DeploymentGrid", "demo", `spec: {rollout: `+canaryThenRest+`}`)
	f.expectRollout("Complete", "")
	f.keepsPods("waves that are turned on change", pods, time.Second)
	f.failsAfter(12)
	f.setImage("broken", "{no: where}")
	f.expectRollout("Halted", "canary")
	f.staysAt("broken one one", time.Second)
	f.expectSaid("grid rollout undo dg/demo"+in, 0)
	f.expectRollout("Complete", "")
	f.expectRuns("one one one")
}

// podUIDs are those of all pods, by name.
func (f *fixture) podUIDs() map[string]types.UID {
	f.Helper()
	uids := map[string]types.UID{}
	for _, pod := range f.pods("") {
		uids[pod.Name] = pod.UID
	}
	return uids
}

// keepsPods fails the test if one of the pods goes within the time.
func (f *fixture) keepsPods(what string, uids map[string]types.UID, d time.Duration) {
	f.Helper()
	f.stays(what+" no pod", d, func() error {
		now := f.podUIDs()
		for name, uid := range uids {
			if now[name] != uid {
				return fmt.Errorf("pod %s is gone", name)
			}
		}
		return nil
	})
}

// TestSoakOfPods: the soak is judged by the pods. A container that restarts begins it again, although the Deployment
// never says that it is not ready.
func TestSoakOfPods(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	const soak = 6 * time.Second
	f.wavedWell(3, `{waves: [{name: canary, sites: {names: [u0]}, soak: 6s}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.expectRollout("Soaking", "canary", "soaks until")
	time.Sleep(soak / 2)
	restarted := time.Now()
	f.restartContainer("demo-u0-", "two")
	f.inTime("the rest begins", func() error {
		if got := f.runs(); got != "two one one" {
			return nil
		}
		return errors.New("it has not")
	})
	if took := time.Since(restarted); took < soak-time.Second { // the API server's times are seconds
		t.Errorf("the rest began %s after the container", took)
	}
	f.expectRollout("Complete", "")
}

// restartContainer tells of the pod with the image what its kubelet would after a crash that a readiness probe missed.
func (f *fixture) restartContainer(prefix, image string) {
	f.Helper()
	for _, pod := range f.pods(prefix) {
		if pod.Spec.Containers[0].Image != image {
			continue
		}
		status := &pod.Status.ContainerStatuses[0]
		status.RestartCount++
		status.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		_, err := f.client.CoreV1().Pods(f.namespace).UpdateStatus(f.ctx, &pod, metav1.UpdateOptions{})
		f.Must(err)
		return
	}
	f.Fatalf("there is no pod %s with the image %s", prefix, image)
}

// TestScaling: more replicas are no revision. None at all, in many sites, wait for an approval.
func TestScaling(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.waved(4, canaryThenRest)
	before := f.get("DeploymentGrid", "demo")
	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 2}}`)
	f.Eventually("every site is scaled", suite.Is(8, f.demoPods))
	f.expectRollout("Complete", "")
	for _, field := range []string{"currentRevision", "updateRevision"} {
		was, _, _ := unstructured.NestedString(before.Object, "status", field)
		now, _, _ := unstructured.NestedString(f.get("DeploymentGrid", "demo").Object, "status", field)
		if now != was || was == "" {
			t.Errorf("status.%s was %s and is %s", field, was, now)
		}
	}
	// A rollout that has halted keeps nobody from being scaled, and an undo rescales nothing.
	f.setImage("broken", "{no: where}")
	f.expectRollout("Halted", "canary")
	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 3}}`)
	f.Eventually("the sites that have not got the change are scaled",
		suite.Is(3, func() int64 { return f.replicas("Deployment", "demo-u3") }))
	f.expectSaid("grid rollout undo dg/demo -n "+f.namespace, 0)
	f.expectRollout("Complete", "")
	f.expectReady("DeploymentGrid", "demo", 4)
	if replicas := f.replicas("Deployment", "demo-u0"); replicas != 3 {
		t.Errorf("an undo has scaled to %d", replicas)
	}

	f.patch("DeploymentGrid", "demo", `spec: {template: {replicas: 0}}`)
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "MassRemoval", "4 sites are to be scaled to 0")
	f.stays("nothing is scaled to 0", 2*time.Second, suite.Is(12, f.demoPods))
	f.patch("DeploymentGrid", "demo", `metadata: {annotations: {superedge.io/approve-removal: `+f.approval("DeploymentGrid", "demo")+`}}`)
	f.Eventually("what was approved of is scaled to 0", suite.Is(0, f.demoPods))
}

// TestChecks: a wave's check is a Job on the site's nodes. What it says decides.
func TestChecks(t *testing.T) {
	t.Parallel()
	const gated = `schedulingGates: [{name: example.com/test}], ` // the test says how it ends
	for _, c := range []struct {
		name, labels, spec string
		// ends is what the pod of the Job comes to, if the test says so.
		ends corev1.PodPhase
		// phase and says are what the rollout comes to.
		phase, wave, says, runs string
		// jobs are how many Jobs are left.
		jobs int
	}{
		{name: "passes", labels: `{check: web}`, phase: "Complete", runs: "two two two"},
		{
			name: "fails", labels: `{check: web}`, spec: gated, ends: corev1.PodFailed, phase: "Halted", wave: "canary",
			says: "u0: its check failed: BackoffLimitExceeded", runs: "two one one", jobs: 1,
		},
		{
			name: "takes too long", labels: `{check: web}`, spec: `nodeSelector: {no: where}, `, phase: "Halted", wave: "canary",
			says: "u0: its check ", runs: "two one one", jobs: 1,
		},
		{
			name: "has labels of the grid", labels: `{app: x}`, phase: "Halted", wave: "canary",
			says: "labels that the grid's selector app=x matches", runs: "two one one",
		},
		{
			name: "has labels of a Service", labels: `{check: served}`, phase: "Halted", wave: "canary",
			says: "labels that Service served selects", runs: "two one one",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, shared)
			_, err := f.client.CoreV1().Services(f.namespace).Create(f.ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "served"},
				Spec: corev1.ServiceSpec{
					Selector: map[string]string{"check": "served"}, Ports: []corev1.ServicePort{{Port: 80}},
				},
			}, metav1.CreateOptions{})
			f.Must(err)
			s := f.waved(3, `{waves: [{name: canary, sites: {names: [u0]}, check: {deadlineSeconds: 15, template: {backoffLimit: 0,
				template: {metadata: {labels: `+c.labels+`}, spec: {`+c.spec+`containers: [{name: check, image: curl}]}}}}}, {name: rest}]}`)
			f.setImage("two", "{}")
			if c.ends != "" {
				f.endCheck(s["u0"], c.ends)
			}
			f.expectRollout(c.phase, c.wave, c.says)
			f.expectRuns(c.runs)
			f.Eventually(fmt.Sprintf("%d Jobs are left", c.jobs), func() error {
				jobs, err := f.client.BatchV1().Jobs(f.namespace).List(f.ctx, metav1.ListOptions{})
				if err == nil && len(jobs.Items) != c.jobs {
					err = fmt.Errorf("there are %d", len(jobs.Items))
				}
				return err
			})
		})
	}
}

// endCheck waits for the pod of a check of the site u0, and says how it ends.
func (f *fixture) endCheck(node string, phase corev1.PodPhase) {
	f.Helper()
	f.Eventually("the check runs", func() error {
		pods := f.pods("demo-check-")
		if len(pods) != 1 {
			return fmt.Errorf("%d pods", len(pods))
		}
		if selector := pods[0].Spec.NodeSelector; selector[f.key] != "u0" {
			f.Fatalf("a check of the site u0, whose node is %s, may run where %v", node, selector)
		}
		pods[0].Status.Phase = phase
		_, err := f.client.CoreV1().Pods(f.namespace).UpdateStatus(f.ctx, &pods[0], metav1.UpdateOptions{})
		return err
	})
}

// TestCheckWithoutRight: a controller that may not make Jobs waits, and says so. It goes on when it may.
func TestCheckWithoutRight(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	roles := f.client.RbacV1().ClusterRoles()
	role, err := roles.Get(f.ctx, "application-grid:controller", metav1.GetOptions{})
	f.Must(err)
	whole := role.DeepCopy().Rules
	setRules := func(without string) error {
		role, err := roles.Get(context.Background(), "application-grid:controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		role.Rules = nil
		for _, rule := range whole {
			if rule.APIGroups[0] != without {
				role.Rules = append(role.Rules, rule)
			}
		}
		_, err = roles.Update(context.Background(), role, metav1.UpdateOptions{})
		return err
	}
	f.Must(setRules("batch"))
	f.Cleanup(func() {
		if err := setRules("none"); err != nil {
			f.Error(err)
		}
	})
	f.waved(2, `{waves: [{name: canary, sites: {names: [u0]}, check: {template: {
		template: {metadata: {labels: {check: web}}, spec: {containers: [{name: check, image: curl}]}}}}}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.expectRollout("Soaking", "canary", "the check waits: ", "forbidden")
	f.staysAt("two one", 2*time.Second)
	f.Must(setRules("none"))
	f.expectRollout("Complete", "")
	f.expectRuns("two two")
}

// TestOrderedReady: a StatefulSet keeps the broken pod of a change that was undone. The grid says so, and goes on when
// somebody deletes it.
func TestOrderedReady(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.sites(2)
	f.apply(`{apiVersion: superedge.io/v1, kind: StatefulSetGrid, metadata: {name: db}, spec: {gridUniqKey: KEY, progressDeadlineSeconds: 10,
		template: {replicas: 1, serviceName: x, ` + selector + `, template: ` + podTemplate + `}, rollout: ` + canaryThenRest + `}}`)
	f.expectReady("StatefulSetGrid", "db", 2)
	expect := func(phase, says string) {
		t.Helper()
		f.Eventually("the rollout is "+phase, func() error {
			rollout, _, _ := unstructured.NestedMap(f.get("StatefulSetGrid", "db").Object, "status", "rollout")
			if message, _ := rollout["message"].(string); rollout["phase"] != phase || !strings.Contains(message, says) {
				return fmt.Errorf("%v: %s", rollout["phase"], message)
			}
			return nil
		})
	}
	expect("Complete", "")
	f.patch("StatefulSetGrid", "db", `spec: {template: {template: {spec: {nodeSelector: {no: where}}}}}`)
	expect("Halted", "u0: ")
	f.expectSaid("grid rollout undo ssg/db -n "+f.namespace, 0)
	expect("Progressing", "keeps the template of an earlier attempt until somebody deletes it, because podManagementPolicy is OrderedReady")
	f.Must(f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, "db-u0-0", metav1.DeleteOptions{}))
	expect("Complete", "")
	f.expectReady("StatefulSetGrid", "db", 2)
}
