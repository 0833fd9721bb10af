package grid

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/suite"
)

// The tests of this file are histories of users whose rollouts went wrong, or got stuck.

// label sets a label of a site's node.
func (f *fixture) label(node, key, value string) {
	f.Helper()
	f.Must(f.Cluster.RelabelNode(f.ctx, node, key, value))
}

// never fails the test if one of the phases is said before ask is answered without an error.
func (f *fixture) never(phase, what string, ask func() error) {
	f.Helper()
	f.lookedAt(closely, what, func() error {
		err := ask()
		if rollout := f.rolloutOf("demo"); err != nil && rollout["phase"] == phase {
			f.Fatalf("%s, and %v: %v", phase, err, rollout)
		}
		return err
	})
}

// TestSitesMoveIntoAPassedWave by a label of their nodes, before they have the change. They get it there, and until
// then the rollout is not complete.
func TestSitesMoveIntoAPassedWave(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.wavedWell(4, `{waves: [{name: canary, sites: {names: [u0], nodeSelector: {matchLabels: {region: lab}}}},
		{name: rest, maxUnavailable: 1, soak: 1m}]}`)
	f.setImage("two", "{}")
	f.expectRuns("two two one one") // u1 soaks
	f.label(s["u2"], "region", "lab")
	f.label(s["u3"], "region", "lab")
	f.label(s["u1"], "region", "lab")
	f.never("Complete", "all have it", suite.Is("two two two two", f.runs))
	f.expectRollout("Complete", "")
}

// TestProofIsOfOneSite: the node of a proven canary is deleted, that of another one registers again, where the change
// does not run. The rest does not begin.
func TestProofIsOfOneSite(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.wavedWell(4, `{waves: [{name: canary, sites: {names: [u0, u1]}, maxUnavailable: 2}, {name: rest}]}`)
	f.label(s["u0"], "arch", "new")
	f.setImage("two", "{arch: new}")
	f.inTime("one is proven", suite.Is[any](int64(1), func() any { return f.rolloutOf("demo")["proven"] }))
	f.relabel(s["u0"], "")
	f.relabel(s["u1"], "")
	time.Sleep(time.Second) // of a kubelet that restarts
	f.relabel(s["u1"], "u1")
	f.stays("the rest does not begin", 4*time.Second, suite.Is("one one", func() string {
		runs := strings.Fields(f.runs())
		return strings.Join(runs[len(runs)-2:], " ")
	}))
}

