package gridview

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
	"github.com/application-grid/application-grid/pkg/topology"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func grid(generation int64) *v1.DeploymentGrid {
	return &v1.DeploymentGrid{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "echo", UID: "u", Generation: generation},
		Spec:       v1.WorkloadGridSpec{GridUniqKey: "zone1"},
	}
}

func conditions(status metav1.ConditionStatus, reason, message string) []metav1.Condition {
	return []metav1.Condition{{Type: v1.ConditionReady, Status: status, Reason: reason, Message: message}}
}

// childrenOf makes objects of the names; the values are the UIDs of the grids that control them.
func childrenOf(uids map[string]string) map[string]metav1.Object {
	children := map[string]metav1.Object{}
	for name, uid := range uids {
		annotations := map[string]string{v1.AnnotationTopologyKeys: `["zone1"]`}
		if left, open := strings.CutPrefix(uid, "open "); open {
			uid, annotations = left, nil
		}
		children[name] = &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: name,
			Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{
				{Kind: "DeploymentGrid", Name: "grid-" + uid, UID: types.UID(uid), Controller: ptr.To(true)},
			}}}
	}
	return children
}

// inWords is "site phase ready/desired nodes: problem" of each site.
func inWords(sites []Site) string {
	var words []string
	for _, u := range sites {
		nodes := "-"
		if u.Nodes != nil {
			nodes = fmt.Sprint(*u.Nodes)
		}
		words = append(words, fmt.Sprintf("%s %s %d/%d %s: %s", u.Name, u.Phase, u.Ready, u.Desired, nodes, u.Problem))
	}
	return strings.Join(words, "; ")
}

