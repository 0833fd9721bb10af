package rollout

import (
	"testing"
	"time"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// TestCheckIsAskedAgain: nobody follows the Jobs of checks, so the plan is made again while one runs. Its success
// proves the site, and its failure fails it.
func TestCheckIsAskedAgain(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	in := Input{
		Rollout:  &v1.Rollout{Waves: []v1.Wave{{Name: "all", Check: &v1.Check{}}}},
		Revision: "two", Update: "one", Current: "one", Deadline: time.Minute, Now: now,
		Sites: []Site{{Name: "u", Exists: true, Revision: "one", Ready: true}},
	}
	in.Status, in.Update = New(in).Status, "two" // the site is listed, and gets the revision
	in.Sites[0].Revision = "two"
	for _, c := range []struct {
		name   string
		result *CheckResult
		state  v1.RolloutSiteState
	}{
		{"it has not begun", nil, v1.RolloutSiteChecking},
		{"it runs", &CheckResult{Message: "Job j runs"}, v1.RolloutSiteChecking},
		{"it has passed", &CheckResult{Passed: true}, ""},
		{"it has failed", &CheckResult{Failed: true}, v1.RolloutSiteFailed},
	} {
		in.Sites[0].Check = c.result
		plan := New(in)
		state := v1.RolloutSiteState("")
		if len(plan.Status.Sites) > 0 {
			state = plan.Status.Sites[0].State
		}
		if state != c.state {
			t.Errorf("%s: the site is %q, want %q", c.name, state, c.state)
		}
		soon := !plan.Again.IsZero() && !plan.Again.After(now.Add(podsAgain))
		if soon != (c.state == v1.RolloutSiteChecking) {
			t.Errorf("%s: the plan is made again at %s", c.name, plan.Again)
		}
	}
}

// TestNewSiteProvesNothing: a site that joins after a rollout is complete gets what runs everywhere, without a check.
func TestNewSiteProvesNothing(t *testing.T) {
	plan := New(Input{
		Rollout:  &v1.Rollout{Waves: []v1.Wave{{Name: "all", Check: &v1.Check{}}}},
		Revision: "one", Deadline: time.Minute, Now: time.Now(), Sites: []Site{{Name: "new"}},
	})
	if plan.Revisions["new"] != "one" || len(plan.Status.Sites) > 0 ||
		plan.Status.Phase != v1.RolloutComplete {
		t.Errorf("it gets %q; the status lists %v, phase %s", plan.Revisions["new"], plan.Status.Sites,
			plan.Status.Phase)
	}
}