// TestLabelIsAwayForAMoment: the nodes of two sites lose their label in the midst of a rollout, and get it back. What
// others have proven counts.
func TestLabelIsAwayForAMoment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.wavedWell(4, `{waves: [{name: some, sites: {names: [u0, u1]}, approval: Manual}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.expectRollout("AwaitingApproval", "some", "asks for an approval")
	for _, site := range []string{"u0", "u2"} {
		f.relabel(s[site], "")
	}
	time.Sleep(2 * time.Second)
	for _, site := range []string{"u0", "u2"} {
		f.relabel(s[site], site)
	}
	f.inTime("two are proven, of two waves", suite.Is("2 2", func() string {
		rollout := f.rolloutOf("demo")
		return fmt.Sprint(rollout["proven"], " ", len(rollout["waves"].([]any)))
	}))
	f.expectSaid("grid rollout approve dg/demo -n "+f.namespace, 0)
	f.expectRollout("Complete", "")
	f.expectRuns("two two two two")
}

// TestLostNodeOfADaemonSet: a lost node, whose pod cannot end, uses up the maxUnavailable of a DaemonSet. The site does
// not count as proven while a node that can be reached runs the old pod.
func TestLostNodeOfADaemonSet(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	nodes := f.nodesIn("lab", "lab", "lab", "east")
	f.apply(`{apiVersion: superedge.io/v1, kind: DaemonSetGrid, metadata: {name: demo}, spec: {gridUniqKey: KEY,
		template: {` + selector + `, template: ` + podTemplate + `},
		rollout: {waves: [{name: canary, sites: {names: [lab]}}, {name: rest}]}}}`)
	f.expectReady("DaemonSetGrid", "demo", 2)
	finalizers := func(value string) {
		for _, pod := range f.pods("demo-lab-") {
			if pod.Spec.NodeName == nodes[0] {
				patch := fmt.Appendf(nil, `{"metadata":{"finalizers":%s}}`, value)
				_, err := f.client.CoreV1().Pods(f.namespace).Patch(f.ctx, pod.Name, "application/merge-patch+json", patch,
					metav1.PatchOptions{})
				f.Must(err)
			}
		}
	}
	finalizers(`["example.com/lost"]`)
	defer finalizers("null")
	f.report(nodes[0], corev1.ConditionUnknown)
	f.patch("DaemonSetGrid", "demo", `spec: {template: {template: {spec: {containers: [{name: c, image: two}]}}}}`)
	image := func(site string) string { return f.imageOf("DaemonSet", "demo-"+site) }
	f.inTime("the canary has it", suite.Is("two", func() string { return image("lab") }))
	old := func() int {
		n := 0
		for _, pod := range f.pods("demo-lab-") {
			if pod.Spec.NodeName != nodes[0] && pod.Spec.Containers[0].Image == "one" {
				n++
			}
		}
		return n
	}
	f.stays("the rest does not begin while the old pod runs in the canary", 6*time.Second, func() error {
		if n := old(); n > 0 && image("east") == "two" {
			return fmt.Errorf("%d run", n)
		}
		return nil
	})
	finalizers("null")
	f.report(nodes[0], corev1.ConditionTrue)
	f.inTime("the rest has it", suite.Is("two", func() string { return image("east") }))
	f.inTime("no old pod runs", suite.Is(0, old))
}

// TestProvenWorkloadIsDeleted: it comes back with the change, and has to prove it again.
func TestProvenWorkloadIsDeleted(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.wavedWell(2, `{waves: [{name: canary, sites: {names: [u0]}, approval: Manual}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.expectRollout("AwaitingApproval", "canary")
	before := f.get("Deployment", "demo-u0").GetUID()
	f.Must(f.of("Deployment").Delete(f.ctx, "demo-u0", metav1.DeleteOptions{}))
	f.Eventually("it is made again", func() error {
		d, err := f.of("Deployment").Get(f.ctx, "demo-u0", metav1.GetOptions{})
		if err != nil || d.GetUID() == before {
			return fmt.Errorf("it is not: %w", err)
		}
		if !strings.Contains(fmt.Sprint(d.Object["spec"]), "image:two") {
			f.Fatalf("it has %v", d.Object["spec"])
		}
		return nil
	})
	f.expectRollout("AwaitingApproval", "canary")
	f.expectRuns("two one")
}

// TestRollbackOfThree: a change fails at the canary while sites have another one, which was given up. All go back.
func TestRollbackOfThree(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.waved(4, `{onFailure: Rollback, waves: [
		{name: canary, sites: {names: [u0]}}, {name: rest, maxUnavailable: 2, soak: 10m}]}`)
	f.setImage("two", "{}")
	f.expectRuns("two two two one")
	f.setImage("broken", "{no: where}")
	f.expectRollout("RolledBack", "", "u0: ")
	f.expectRuns("one one one one")
}

// TestApprovedSilencePardonsNoFailure: a person lets the rollout go on without a silent site. It returns, and the
// change does not run there.
func TestApprovedSilencePardonsNoFailure(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.waved(4, `{waves: [{name: canary, sites: {names: [u0]}}, {name: some, sites: {names: [u1]}},
		{name: rest, sites: {names: [u2]}, soak: 10m}, {name: last}]}`)
	for _, site := range []string{"u0", "u2", "u3"} {
		f.label(s[site], "arch", "new")
	}
	f.setImage("two", "{arch: new}")
	f.expectRuns("two two one one")
	s.heard(f, corev1.ConditionUnknown, "u1")
	f.expectRollout("AwaitingApproval", "some")
	f.expectSaid("grid rollout approve dg/demo -n "+f.namespace, 0)
	f.expectRuns("two one two one") // no kubelet of u1 has seen it
	s.heard(f, corev1.ConditionTrue, "u1")
	f.expectRollout("Halted", "rest", "u1: ")
}

// TestNewGridThatRunsNowhere is not complete: rollout status waits for it, and then says that its sites failed.
func TestNewGridThatRunsNowhere(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.sites(2)
	f.apply(strings.NewReplacer("ROLLOUT", canaryThenRest, "progressDeadlineSeconds: 120", "progressDeadlineSeconds: 12",
		"terminationGracePeriodSeconds", "nodeSelector: {no: where}, terminationGracePeriodSeconds").Replace(waved))
	f.never("Complete", "it has failed", suite.Is[any]("Halted", func() any { return f.rolloutOf("demo")["phase"] }))
	f.expectSaid("grid rollout status dg/demo -n "+f.namespace, 4, "2 failed, 0 allowed: u0: ")
	f.patch("DeploymentGrid", "demo",
		`spec: {progressDeadlineSeconds: 120, template: {template: {spec: {nodeSelector: null}}}}`)
	f.expectRollout("Complete", "")
}

// TestFailedSiteIsHeld: a person holds a site that has failed, to look into it, and resumes the rollout.
func TestFailedSiteIsHeld(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.waved(4, `{waves: [{name: all, maxUnavailable: 1}]}`)
	for _, site := range []string{"u1", "u2", "u3"} {
		f.label(s[site], "arch", "new")
	}
	f.setImage("two", "{arch: new}")
	f.expectRollout("Halted", "all", "u0: ")
	f.patch("Deployment", "demo-u0", `metadata: {annotations: {superedge.io/hold: looked into}}`)
	f.expectSaid("grid rollout resume dg/demo -n "+f.namespace, 0)
	f.expectRollout("Complete", "")
	f.expectRuns("two two two two")
}

// TestQuotaForAMoment: a quota refuses the pod of a change until it is raised. That is no failure.
func TestQuotaForAMoment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.wavedWell(3, canaryThenRest)
	remove := f.quota(3)
	f.setImage("two", "{}")
	status := func(kind, name string) func() error {
		return says("exceeded quota", func() string { return fmt.Sprint(f.get(kind, name).Object["status"]) })
	}
	f.inTime("a pod is refused", status("Deployment", "demo-u0"))
	f.Eventually("the status says so", status("DeploymentGrid", "demo"))
	remove()
	f.never("Halted", "it goes on", suite.Is("two two two", f.runs))
	f.expectRollout("Complete", "")
}

// TestForbiddenForAMoment: a policy forbids to change a Deployment for some seconds.
func TestForbiddenForAMoment(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.wavedWell(3, `{onFailure: Rollback, waves: [{name: canary, sites: {names: [u0]}}, {name: rest, maxUnavailable: 1}]}`)
	f.createAdmission("validatingadmissionpolicies", `{kind: ValidatingAdmissionPolicy, metadata: {name: NAME}, spec: {
		matchConstraints: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAME}},
			resourceRules: [{operations: [UPDATE], apiGroups: [apps], apiVersions: [v1], resources: [deployments]}]},
		validations: [{expression: 'object.metadata.name != "demo-u1"', message: not now, reason: Forbidden}]}}`)
	remove := f.createAdmission("validatingadmissionpolicybindings", `{kind: ValidatingAdmissionPolicyBinding, metadata: {name: NAME},
		spec: {policyName: NAME, validationActions: [Deny]}}`)
	f.Eventually("the policy works", func() error {
		_, err := f.of("Deployment").Patch(f.ctx, "demo-u1", "application/merge-patch+json",
			[]byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("it lets all pass")
		}
		return nil
	})
	f.setImage("two", "{}")
	f.expectCondition("DeploymentGrid", "demo", "Degraded=True", "SitesFailed", "u1: ", "not now")
	f.expectRuns("two one one")
	remove()
	f.never("RolledBack", "it goes on", suite.Is("two two two", f.runs))
	f.expectRollout("Complete", "")
}

// TestCheckBesideALostNode: a site of two nodes has lost one, on which its check does not run. The check fails once.
func TestCheckBesideALostNode(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.report(f.node("u0"), corev1.ConditionUnknown)
	s := f.waved(2, `{waves: [{name: canary, sites: {names: [u0]}, check: {deadlineSeconds: 60, template: {backoffLimit: 0,
		template: {metadata: {labels: {check: web}}, spec: {schedulingGates: [{name: example.com/test}],
		containers: [{name: check, image: curl}]}}}}}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.endCheck(s["u0"], corev1.PodFailed)
	f.expectRollout("Halted", "canary", "u0: its check failed: BackoffLimitExceeded")
	f.expectRuns("two one")
}

// TestQuestionIsAskedAgain: the API server does not list pods when a site falls silent before its kubelet has seen the
// change. The workload is put back when it does.
func TestQuestionIsAskedAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, alone)
	s := f.wavedWell(3, `{waves: [{name: all, maxUnavailable: 1, soak: 10m}]}`)
	misled, interposer := f.misled("--leader-elect=false")
	f.Must(misled.Start(f.ctx))
	f.led()
	interposer.Behave(cluster.Behaviour{Alter: func(response *http.Response) {
		if strings.HasSuffix(response.Request.URL.Path, "/pods") {
			response.StatusCode = http.StatusServiceUnavailable
		}
	}})
	s.heard(f, corev1.ConditionUnknown, "u2") // so that it is no outage, it was silent before
	f.expectSilent("u2")
	f.setImage("two", "{no: where}")
	f.expectRuns("two one one")
	s.heard(f, corev1.ConditionUnknown, "u0")
	f.staysAt("two one one", 3*time.Second)
	interposer.Behave(cluster.Behaviour{})
	f.expectRuns("one two one")
}

// TestClockAhead: the clock of a node is 20 minutes ahead.
func TestClockAhead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.wavedWell(2, `{waves: [{name: canary, sites: {names: [u0]}, soak: 4s}, {name: rest}]}`)
	f.setImage("two", "{}")
	f.inTime("the pod tells the time of its node", func() error {
		for _, pod := range f.pods("demo-u0-") {
			if pod.Spec.Containers[0].Image != "two" || pod.Status.Phase != corev1.PodRunning {
				continue
			}
			ahead := metav1.NewTime(time.Now().Add(20 * time.Minute))
			pod.Status.StartTime = &ahead
			for i := range pod.Status.Conditions {
				pod.Status.Conditions[i].LastTransitionTime = ahead
			}
			for i := range pod.Status.ContainerStatuses {
				if running := pod.Status.ContainerStatuses[i].State.Running; running != nil {
					running.StartedAt = ahead
				}
			}
			_, err := f.client.CoreV1().Pods(f.namespace).UpdateStatus(f.ctx, &pod, metav1.UpdateOptions{})
			return err
		}
		return fmt.Errorf("it does not run")
	})
	f.never("Halted", "all have it", suite.Is("two two", f.runs))
	f.expectRollout("Complete", "")
}

// TestPausedInAnOutage: a person pauses a rollout because of an outage. Nothing happens, so nothing is written.
func TestPausedInAnOutage(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	s := f.wavedWell(3, `{waves: [{name: all, maxUnavailable: 1, soak: 10m}]}`)
	f.setImage("two", "{}")
	f.expectRuns("two one one")
	s.heard(f, corev1.ConditionUnknown, "u1", "u2")
	f.expectRollout("Outage", "all")
	f.patch("DeploymentGrid", "demo", `spec: {rollout: {paused: true}}`)
	f.expectRollout("Paused", "all")
	f.awaitRest(5 * time.Second) // what was under way is told first: pods of the silent nodes are no longer ready
}

// TestGridIsMadeAgain: kubectl replace --force. What the former grid left does not belong to somebody else: the grid
// waits for the old children to go, which is nothing to warn of.
func TestGridIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t, shared)
	f.wavedWell(2, canaryThenRest)
	for range 3 {
		old := f.get("Deployment", "demo-u0").GetUID()
		f.Must(f.of("DeploymentGrid").Delete(f.ctx, "demo", metav1.DeleteOptions{
			PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
		}))
		f.apply(strings.ReplaceAll(waved, "ROLLOUT", canaryThenRest))
		f.lookedAt(closely, "it runs", func() error {
			grid := f.get("DeploymentGrid", "demo")
			if text := fmt.Sprint(conditions(grid)); strings.Contains(text, "ControllerRevision") &&
				strings.Contains(text, "NameConflict") {
				f.Fatalf("%s", text)
			}
			phase, _, _ := unstructured.NestedString(grid.Object, "status", "rollout", "phase")
			ready, _, _ := unstructured.NestedInt64(grid.Object, "status", "readySites")
			if phase != "Complete" || ready != 2 || f.get("Deployment", "demo-u0").GetUID() == old {
				return fmt.Errorf("%s, %d sites are ready", phase, ready)
			}
			return nil
		})
	}
	events, err := f.client.EventsV1().Events(f.namespace).List(f.ctx, metav1.ListOptions{})
	f.Must(err)
	for _, event := range events.Items {
		if event.Regarding.Kind == "DeploymentGrid" && event.Type == corev1.EventTypeWarning {
			f.Errorf("%s: %s", event.Reason, event.Note)
		}
	}
}