// TestSiteStates: every state that a site can be in, in words.
func TestSiteStates(t *testing.T) {
	nodes := map[string]topology.Labels{"n1": {"zone1": "east"}, "n2": {"zone1": "east"}, "n3": {}}
	ready := v1.SiteState{Phase: v1.SiteReady, Replicas: 2, ReadyReplicas: 2, UpdatedReplicas: 2, AvailableReplicas: 2}
	progressing := func(replicas, ready, updated, available int64) map[string]v1.SiteState {
		return map[string]v1.SiteState{"east": {Phase: v1.SiteProgressing, Replicas: replicas, ReadyReplicas: ready,
			UpdatedReplicas: updated, AvailableReplicas: available}}
	}
	for _, test := range []struct {
		name     string
		states   map[string]v1.SiteState
		nodes    map[string]topology.Labels
		children map[string]string // name: UID of the controller; nil if they could not be read
		want     string            // see inWords
	}{
		{"ready", map[string]v1.SiteState{"east": ready}, nodes, map[string]string{"echo-east": "u"},
			"east Ready 2/2 2: "},
		{"nothing but the status can be read", map[string]v1.SiteState{"east": ready}, nil, nil, "east Ready 2/2 -: "},
		{"a pod is missing", progressing(3, 1, 3, 0), nodes, nil, "east Progressing 1/3 2: 2 of 3 pods not ready"},
		{"a rollout", progressing(3, 3, 1, 0), nodes, nil, "east Progressing 3/3 2: 2 of 3 pods not updated yet"},
		{"pods have to prove themselves", progressing(1, 1, 1, 0), nodes, nil,
			"east Progressing 1/1 2: 1 of 1 pods not available yet"},
		{"old pods are left", progressing(1, 1, 1, 1), nodes, nil,
			"east Progressing 1/1 2: Deployment echo-east is being created or changed"},
		{"refused", map[string]v1.SiteState{"east": {Phase: v1.SiteFailed, Reason: v1.ReasonRejected,
			Message: "field is immutable"}}, nodes, map[string]string{},
			"east Failed 0/0 2: Rejected: field is immutable"},
		{"one failure of very many", map[string]v1.SiteState{"east": {Phase: v1.SiteFailed, Reason: v1.ReasonRejected}},
			nodes, nil, "east Failed 0/0 2: Rejected"},
		{"vanished", map[string]v1.SiteState{"east": ready, "west": {Phase: v1.SiteRemoving, Replicas: 1,
			ReadyReplicas: 1, RemovalTime: ptr.To(metav1.NewTime(now.Add(90 * time.Second)))}},
			nodes, map[string]string{"echo-east": "u"},
			"east Ready 2/2 2: ; west Removing 1/1 0: no node is in this site any more; Deployment echo-west is " +
				"removed in 1m30s unless one comes back"},
		{"vanished for long", map[string]v1.SiteState{"east": ready, "west": {Phase: v1.SiteRemoving,
			RemovalTime: ptr.To(metav1.NewTime(now)), Message: "denied"}}, nodes, nil,
			"east Ready 2/2 2: ; west Removing 0/0 0: no node is in this site any more; Deployment echo-west is " +
				"removed now: denied"},
		{"SuperEdge's status",
			map[string]v1.SiteState{"east": {Replicas: 2, ReadyReplicas: 2}, "gone": {Replicas: 1}}, nodes,
			map[string]string{"echo-east": "u"},
			"east Unknown 2/2 2: the controller has not reported on this site yet"},
		{"the controller is away: a new site", nil, nodes, nil, "east Unknown 0/0 2: the controller has not reported " +
			"on this site yet"},
		{"the controller is away: a new site, and children", nil, nodes, map[string]string{},
			"east Missing 0/0 2: there is no Deployment echo-east of this grid"},
		{"the controller is away: deleted", map[string]v1.SiteState{"east": ready}, nodes, map[string]string{},
			"east Missing 2/2 2: there is no Deployment echo-east of this grid"},
		{"the name is taken", map[string]v1.SiteState{"east": ready}, nodes, map[string]string{"echo-east": "v"},
			"east Failed 2/2 2: NameConflict: Deployment echo-east exists already and belongs to DeploymentGrid " +
				"grid-v"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := Surroundings{Nodes: test.nodes, Now: now}
			if test.children != nil {
				s.Children = childrenOf(test.children)
			}
			g := grid(1)
			g.Status = v1.WorkloadGridStatus{ObservedGeneration: 1, States: test.states,
				Conditions: conditions(metav1.ConditionTrue, v1.ReasonReady, "")}
			answer := Workloads(v1.DeploymentGridKind, g, s)
			if got := inWords(answer.Sites); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
			unready := slices.ContainsFunc(answer.Sites, func(u Site) bool { return u.Phase != v1.SiteReady })
			if answer.Healthy == unready || answer.Problem != "" {
				t.Errorf("got %+v", answer)
			}
		})
	}
}

// TestGridProblems: what concerns a grid as a whole.
func TestGridProblems(t *testing.T) {
	ok := func(observed int64) v1.WorkloadGridStatus {
		return v1.WorkloadGridStatus{ObservedGeneration: observed,
			Conditions: conditions(metav1.ConditionTrue, v1.ReasonReady, "")}
	}
	for _, test := range []struct {
		name       string
		generation int64
		deleted    bool
		status     v1.WorkloadGridStatus
		want       string
	}{
		{"none", 1, false, ok(1), ""},
		{"no controller", 1, false, v1.WorkloadGridStatus{}, "is application-grid-controller running?"},
		{"no controller any more", 3, false, ok(2), "generation 2 of 3"},
		{"no sites", 1, false, v1.WorkloadGridStatus{ObservedGeneration: 1,
			Conditions: conditions(metav1.ConditionFalse, v1.ReasonNoSites, "no node has the label zone1")},
			"NoSites: no node has the label zone1"},
		{"no key", 1, false, v1.WorkloadGridStatus{ObservedGeneration: 1, Conditions: conditions(metav1.ConditionFalse,
			v1.ReasonInvalidKey, "empty")}, "InvalidKey: empty"},
		{"deleted", 1, true, ok(1), "being deleted"},
	} {
		g := grid(test.generation)
		if test.deleted {
			g.DeletionTimestamp = &metav1.Time{Time: now}
		}
		g.Status = test.status
		answer := Workloads(v1.DeploymentGridKind, g, Surroundings{Now: now})
		if !strings.Contains(answer.Problem, test.want) || answer.Healthy != (test.want == "") ||
			(test.want == "" && answer.Problem != "") {
			t.Errorf("%s: got %+v", test.name, answer)
		}
	}
}

