package rollout

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/application-grid/application-grid/pkg/apis/superedge.io/v1"
)

// fleet is a world of many sites that work, with a canary, a tenth, and the rest.
func fleet(sites int) *world {
	w := emptyWorld(1)
	w.now = w.now.Add(8 * time.Hour)
	soak := &metav1.Duration{Duration: 30 * time.Minute}
	some := &v1.SiteSelector{Names: []string{"x"}}
	w.in = Input{Deadline: deadline, Rollout: &v1.Rollout{Waves: []v1.Wave{
		{Name: "canary", Sites: some, Soak: soak}, {Name: "tenth", Sites: some, Soak: soak}, {Name: "rest", Soak: soak},
	}}}
	for i := range sites {
		planned := Site{Name: fmt.Sprintf("site%03d", i), Wave: 2}
		if i < sites/10 {
			planned.Wave = 1
		}
		if i < 3 {
			planned.Wave = 0
		}
		w.sites = append(w.sites, &site{site: planned, proven: map[string]bool{}, readyDelay: time.Minute})
	}
	return w
}

// minutes lets time pass; each minute something happens, and the controller looks.
func (w *world) minutes(n int, happens func()) v1.RolloutPhase {
	for range n {
		w.now = w.now.Add(time.Minute)
		happens()
		for _, s := range w.sites {
			w.live(s)
		}
		w.pass(-1)
		w.judge()
	}
	return w.in.Status.Phase
}

// TestOrdinaryDays: what happens every day halts no rollout that works: 3 of 500 shops drop off and come back hours
// later, or all of them are switched off for the night, and nobody is asked for anything.
func TestOrdinaryDays(t *testing.T) {
	t.Parallel()
	for name, happens := range map[string]func(*world){
		"three shops a day": func(w *world) {
			if w.rand.IntN(24*60) < 3 {
				w.goSilent(w.pick())
			}
			for _, s := range w.sites {
				if !w.heard(s) && w.rand.IntN(6*60) == 0 {
					w.hear(s)
				}
			}
		},
		"off at night": func(w *world) {
			hour := w.now.Hour()
			for _, s := range w.sites {
				switch { // one after the other within half an hour
				case hour >= 22 && w.rand.IntN(15) == 0:
					w.goSilent(s)
				case hour >= 6 && hour < 22 && w.rand.IntN(15) == 0:
					w.hear(s)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := fleet(500)
			defer func() {
				if found, ok := recover().(violation); ok {
					t.Fatal(found)
				}
			}()
			w.edit("r1", "the first one")
			w.minutes(60, func() {})
			w.edit("r2", "a change")
			for day := range 4 {
				if phase := w.minutes(24*60, func() { happens(w) }); phase == v1.RolloutComplete {
					t.Logf("complete on day %d", day+1)
					return
				}
			}
			t.Errorf("%s %q", w.in.Status.Phase, w.in.Status.Message)
		})
	}
}

// TestCutOffByTheChange: a change that cuts sites off stops at a few of 500, and not one after the other.
func TestCutOffByTheChange(t *testing.T) {
	t.Parallel()
	w := fleet(500)
	w.edit("r1", "the first one")
	w.minutes(60, func() {})
	w.edit("r2", "a change")
	w.fault["r2"] = map[string]fault{}
	for _, s := range w.sites {
		w.fault["r2"][s.site.Name] = cutsOff
	}
	w.minutes(3*24*60, func() {})
	cut := 0
	for _, s := range w.sites {
		if !w.heard(s) {
			cut++
		}
	}
	if cut != 1 || w.in.Status.Phase != v1.RolloutAwaitingApproval {
		t.Errorf("%d sites are cut off: %s %q", cut, w.in.Status.Phase, w.in.Status.Message)
	}
}
