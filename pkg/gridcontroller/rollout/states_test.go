package rollout

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// small is a world of three units in two waves, small enough to visit every state that it can reach. Its step is a
// minute. All of it is in the state, so that it can be copied.
type small struct {
	Units  [3]smallUnit
	Status *v1.RolloutStatus
	// Asked is what a person was asked for, and has answered.
	Approved, Resumed string
	// now is not part of the state: times are told by their age.
	now time.Time
}

type smallUnit struct {
	// Has: its workload has the change; Runs: so have its pods, since Age minutes, of which they were ready for Ready.
	Has, Runs  bool
	Age, Ready int
	// Silent is for how many minutes it has been silent; 0 for a unit that is heard. Proven is the truth.
	Silent int
	Proven bool
}

const (
	smallSoak     = 1 * time.Minute
	smallDeadline = 1 * time.Minute
	oldest        = 4 // minutes; what is older makes no difference any more
)

// key names the state.
func (s *small) key() string {
	of := *s
	of.Status = s.Status.DeepCopy()
	age := func(t *metav1.Time) {
		if t != nil {
			t.Time = time.Unix(int64(min(s.now.Sub(t.Time), oldest*time.Minute)/time.Second), 0)
		}
	}
	if of.Status != nil {
		of.Approved = fmt.Sprint(Approves(s.Approved, of.Status.Awaits))
		of.Resumed = fmt.Sprint(of.Status.HaltTime != nil && s.Resumed == of.Status.HaltTime.UTC().Format(time.RFC3339))
		age(of.Status.StartTime)
		age(of.Status.HaltTime)
		age(of.Status.OutageAccepted)
		// What follows from the rest makes no other state.
		st := of.Status
		st.Message, st.Awaits, st.Wave = "", "", ""
		st.Updated, st.Ready, st.Failed, st.Suspects, st.Deferred = 0, 0, 0, 0, 0
		for i, wave := range st.Waves {
			st.Waves[i] = v1.WaveStatus{State: wave.State}
		}
		for i := range of.Status.Units {
			u := &of.Status.Units[i]
			age(u.Since)
			age(u.ReadyTime)
			age(u.SilentTime)
			u.Message = ""
			if u.State == v1.RolloutUnitAccepted || u.State == v1.RolloutUnitFailed {
				u.Since = nil
			}
		}
	}
	data, err := json.Marshal(of)
	if err != nil {
		panic(err)
	}
	return string(data)
}

func (s *small) clone() *small {
	of := *s
	of.Status = s.Status.DeepCopy()
	return &of
}

// input is what the controller sees.
func (s *small) input() Input {
	in := Input{
		Rollout: &v1.Rollout{Waves: []v1.Wave{
			{Name: "first", Units: &v1.UnitSelector{}, Soak: &metav1.Duration{Duration: smallSoak}}, {Name: "rest"},
		}},
		Revision: "new", Update: "new", Current: "old", Deadline: smallDeadline, Status: s.Status,
		Approved: s.Approved, Resumed: s.Resumed, Now: s.now,
	}
	for i, u := range s.Units {
		unit := Unit{Name: fmt.Sprint("u", i), Wave: min(i, 1), Exists: true, Revision: "old", Ready: true}
		if u.Has {
			unit.Revision, unit.Ready = "new", u.Runs && u.Ready > 0
			if !unit.Ready && u.Age >= int(smallDeadline/time.Minute) {
				unit.Broken, unit.Tried = "no progress", "new"
			}
		}
		if u.Silent > 0 {
			unit.Silent, unit.SilentSince = true, s.now.Add(-time.Duration(u.Silent-1)*time.Minute)
			unit.Ready, unit.Broken = false, ""
		}
		in.Units = append(in.Units, unit)
	}
	return in
}