// TestCountedSites: the status of a large grid only counts most sites. Such a site is left out, unless there is no
// workload of it.
func TestCountedSites(t *testing.T) {
	nodes := map[string]topology.Labels{"n1": {"zone1": "east"}, "n2": {"zone1": "west"}}
	ready := map[string]v1.SiteState{"east": {Phase: v1.SiteReady}}
	for _, test := range []struct {
		unlistedReady, unlisted int32
		children                map[string]string
		want                    string
	}{
		{1, 0, nil, "east Ready 0/0 1: "},
		{1, 1, nil, "east Ready 0/0 1: "},
		{0, 0, nil, "east Ready 0/0 1: ; west Unknown 0/0 1: the controller has not reported on this site yet"},
		{1, 0, map[string]string{"echo-east": "u", "echo-west": "u"}, "east Ready 0/0 1: "},
		{1, 0, map[string]string{"echo-east": "u"},
			"east Ready 0/0 1: ; west Missing 0/0 1: there is no Deployment echo-west of this grid"},
	} {
		g := grid(1)
		g.Status = v1.WorkloadGridStatus{ObservedGeneration: 1, States: ready, UnlistedReadySites: test.unlistedReady,
			UnlistedSites: test.unlisted, Conditions: conditions(metav1.ConditionTrue, v1.ReasonReady, "")}
		s := Surroundings{Nodes: nodes, Now: now}
		if test.children != nil {
			s.Children = childrenOf(test.children)
		}
		if got := inWords(Workloads(v1.DeploymentGridKind, g, s).Sites); got != test.want {
			t.Errorf("%d ready and %d others are counted, children %v: got %s", test.unlistedReady, test.unlisted,
				test.children, got)
		}
	}
}

// TestGridConditions: the sites have the problems that a condition sums up. A grid has its own in addition.
func TestGridConditions(t *testing.T) {
	removal := metav1.Condition{Type: v1.ConditionDegraded, Status: metav1.ConditionTrue, Reason: v1.ReasonMassRemoval,
		Message: "9 sites"}
	other := removal
	other.Reason = v1.ReasonRejected
	for _, test := range []struct {
		reason    string
		more      []metav1.Condition
		deleted   bool
		problem   string
		rollsOut  bool
		siteFails bool
	}{
		{reason: v1.ReasonReady},
		{reason: v1.ReasonRejected, siteFails: true},
		{reason: v1.ReasonInvalidKey, problem: "InvalidKey: why"},
		{reason: v1.ReasonRollout, problem: "why", rollsOut: true},
		{reason: v1.ReasonRollout, problem: "why", siteFails: true},
		{reason: v1.ReasonRollout, deleted: true, problem: "the grid is being deleted"},
		{reason: v1.ReasonReady, more: []metav1.Condition{removal}, problem: "MassRemoval: 9 sites"},
		{reason: v1.ReasonReady, more: []metav1.Condition{other}},
		{reason: v1.ReasonRollout, more: []metav1.Condition{removal}, problem: "why"},
	} {
		g := grid(1)
		state, status := v1.SiteState{Phase: v1.SiteReady}, metav1.ConditionFalse
		if test.siteFails {
			state.Phase = v1.SiteFailed
		}
		if test.reason == v1.ReasonReady {
			status = metav1.ConditionTrue
		}
		if test.deleted {
			g.DeletionTimestamp = &metav1.Time{Time: now}
		}
		g.Status = v1.WorkloadGridStatus{ObservedGeneration: 1, States: map[string]v1.SiteState{"east": state},
			Conditions: append(conditions(status, test.reason, "why"), test.more...)}
		got := Workloads(v1.DeploymentGridKind, g, Surroundings{Now: now})
		if got.Problem != test.problem || got.RollsOut != test.rollsOut ||
			got.Healthy != (test.problem == "" && !test.siteFails) {
			t.Errorf("%+v: got %+v", test, got)
		}
	}
}

