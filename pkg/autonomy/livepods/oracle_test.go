package livepods

import (
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

var (
	oracleSeed  = flag.Uint64("oracle.seed", 0, "plays this world only")
	oracleRuns  = flag.Int("oracle.runs", 10, "how many worlds are played")
	oracleHours = flag.Int("oracle.hours", 120, "how long each of them is")
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	debug.SetGCPercent(2000) // worlds are small, and leave much behind
	os.Exit(m.Run())
}

// TestOracle plays random worlds and judges what their wrappers show by what a connection would find.
func TestOracle(t *testing.T) {
	for i := range *oracleRuns {
		seed := uint64(i + 1)
		if *oracleSeed != 0 {
			seed = *oracleSeed
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(seed, 1+int(seed)%4)
			w.trouble()
			w.run(seconds(*oracleHours*3600), func() {
				for _, m := range w.machines {
					m.judge(t)
				}
			})
		})
		if *oracleSeed != 0 {
			return
		}
	}
}

// trouble keeps the world in trouble, which comes in bunches.
func (w *world) trouble() {
	next := w.between(60, 600)
	if w.r.IntN(4) == 0 {
		next = w.between(3600, 6*3600)
	}
	w.in(next, func() {
		w.trouble()
		m := w.machines[w.r.IntN(len(w.machines))]
		if !m.on {
			return
		}
		p := m.pods[slices.Sorted(maps.Keys(m.pods))[w.r.IntN(len(m.pods))]]
		switch w.r.IntN(30) {
		case 0, 1, 2:
			m.crash(p)
		case 3:
			m.unprove(p)
		case 4:
			m.debug(p)
		case 5:
			m.remove(p)
		case 6:
			m.powerCut()
		case 7: // the link of the site
			w.outage(w.machines, w.between(1, 900), w.between(1, 12))
		case 8: // of one node
			w.outage([]*machine{m}, w.between(1, 90), w.between(1, 12))
		case 9: // power and link
			w.outage(w.machines, w.between(60, 900), w.between(1, 12))
			w.in(w.between(0, 5), func() { m.powerCut() })
		case 10: // it flaps, and something happens meanwhile
			for i := range 12 {
				w.in(seconds(i*12), func() { w.outage(w.machines, w.between(1, 6), 1) })
			}
			w.in(w.between(0, 100), func() { m.crash(p) })
		case 11: // something happens just before or while the link is away
			w.in(w.between(0, 12), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			w.in(w.between(0, 20), func() {
				if m.on {
					m.crash(p)
				}
			})
		case 13: // the kubelet is away for so long that the API calls the node not ready, and then the link
			m.deafen(w.between(60, 200))
			if w.r.IntN(2) == 0 {
				w.in(w.between(40, 250), m.restart)
			}
			w.in(w.between(50, 300), func() { w.outage(w.machines, w.between(1, 60), w.between(1, 12)) })
		case 14:
			w.in(w.between(0, 4), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			m.recreate(p)
		case 15: // the runtime does not answer, and something happens meanwhile
			m.hangs = w.now + w.between(5, 120)
			w.in(m.hangs-w.now, w.touch)
			w.in(w.between(0, 30), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			w.in(w.between(0, 60), func() {
				if m.on {
					m.crash(p)
				}
			})
		case 16: // the link goes again a moment after it is back from a long outage
			lasts := w.between(45, 900)
			w.outage(w.machines, lasts, 12)
			w.in(lasts+w.between(2, 30), func() { w.outage(w.machines, w.between(1, 9), w.between(1, 12)) })
		case 17: // the manifest of a static pod changes, while the link is away or the kubelet is not heard, or neither
			if w.r.IntN(2) == 0 {
				m.deafen(w.between(20, 200))
			}
			w.in(w.between(0, 60), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			for range w.between(1, 3) {
				w.in(w.between(0, 100), func() {
					if m.on && m.pods[p.name] != nil {
						m.replace(m.pods[p.name])
					}
				})
			}
			if w.r.IntN(2) == 0 {
				w.in(w.between(5, 90), m.powerCut)
			}
		case 18: // the wrapper alone is started again
			w.in(w.between(0, 60), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			w.in(w.between(0, 90), m.restart)
			m.recreate(p)
		case 19: // the kubelet and a container fail together, before the link does or while it is away
			w.in(w.between(0, 120), func() { w.outage(w.machines, w.between(1, 900), w.between(1, 12)) })
			w.in(w.between(0, 20), func() {
				if m.on {
					m.stopKubelet(w.between(45, 1200))
					m.crash(p)
				}
			})
		case 20: // crash after crash, with a back-off of up to five minutes
			m.loop(p, 2+w.r.IntN(6))
			w.in(w.between(0, 900), func() { w.outage(w.machines, w.between(1, 900), w.between(1, 12)) })
		case 21: // another runtime answers for a while
			m.stranger = w.now + w.between(5, 120)
			w.in(m.stranger-w.now, w.touch)
			w.in(w.between(0, 100), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
			if w.r.IntN(2) == 0 {
				w.in(w.between(0, 100), m.restart)
			}
		case 22: // the kubelet alone is started again
			m.stopKubelet(w.between(2, 20))
			w.in(w.between(0, 60), func() { w.outage(w.machines, w.between(1, 300), w.between(1, 12)) })
		case 23: // a pod is debugged while it starts
			m.recreate(p)
			w.in(w.between(0, 40), func() {
				if m.pods[p.name] == p {
					m.debug(p)
				}
			})
			w.in(w.between(0, 400), func() { w.outage(w.machines, w.between(60, 4000), w.between(1, 12)) })
			if w.r.IntN(2) == 0 {
				w.in(w.between(100, 900), m.powerCut)
			}
		case 24: // the wrapper loses its snapshot while a pod is debugged
			m.debug(p)
			w.in(w.between(0, 30), func() {
				if m.link && m.on {
					m.snapshot = nil
					m.restart()
				}
			})
			w.in(w.between(60, 900), func() { w.outage(w.machines, w.between(60, 4000), w.between(1, 12)) })
		case 25: // the link goes without a word, and a container a moment before or after
			w.in(w.between(0, 20), func() {
				if m.on {
					m.crash(p)
				}
			})
			w.in(w.between(0, 20), func() { w.outage(w.machines, w.between(30, 900), w.between(1, 12)) })
		case 26: // a person has --cri asked only during an outage, in which something happens before
			m.unasked = true
			m.restart()
			begins, lasts := w.between(20, 300), w.between(120, 1800)
			w.in(begins, func() { w.outage(w.machines, lasts, w.between(1, 12)) })
			w.in(begins+w.between(0, 60), func() {
				switch w.r.IntN(4) {
				case 0:
					m.powerCut()
				case 1:
					if m.on {
						m.crash(p)
					}
				case 2:
					if m.on {
						m.recreate(p)
					}
				}
			})
			w.in(begins+w.between(60, 400), func() {
				m.unasked = false
				m.restart()
			})
		case 27, 28, 29: // Services change, mostly as the link goes or comes back
			begins, lasts := w.between(0, 20), w.between(1, []int{30, 900}[w.r.IntN(2)])
			w.in(begins, func() { w.outage(w.machines, lasts, w.between(1, 12)) })
			for range w.between(1, 4) {
				at := []seconds{
					begins + w.between(-15, 5), begins + lasts + w.between(-5, 15), w.between(0, int(lasts)),
				}
				w.in(max(at[w.r.IntN(3)], 0), w.rewire)
			}
			around := w.between(0, int(begins+lasts)+15)
			switch w.r.IntN(6) {
			case 0, 1:
				w.in(around, m.restart)
			case 2:
				w.in(around, m.powerCut)
			case 3:
				w.in(around, func() {
					if m.on {
						m.crash(p)
					}
				})
			}
		case 12:
			m.lies = true
			w.in(600, func() { m.lies = false })
		}
	})
}

func (w *world) outage(of []*machine, lasts, late seconds) {
	for _, m := range of {
		if m.link {
			m.cut()
			w.in(lasts, func() { m.mend(late) })
		}
	}
}

// judge judges what a machine shows.
func (m *machine) judge(t *testing.T) { //nolint:thelper // Helper is slow
	w := m.w
	for _, service := range w.names {
		for name, address := range m.shown[service] {
			if address.As4()[1] == 96 {
				t.Fatalf("%d: %s shows pod %s at %s, an address that a neighbour has lied about",
					w.now, m.name, name, address)
			}
		}
	}
	m.judgeNotReady(t)
	m.judgeFollowed(t)
	if !m.on || m.away == never || w.now-max(m.away, m.booted) < 3 {
		return
	}
	for _, p := range m.all() {
		if p.former != nil && !m.unasked {
			m.judgeReplaced(t, p)
		}
	}
	for name, said := range m.atLeave {
		i := slices.IndexFunc(w.machines, func(o *machine) bool { return o.words[name].pod == said.pod })
		switch {
		case i < 0: // the API knows that it has ended
		case w.machines[i] == m && m.unasked:
		case w.machines[i] == m:
			m.judgeOwn(t, said)
		case m.back == never:
			m.judgeOther(t, w.machines[i], said)
		default:
			m.judgeReturn(t, w.machines[i], said)
		}
	}
}

// judgeNotReady judges what a machine shows of its own pods while the API calls it not ready: no Service loses all of
// its endpoints if one of them runs as when it was called ready.
func (m *machine) judgeNotReady(t *testing.T) { //nolint:thelper // Helper is slow
	w := m.w
	if !m.on || m.unasked || m.blank || m.away != never || m.upstream() != Followed || m.nodeReady || !m.link ||
		w.now-max(m.heard+w.grace, m.booted) < 5 {
		return
	}
	for name, said := range m.words {
		p := said.pod
		unchanged := m.pods[name] == p && said.said && p.changed <= said.asOf-10 && w.now-m.blind() > 15
		home := m.home(p)
		if home != "" && home != published && unchanged && !said.ready && len(m.shown[home]) == 0 {
			t.Fatalf("%d: %s: Service %s is empty, although pod %s runs as when it was called ready "+
				"(heard %d, deaf %d): %+v, %v, %v",
				w.now, m.name, home, name, m.heard, m.deaf, m.keeper.records[m.keeper.keyOf(p)].judge(w.clock()),
				m.keeper.about, m.keeper.known)
		}
	}
}

// judgeFollowed judges what a machine shows that has had the API for a while, or from the first moment if nothing of
// its own counts after an outage: exactly what the API says.
func (m *machine) judgeFollowed(t *testing.T) { //nolint:thelper // as above
	w := m.w
	if !m.on || m.away != never || m.upstream() != Followed || w.now-max(m.followed, m.begun) < 2 ||
		!m.nodeReady || m.notReady > 0 && w.now-m.notReady < 200 {
		return
	}
	for _, service := range slices.Concat(w.names, w.more) {
		want := map[string]string{}
		for name, said := range m.received {
			if slices.Contains(said.listed, service) {
				e := said.endpoint(service)
				want[name] = fmt.Sprintln(e.address, e.ready, e.serving)
			}
		}
		if !maps.Equal(want, m.exact[service]) {
			t.Fatalf("%d: %s follows since %d, and shows of Service %s %v and not %v",
				w.now, m.name, m.followed, service, m.exact[service], want)
		}
	}
}

// judgeReplaced judges what a machine shows of a static pod that was never called ready, and has taken the place of one
// that may have been: it may stand in for that where its Service has nothing better.
func (m *machine) judgeReplaced(t *testing.T, p *pod) { //nolint:thelper // as above
	w := m.w
	said, home := m.atLeave[p.name], m.home(p)
	if p.provenIn != "" || home == published || home == "" || m.says || m.back != never ||
		w.now-max(p.born, m.away, m.booted, m.blind()) <= 5 {
		return
	}
	_, shown := m.shown[home][p.name]
	runs := slices.ContainsFunc(slices.Collect(maps.Values(p.containers)), func(c *container) bool {
		return c.state == cri.Running
	})
	wrong := ""
	switch {
	case shown && (p.sandbox == "" || !runs && w.now-p.changed > 5):
		wrong = "does not run, and is shown"
	case shown && m.hasUnchanged(p):
		wrong = "was never called ready, and is shown beside one that has not changed"
	case !shown && said.pod != nil && said.pod != p && said.said && said.ready && !said.mixed && p.runs() &&
		w.now-p.started > 5 && len(m.shown[home]) == 0:
		wrong = "has taken the place of one that was called ready, and its Service is shown empty"
	}
	if wrong != "" {
		believed := ""
		for name := range m.shown[home] {
			if q := m.pods[name]; q != nil && m.keeper.records[m.keeper.keyOf(q)] != nil {
				believed += fmt.Sprintf("\n%s: %+v", name, m.keeper.records[m.keeper.keyOf(q)].judge(w.clock()))
			}
		}
		t.Fatalf("%d: %s, away since %d: pod %s %s: %+v; %v%s",
			w.now, m.name, m.away, p.name, wrong, *p, m.shown[home], believed)
	}
}

// judgeOwn judges what a machine shows of its own pod, of which the API last said that.
func (m *machine) judgeOwn(t *testing.T, said word) { //nolint:thelper // Helper is slow
	w, p := m.w, said.pod
	if m.pods[p.name] != p || p.sandbox == "" && m.back != never {
		return
	}
	if now := m.words[p.name]; m.back != never && (now.asOf > said.asOf || p.changed >= m.back-3 ||
		said.said != said.ready || now.ready != said.ready && m.back-said.left < 10) {
		return // the API has heard of it again, or calls the node not ready because of what was before
	}
	home := m.home(p)
	at, shown := m.shown[home][p.name]
	away := max(m.away, m.booted, m.blind())
	fail := func(what string) {
		t.Helper()
		r := m.keeper.records[m.keeper.keyOf(p)]
		why := "no record"
		if r != nil {
			why = fmt.Sprintf("%+v; %+v; now %v", r.judge(w.clock()), r.Note, r.now)
		}
		t.Fatalf("%d: %s, away since %d (booted %d, back %d): pod %s %s (shown %v %v)\n"+
			"the API said %+v\ntruth %+v\nbelieved: %s",
			w.now, m.name, m.away, m.booted, m.back, p.name, what, shown, at, said, *p, why)
	}
	if home == "" {
		m.judgeMore(t, said, away)
		return
	}
	if home == published {
		switch {
		case p.sandbox != "" && w.now-max(p.born, away) > 5 && !shown:
			fail("has an address that is to be shown, ready or not")
		case p.sandbox != "" && w.now-max(p.born, away) > 5 && p.address != at && p.saw[said.address]:
			fail("is shown at an address that it has not")
		}
		return
	}
	m.judgeMore(t, said, away)
	if m.says && (w.now < m.dead+15 || w.now < p.unprobed+15) { // it does not probe
		if shown && !p.runs() && w.now-max(p.changed, away) > 5 && m.hasLive(p) {
			fail("is dead and shown as ready, beside one that is not, while the kubelet is away")
		}
		return
	}
	if m.says { // it goes on probing
		if proven := p.ready(w.now - 5); shown != p.ready(w.now) && w.now-max(p.changed, away) > 15 &&
			proven == p.ready(w.now) && m.back == never {
			fail("is not shown as the kubelet says")
		}
		return
	}
	unchanged := p.changed <= said.asOf && p.sandbox == said.sandbox
	unseen := w.now <= m.blind() && m.answered < p.changed
	known := p.former == nil || said.left-p.born > 140 // else it may be said of the static pod before
	// It was looked at after 10 s, and probed for 10 s. When the link is back after a few seconds nobody can know that
	// it was dead for long before, and that the API will call the node not ready.
	noticed := known && !p.debugged && (!m.blank || said.ready) && w.now-max(p.changed, m.blind(), m.begun) > 20 &&
		(m.back == never || m.back-m.away >= 10)
	since := max(p.changed, away)
	ran := w.now - max(p.started, away)
	if !p.runs() {
		ran = -1
	}
	// That it is not ready came together with what the API says of a node that it does not hear, or the node has not
	// noted it yet.
	mixed := said.mixed || p.provenIn != p.sandbox && said.left < p.started+35 ||
		m.deaf > 0 && said.asOf >= m.deafFrom-15 && said.asOf <= m.deaf+45 || m.blind() >= said.asOf-15
	switch {
	case shown && !p.runsAny() && w.now-since > 5 && (!m.blank || !p.isDebugged()): // else one may be the pod's
		fail("has no container that runs, and is shown as ready")
	case shown && !p.runs() && w.now-since > 5 && m.hasLive(p) && !m.blank:
		fail("is dead and shown as ready, beside one that is not")
	case shown && p.failedAgain() && w.now-since > 5 && said.said && known && !m.blank &&
		said.left-max(p.born, m.begun) > 140:
		fail("has a container that was started again and does not run, and is shown as ready")
	case shown && p.address != at && p.sandbox != "" && w.now-since > 5 &&
		(p.saw[said.address] && p.saw[at] || m.blank && len(p.saw) == 0):
		fail("is shown at an address that it has not")
	// One that was started again a moment before the API said so is judged as one that was started again after.
	case unchanged && said.said && !shown && !unseen &&
		(noticed && (said.ready || !m.noGrace) || len(m.shown[home]) == 0):
		fail("was called ready, has not changed, and is hidden")
	case unchanged && !said.said && p.born < said.left && shown && !mixed && !m.blank &&
		(m.hasLive(p) || p.changed < said.asOf-30 && said.asOf < said.left-140 && p.runs() && !p.debugged &&
			m.mended < said.asOf && said.left >= m.linked):
		fail("was called not ready, has not changed, and is shown")
	case !said.said && p.sandbox == said.sandbox && p.born < said.left && shown && w.now-since > 5 && !mixed &&
		m.hasLive(p):
		fail("was called not ready, was started again in its sandbox, and is shown beside one that is ready")
	case said.restart && p.changed <= said.asOf && p.sandbox == said.sandbox && ran > 15 &&
		len(m.shown[home]) == 0:
		fail("runs, and was called not ready by a kubelet that had just started, and its Service is shown empty")
	case !said.said && p.changed > said.asOf && ran > 15 && m.back == never && len(m.shown[home]) == 0:
		fail("was called not ready before it changed, and its Service is shown empty")
	case said.said && said.ready && known && !p.debugged && ran > 15 && !shown:
		fail("was called ready, runs again, and is hidden")
	case said.said && ran > 5 && len(m.shown[home]) == 0:
		fail("was called ready, runs again, and its Service is shown empty")
	case said.said && shown && p.runs() && m.back == never && p.started > away && w.now-p.started < 8 && !m.blank &&
		m.hasUnchanged(p):
		fail("was started again a moment ago, and is shown beside one that has not changed")
	case p.provenIn == "" && p.former == nil && shown && w.now-away > 5 && m.hasLive(p):
		fail("was never called ready, and is shown beside one that was")
	}
}

// blind is until when the kubelet's runtime does not answer.
func (m *machine) blind() seconds { return max(m.hangs, m.stranger) }

// judgeMore judges what a machine shows of its own pod in further Services.
func (m *machine) judgeMore(t *testing.T, said word, away seconds) { //nolint:thelper // as above
	w, p := m.w, said.pod
	if p.host || !p.address.IsValid() {
		return
	}
	since := max(p.changed, away)
	steady := p.saw[said.address] && p.changed <= said.asOf-10 && p.sandbox == said.sandbox &&
		said.said && said.ready && !p.debugged && p.former == nil && !m.says &&
		m.back == never && said.left >= m.linked && w.now-max(since, m.begun) > 20
	for service, want := range map[string]string{
		family: fmt.Sprintln(p.six(), true, true), network: fmt.Sprintln(p.lan(), true, true),
		drained: fmt.Sprintln(p.address, false, true), follows: fmt.Sprintln(p.address, false, false),
	} {
		if !slices.Contains(m.received[p.name].listed, service) {
			continue
		}
		is, listed := m.exact[service][p.name]
		at, ready := m.shown[service][p.name]
		wrong := ""
		switch {
		case steady && is != want:
			wrong = "has not changed, and is shown differently"
		case ready && (service == drained || service == follows) && said.said && said.ready && p.former == nil &&
			(!m.blank || p.born < m.begun) &&
			(slices.Contains(said.listed, service) || m.received[p.name].ready): // else it called the node not ready
			wrong = "was never called ready by this Service, and is shown ready"
		case listed && service == network && p.saw[said.address] && m.back == never &&
			!strings.HasPrefix(is, p.lan().String()):
			wrong = "is shown at an address of another network"
		case ready && service == family && at != p.six() && w.now-since > 5 && p.saw[said.address] &&
			p.saw[m.words[p.name].address]:
			wrong = "is shown at an address that it has not"
		}
		if wrong != "" {
			t.Fatalf("%d: %s, away since %d (booted %d): pod %s of Service %s %s: %q, not %q\n"+
				"the API said %+v\ntruth %+v",
				w.now, m.name, m.away, m.booted, p.name, service, wrong, is, want, said, *p)
		}
	}
}

// hasLive reports whether the Service of a pod has another one on the machine that was ready and runs, and of which
// this node could know that.
func (m *machine) hasLive(p *pod) bool {
	for _, q := range m.all() {
		said := m.atLeave[q.name]
		if q != p && m.home(q) == m.home(p) && q.former == nil && !q.debugged &&
			said.pod == q && said.said && said.ready && q.runs() &&
			m.w.now-max(q.started, m.away, m.booted, m.begun, m.blind()) > 15 {
			return true
		}
	}
	return false
}

// hasUnchanged reports whether the Service of a pod has another one on the machine that is ready as it was long ago.
func (m *machine) hasUnchanged(p *pod) bool {
	for _, q := range m.all() {
		said := m.atLeave[q.name]
		if q != p && m.home(q) == m.home(p) && said.pod == q && said.said && said.ready && q.changed < said.left-60 &&
			!q.debugged && q.former == nil && q.runs() {
			return true
		}
	}
	return false
}

// judgeOther judges what a machine shows of a neighbour's pod.
func (m *machine) judgeOther(t *testing.T, o *machine, said word) { //nolint:thelper // as above
	w, p := m.w, said.pod
	home := m.home(p)
	at, shown := m.shown[home][p.name]
	switch {
	case !shown || o.lies || home == published:
	case o.on && o.pods[p.name] == p && !p.runs() && o.shared != nil && (!p.runsAny() || m.hasLive(p) && !o.blank) &&
		w.now-max(p.down, m.away, o.begun, m.begun, o.blind()) > 12:
		t.Fatalf("%d: %s shows pod %s of %s, which is dead: %s, %v", w.now, m.name, p.name, o.name, at, m.hears[o.name])
	case !o.on && w.now-max(o.changedAt(), m.away, m.begun) > 12:
		for other, at := range m.shown[home] {
			if q := w.find(other); q != nil && q.runs() && q.address == at {
				t.Fatalf("%d: %s shows pod %s of %s, which has no power, beside %s; silent %v, away since %d, %v",
					w.now, m.name, p.name, o.name, other, m.silent, m.away, m.shown)
			}
		}
	}
}

// judgeReturn judges what a machine shows of a neighbour's pod when the API is back, which calls the pod not ready only
// because it has not heard of the neighbour: no Service loses all of its endpoints by that.
func (m *machine) judgeReturn(t *testing.T, o *machine, said word) { //nolint:thelper // as above
	w, p := m.w, said.pod
	now, home := o.words[p.name], m.home(p)
	unchanged := o.pods[p.name] == p && p.changed <= said.asOf-10 && o.on && o.begun < said.left
	if home == published || home == "" || !unchanged || !said.said || !now.said || now.ready || o.lies ||
		o.shared == nil || m.hears[o.name] == nil || m.back-max(said.left, m.away) < 10 || m.begun > said.left ||
		o.heard > m.back {
		return
	}
	if len(m.shown[home]) == 0 {
		t.Fatalf("%d: %s: Service %s is empty since the API is back, although pod %s of %s has not changed: %v",
			w.now, m.name, home, p.name, o.name, m.hears[o.name])
	}
}

func (w *world) find(name string) *pod {
	for _, m := range w.machines {
		if p := m.pods[name]; p != nil && m.on {
			return p
		}
	}
	return nil
}

// TestOutageWithoutChanges: an outage in which nothing happens changes nothing, however long it is, and however often.
func TestOutageWithoutChanges(t *testing.T) {
	for seed := range uint64(40) {
		w := newWorld(seed, 1+int(seed)%4)
		// The API itself changes a drained one when it calls a node not ready. Neighbours are not heard where a link
		// was dead for long, and noticed to be so for a second.
		w.more, w.sharp = []string{family, network, follows}, true
		for _, m := range w.machines { // without a grace they do
			m.noGrace = false
			m.start()
		}
		w.run(300, func() {})
		before := map[string]map[string]map[string]netip.Addr{}
		revisions := map[string]uint64{}
		for _, m := range w.machines {
			before[m.name] = m.shown
			revisions[m.name] = m.slices
			if p := m.pods[slices.Sorted(maps.Keys(m.pods))[0]]; p.ready(w.now) {
				m.debug(p)
			}
		}
		for i := range 6 {
			w.in(seconds(i)*600, func() { w.outage(w.machines, w.between(1, 1+i*60), w.between(1, 12)) })
		}
		w.run(300+6*600, func() {
			for _, m := range w.machines {
				if m.slices != revisions[m.name] {
					t.Fatalf("world %d, second %d: %s shows something else: %v, before %v", seed, w.now, m.name,
						m.shown, before[m.name])
				}
				if m.link && w.now-m.linked > 75 && m.keeper.phase != following {
					t.Fatalf("world %d, second %d: %s waits for the API server to agree to what it says",
						seed, w.now, m.name)
				}
			}
		})
	}
}

// expectSaid plays worlds of one machine for some seconds, and judges what it says of each of its pods then.
func expectSaid(
	t *testing.T, worlds int, play func(int, *machine), until seconds, right func(*machine, *pod, facts.LivePod) bool,
) {
	t.Helper()
	for seed := range worlds {
		w := newWorld(uint64(seed), 1)
		w.sharp = true
		m := w.machines[0]
		play(seed, m)
		w.run(until, func() {})
		for _, p := range m.all() {
			if live := m.shared.Pods[m.keeper.keyOf(p)]; !right(m, p, live) {
				t.Errorf("world %d: pod %s is believed: %+v", seed, p.name, live)
			}
		}
	}
}

// TestRestartWhilePodsStart: a wrapper that is started again while a pod starts learns later which of its containers
// have to run, so that the pod is beyond suspicion in an outage.
func TestRestartWhilePodsStart(t *testing.T) {
	expectSaid(t, 40, func(_ int, m *machine) {
		w := m.w
		w.in(300, func() { m.create("one") })
		w.in(306, m.start)
		w.in(600, func() { w.outage(w.machines, 60, 1) })
	}, 630, func(_ *machine, p *pod, live facts.LivePod) bool {
		return !p.ready(500) || live.Serving && !live.Suspected
	})
}

// TestRestartWhileTheKubeletIsNotHeard: what the API server says of the pods of a node that it has not heard is no
// kubelet's word, also if the wrapper is started again meanwhile.
func TestRestartWhileTheKubeletIsNotHeard(t *testing.T) {
	expectSaid(t, 40, func(_ int, m *machine) {
		w := m.w
		w.in(300, func() { m.deafen(80) })
		w.in(381, m.restart)
		w.in(383, func() { w.outage(w.machines, 60, 1) })
	}, 410, func(_ *machine, p *pod, live facts.LivePod) bool {
		return !p.ready(300) || live.Serving
	})
}

// TestReplacedStaticPod: a static pod with another manifest is a suspect, whenever it took its place, until the API
// server has spoken of it. Without a link that is also so if the one before was called not ready in the end.
func TestReplacedStaticPod(t *testing.T) {
	expectSaid(t, 60, func(seed int, m *machine) {
		w := m.w
		w.in(300, func() { w.outage(w.machines, 120, 1) })
		for _, p := range m.all() {
			if seed%6 == 5 {
				w.in(270, func() { m.unprove(p) })
			}
			w.in(299+seconds(seed%3), func() { m.replace(p) })
		}
	}, 380, func(m *machine, p *pod, live facts.LivePod) bool {
		stands := p.former != nil && p.former.provenIn != "" && p.runs() && m.words[p.name].pod != p
		return !stands || live.Serving && live.Suspected
	})
}