// pass is a reconciliation of which stop units are changed; with more than there are, the status is written.
func (s *small) pass(stop int) error {
	in := s.input()
	for i := range in.Units {
		u := s.Units[i]
		in.Units[i].Pods = &Pods{Acknowledged: u.Runs}
		if u.Ready > 0 {
			in.Units[i].Pods.ReadySince = s.now.Add(-time.Duration(u.Ready-1) * time.Minute)
		}
	}
	plan := New(in)
	for i := range s.Units {
		u := &s.Units[i]
		if i == stop {
			return nil
		}
		switch to := plan.Revisions[fmt.Sprint("u", i)]; {
		case to == "new" && !u.Has:
			passed := Approves(s.Approved, s.Status.Awaits) || s.Status.Waves[0].State == v1.WaveDone
			if i > 0 && !s.Units[0].Proven && !passed {
				return fmt.Errorf("u%d gets the change, and u0 has not proven it", i)
			}
			u.Has, u.Age = true, 0
		case to == "old" && u.Has:
			*u = smallUnit{Silent: u.Silent, Proven: u.Proven}
		}
	}
	if stop < len(s.Units) {
		return nil
	}
	for _, wave := range plan.Status.Waves[:1] {
		if wave.State == v1.WaveDone && !s.Units[0].Proven && !Approves(s.Approved, Approval("new", "first",
			plan.Status.StartTime, "unproven")) && (s.Status == nil || s.Status.Waves[0].State != v1.WaveDone) {
			return fmt.Errorf("the first wave is done, and u0 has not proven the change")
		}
	}
	unproven := 0
	for i := 1; i < len(s.Units); i++ {
		if s.Units[i].Has && !s.Units[i].Proven && plan.Status.Phase != v1.RolloutComplete {
			unproven++
		}
	}
	if unproven > 2 { // a place, and a suspect
		return fmt.Errorf("%d units of the second wave are unproven", unproven)
	}
	s.Status = plan.Status.DeepCopy()
	return nil
}

// next returns what may become of the state in a minute: the pods of one unit start, get ready or break, it falls
// silent or is heard, a person answers, the controller stops in the middle.
func (s *small) next() (all []*small, wrong error) {
	for event := range 5*len(s.Units) + 6 {
		n := s.clone()
		n.now = n.now.Add(time.Minute)
		for i := range n.Units {
			u := &n.Units[i]
			if u.Has {
				u.Age = min(u.Age+1, oldest)
			}
			if u.Ready > 0 && u.Silent == 0 {
				u.Ready = min(u.Ready+1, oldest)
			}
			if u.Silent > 0 {
				u.Silent = min(u.Silent+1, oldest)
			}
			if soak := map[bool]int{true: int(smallSoak / time.Minute)}[i == 0]; u.Runs && u.Ready > soak {
				u.Proven = true
			}
		}
		stop := len(n.Units)
		if event < 5*len(n.Units) {
			u := &n.Units[event/5]
			switch event % 5 {
			case 0:
				if u.Has && u.Silent == 0 {
					u.Runs = true
				}
			case 1:
				if u.Runs && u.Ready == 0 {
					u.Ready = 1
				}
			case 2:
				u.Ready = 0
			case 3:
				u.Silent = max(u.Silent, 1)
			case 4:
				u.Silent = 0
			}
		} else {
			switch event - 5*len(n.Units) {
			case 1:
				if n.Status != nil && n.Status.Awaits != "" {
					n.Approved = n.Status.Awaits
				}
			case 2:
				if n.Status != nil && n.Status.HaltTime != nil {
					n.Resumed = n.Status.HaltTime.UTC().Format(time.RFC3339)
				}
			case 3, 4, 5:
				stop = event - 5*len(n.Units) - 3
			}
		}
		if err := n.pass(stop); err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// TestEveryState visits the states that a world of three units can reach, each once, the nearest first: a tenth of
// -rollout.steps of them.
func TestEveryState(t *testing.T) {
	t.Parallel()
	most := *steps / 10
	start := &small{now: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)}
	seen := map[string]bool{start.key(): true}
	queue := []*small{start}
	for len(queue) > 0 && len(seen) < most {
		s := queue[0]
		queue = queue[1:]
		all, err := s.next()
		if err != nil {
			t.Fatalf("%v after %s", err, s.key())
		}
		for _, n := range all {
			if key := n.key(); !seen[key] {
				seen[key] = true
				queue = append(queue, n)
			}
		}
	}
	t.Logf("%d states, %d not followed", len(seen), len(queue))
}