// TestSiteWithTwoWorkloads: the one whose name is derived from the site counts, or else the first.
func TestSiteWithTwoWorkloads(t *testing.T) {
	for _, test := range []struct{ first, second, want string }{
		{"echo-east", "echo-z", "echo-east"}, {"echo-a", "echo-east", "echo-east"}, {"echo-a", "echo-z", "echo-a"},
	} {
		s := Surroundings{Now: now, Children: childrenOf(map[string]string{test.first: "u", test.second: "u"})}
		for _, child := range s.Children {
			child.SetLabels(map[string]string{v1.LabelGridSite: "east"})
		}
		g := grid(1)
		g.Status = v1.WorkloadGridStatus{ObservedGeneration: 1,
			States:     map[string]v1.SiteState{"east": {Phase: v1.SiteReady}},
			Conditions: conditions(metav1.ConditionTrue, v1.ReasonReady, "")}
		if got := Workloads(v1.DeploymentGridKind, g, s).Sites[0].Child; got != test.want {
			t.Errorf("of %s and %s: %s", test.first, test.second, got)
		}
	}
}

func TestServiceGrids(t *testing.T) {
	ready := v1.ServiceGridStatus{ObservedGeneration: 1, Sites: 2, Conditions: conditions(metav1.ConditionTrue,
		v1.ReasonReady, "")}
	rejected := v1.ServiceGridStatus{ObservedGeneration: 1, Conditions: conditions(metav1.ConditionFalse,
		v1.ReasonRejected, "the port is taken")}
	for _, test := range []struct {
		name     string
		status   v1.ServiceGridStatus
		children map[string]string
		want     string
	}{
		{"ready", ready, map[string]string{"echo-svc": "u"}, ""},
		{"Services cannot be read", ready, nil, ""},
		{"rejected", rejected, map[string]string{}, "Rejected: the port is taken"},
		{
			"deleted, and the controller is away", ready, map[string]string{},
			"this grid has no Service echo-svc",
		},
		{"the name is taken", ready, map[string]string{"echo-svc": "v"},
			"NameConflict: Service echo-svc exists already and belongs to DeploymentGrid grid-v"},
		{"somebody took its keys away, and the controller is away", ready, map[string]string{"echo-svc": "open u"},
			`Service echo-svc does not have the topologyKeys of this grid, ["zone1"]; is application-grid-controller ` +
				"running?"},
	} {
		g := &v1.ServiceGrid{ObjectMeta: grid(1).ObjectMeta, Spec: v1.ServiceGridSpec{GridUniqKey: "zone1"},
			Status: test.status}
		s := Surroundings{Now: now}
		if test.children != nil {
			s.Children = childrenOf(test.children)
		}
		if answer := Service(g, s); answer.Problem != test.want || answer.Healthy != (test.want == "") ||
			answer.Service != "echo-svc" {
			t.Errorf("%s: got %+v", test.name, answer)
		}
	}
}

// TestAbsoluteTimes: without a clock a state does not change as time goes by.
func TestAbsoluteTimes(t *testing.T) {
	g := grid(1)
	g.Status.States = map[string]v1.SiteState{
		"west": {Phase: v1.SiteRemoving, RemovalTime: ptr.To(metav1.NewTime(now.Add(90 * time.Second)))},
	}
	want := "no node is in this site any more; Deployment echo-west is removed at 2026-01-02T03:05:35Z unless one " +
		"comes back"
	if sites := Workloads(v1.DeploymentGridKind, g, Surroundings{}).Sites; len(sites) != 1 || sites[0].Problem != want {
		t.Errorf("got %+v", sites)
	}
}
