package livepods

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// returning returns for how many seconds the node's own state is used after the link is back.
func (b *bench) returning() (seconds int) {
	b.t.Helper()
	for b.state = Followed; ; seconds++ {
		if b.run(1); !b.keeper.Status().Returning {
			return seconds
		}
		if seconds > 1000 {
			b.t.Fatal("the return does not end")
		}
	}
}

// out takes the link for some seconds.
func (b *bench) out(seconds int) {
	b.state = Away
	b.run(seconds)
}

// TestLengthOfAReturn: after an outage of 10 s or more the API server has 30 s to agree, and 2 minutes if it does not.
func TestLengthOfAReturn(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	expect := func(when string, want int) {
		t.Helper()
		if got := b.returning(); got != want {
			t.Errorf("%s: the return took %d s, want %d", when, got, want)
		}
		b.run(100)
	}
	b.out(9)
	expect("after 9 s", 0)
	b.out(10)
	expect("after 10 s", 30)
	b.out(9)
	expect("after 9 s again", 0)
	b.out(60)
	b.state = Followed
	b.run(5)
	b.out(5)
	expect("after 60 s, 5 s of contact, and 5 s without", 30)
	b.state = Away
	b.restart()
	b.run(5)
	expect("after a start without a link", 30)
	b.out(60)
	b.says(notReady(own))
	if got := b.returning(); got != 120 {
		t.Errorf("without an agreement: the return took %d s", got)
	}
	b.expect("without an agreement", "one", "10.0.0.1!")
	b.says(other)
	b.run(20)
	b.out(5)
	b.ready = corev1.ConditionUnknown
	b.api()
	expect("without endpoints on the node, which is not ready", 0)
}

// TestLastWordBeforeTheLink: the API server calls a pod not ready, and the link goes within the same second. For less
// than a minute it may be a kubelet that has just started.
func TestLastWordBeforeTheLink(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", own, other), sliceFor("two", own)}
		b.beat(10)
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", notReady(own), other), sliceFor("two", notReady(own))}
		b.api()
		if restarts {
			b.run(2)
			b.restart()
			b.api()
			b.run(5)
		}
		b.out(5)
		when := fmt.Sprintf("a moment after it was called not ready, restarts %v", restarts)
		b.expect(when, "one", "10.0.1.1")
		b.expect(when, "two", "10.0.0.1")
		b.out(60)
		b.state = Followed
		b.run(10)
		b.expect(when+", and the link is back", "two", "10.0.0.1")
	}
}

// TestNotReadyOnANodeThatIsNot: a pod that was called not ready for long stays so when the API server calls the node
// not ready too, until it has changed.
func TestNotReadyOnANodeThatIsNot(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", notReady(own)))
	b.ready, b.wanted = corev1.ConditionUnknown, true
	b.api()
	b.run(5)
	b.out(5)
	b.expect("it has not changed", "one", "10.0.0.1!")
	b.state, b.ready = Followed, corev1.ConditionTrue
	b.api()
	b.run(100)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s2", "app")}
	b.run(3)
	b.out(20)
	b.expect("it has another sandbox", "one", "10.0.0.1")
}

// TestChangesAroundAShortOutage: what has changed on the node since a moment before a short outage is shown until the
// API server agrees.
func TestChangesAroundAShortOutage(t *testing.T) {
	no := false
	for _, c := range []struct {
		what           string
		before, during func(*bench)
		agrees         []ep
		want           string
	}{
		{"a sandbox was made again 8 s before", func(b *bench) {
			b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app")}
		}, nil, []ep{at("10.0.0.7", own)}, "10.0.0.7"},
		{"the pod has ended", nil, func(b *bench) {
			b.pods = []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}
		}, nil, ""},
		{"the kubelet calls the pod not ready", nil, func(b *bench) {
			b.pods[0].Kubelet = &no
		}, []ep{notReady(own)}, "10.0.0.1!"},
	} {
		b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
		b.wanted = true // so that the runtime is asked each second
		b.run(1)
		if c.before != nil {
			c.before(b)
		}
		b.run(8)
		b.out(4)
		if c.during != nil {
			c.during(b)
		}
		b.out(3)
		b.state = Followed
		b.run(3)
		b.expect(c.what+": the link is back", "one", c.want)
		b.says(c.agrees...)
		b.run(2)
		b.expect(c.what+": the API server agrees", "one", c.want)
		if s := b.keeper.Status(); s.Used {
			t.Errorf("%s: the API server agrees, and the node's state is used: %+v", c.what, s)
		}
	}
}

// TestDeadLinkIsNoticedLate: the link was dead for so long that the API server called the node not ready, and broke
// only for a moment. The API server calls the node's pods so a little later.
func TestDeadLinkIsNoticedLate(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other))
	b.out(3)
	b.state, b.ready = Followed, corev1.ConditionUnknown
	b.api()
	b.run(2)
	b.says(notReady(own), other)
	b.run(2)
	b.expect("only the link was away", "one", "10.0.0.1 10.0.1.1")
}

// TestReadyAtLast: only the kubelet's report can make a pod ready, so that it applies as soon as the link is back.
func TestReadyAtLast(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", notReady(own)))
	b.out(60)
	b.expect("without a link", "one", "10.0.0.1!")
	b.state = Followed
	b.says(own)
	b.run(2)
	b.expect("it is ready now", "one", "10.0.0.1")
}

// TestHowOftenTheRuntimeIsAsked: each second where something depends on it, and else every ten.
func TestHowOftenTheRuntimeIsAsked(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	node := func(status corev1.ConditionStatus) func() { return func() { b.ready = status; b.api() } }
	for _, c := range []struct {
		when          string
		change        func()
		seconds, want int
	}{
		{"in contact", func() {}, 100, 10},
		{"while a neighbour needs to know", func() { b.wanted = true }, 50, 50},
		{"in contact again", func() { b.wanted = false }, 100, 10},
		{"while the node is not ready", node(corev1.ConditionUnknown), 50, 50},
		{"when it is ready again", node(corev1.ConditionTrue), 100, 10},
		{"without a link", func() { b.state = Away }, 50, 50},
	} {
		c.change()
		b.asked = 0
		if b.run(c.seconds); b.asked != c.want {
			t.Errorf("%s the runtime was asked %d times in %d s, want %d", c.when, b.asked, c.seconds, c.want)
		}
	}
	b = newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.store.Read(func(in facts.Reader) {
		if in.AnySuspicions() {
			t.Error("in contact the facts have pods of which none is shown differently")
		}
	})
	b.ready = corev1.ConditionUnknown
	b.says(notReady(own))
	b.run(5)
	b.ready = corev1.ConditionTrue
	b.api()
	b.asked = 0
	if b.run(30); b.asked != 30 {
		t.Errorf("a pod is shown as this node sees it, and the runtime was asked %d times in 30 s", b.asked)
	}
}

// TestNodeIsReadyAndItsPodIsNot: the API server called the node and its pod not ready, and calls the node ready again.
// If the pod stays not ready for a minute, the kubelet says so.
func TestNodeIsReadyAndItsPodIsNot(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.ready = corev1.ConditionUnknown
	b.says(notReady(own))
	b.run(100)
	b.expect("the node is not ready", "one", "10.0.0.1")
	b.ready = corev1.ConditionTrue
	b.api()
	b.run(55)
	b.expect("the node has been ready for 55 s", "one", "10.0.0.1")
	b.out(9)
	b.state = Followed
	b.run(3)
	b.expect("the same, because what passes without the link does not count", "one", "10.0.0.1")
	b.run(4)
	b.expect("the node has been ready for a minute", "one", "10.0.0.1!")
}

// TestRuntimeThatNeverAnswered: the wrapper starts without a link, and the runtime hangs.
func TestRuntimeThatNeverAnswered(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other))
	b.state, b.err = Away, context.DeadlineExceeded
	b.restart()
	b.run(29)
	b.expect("for 29 s", "one", "10.0.0.1 10.0.1.1")
	b.run(1)
	b.expect("for 30 s", "one", "10.0.1.1")
	if b.shared != nil {
		t.Errorf("nothing is known, and neighbours hear %v", b.shared)
	}
	if s := b.keeper.Status(); !s.AsOf.IsZero() {
		t.Errorf("it has never answered, and the status is as of %v", s.AsOf)
	}
	b.err = nil
	b.run(11)
	b.expect("it answers", "one", "10.0.0.1 10.0.1.1")
	if s := b.keeper.Status(); !s.AsOf.Equal(b.now) {
		t.Errorf("it has answered at %v, and the status is as of %v", b.now, s.AsOf)
	}
}

// TestAnotherRuntimeAnswers: in contact the status says that none of the endpoints' pods runs.
func TestAnotherRuntimeAnswers(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	if err := b.keeper.Status().Err; err != nil {
		t.Error(err)
	}
	b.says()
	b.pods = []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}
	b.run(11)
	if err := b.keeper.Status().Err; err != nil {
		t.Errorf("no endpoint has a pod: %v", err)
	}
	b.says(own)
	b.run(11)
	if err := b.keeper.Status().Err; err == nil || !strings.Contains(err.Error(), "none of the 1 pods") {
		t.Errorf("none of the endpoints' pods runs: %v", err)
	}
	b.out(2)
	if err := b.keeper.Status().Err; err != nil {
		t.Errorf("without a link pods may have ended: %v", err)
	}
}

// TestHeartbeats: the ids that a pod was ready with are those of a minute before a report of the kubelet. A report that
// was made before an outage is none of them.
func TestHeartbeats(t *testing.T) {
	run := func(state string) []cri.Pod { return []cri.Pod{up("db", "10.0.0.1", "s1", "app"+state, "sidecar")} }
	for _, restarts := range []bool{false, true} {
		b := newBench(t)
		b.pods = run("")
		b.says(own, other)
		b.beat(10)
		b.state = Away
		if restarts {
			b.restart()
		}
		b.pods = run("!") // together with the kubelet
		b.run(600)
		b.state = Followed
		b.api()
		b.run(150)
		b.out(10)
		b.expect(fmt.Sprintf("restarts %v: the API server has only an old report", restarts), "one", "10.0.1.1")
	}
	b := newBench(t)
	b.pods = run("")
	b.says(own, other)
	b.beat(10)
	b.pods = []cri.Pod{again(run("")[0], "app")}
	b.beat(10)
	b.state = Away
	b.restart()
	b.run(2)
	b.expect("it was called ready since it was started again", "one", "10.0.0.1 10.0.1.1")
}

// TestEndedWhileTheWrapperWas: a pod ends in an outage while the wrapper is started again. The runtime that lists other
// pods is the one that ran it.
func TestEndedWhileTheWrapperWas(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.state, b.pods = Away, []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}
	b.restart()
	b.run(5)
	b.expect("it has ended", "one", "")
}

// TestBootWithoutARuntime: a machine has booted in contact while its wrapper asked no runtime. Later another runtime
// than the kubelet's is asked, which does not show that the pod has ended.
func TestBootWithoutARuntime(t *testing.T) {
	b := newBench(t)
	b.machine = "first"
	b.boot(nil)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	b.says(own)
	b.run(600)
	b.machine = "second"
	b.restart()
	b.keeper.config.Runtime = nil
	b.api()
	b.run(60)
	b.state, b.pods = Away, []cri.Pod{up("wrapper", "10.0.9.9", "s9", "wrapper")}
	b.restart()
	b.run(60)
	b.expect("it may run", "one", "10.0.0.1")
}

// TestUpstreamIsNotKnown: nothing is asked, shown or told before it is known whether the API server can be reached.
func TestUpstreamIsNotKnown(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.restart()
	b.state, b.asked, b.wanted, b.shared = Unknown, 0, true, nil
	b.run(60)
	if b.asked > 0 || b.shared != nil || b.keeper.Status().Used {
		t.Errorf("asked %d times, told %v, status %+v", b.asked, b.shared, b.keeper.Status())
	}
}

// TestStartedAgain: a pod that was started again without a link is used beside others after 10 s.
func TestStartedAgain(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other))
	b.out(60)
	b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app"), "app")}
	b.run(10)
	b.expect("it has run for 9 s", "one", "10.0.1.1")
	b.run(1)
	b.expect("it has run for 10 s", "one", "10.0.0.1 10.0.1.1")
}

// TestWhatTheAPISaysOfANotReadyNode: while it calls the node not ready, its word that a pod is so does not count.
func TestWhatTheAPISaysOfANotReadyNode(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other))
	node := func(status corev1.ConditionStatus, eps ...ep) {
		b.ready = status
		b.says(eps...)
		b.run(5)
	}
	node(corev1.ConditionUnknown, own, other)
	b.expect("it calls the pod ready", "one", "10.0.0.1 10.0.1.1")
	if b.shared != nil {
		t.Errorf("no neighbour needs to know, and they hear %v", b.shared)
	}
	node(corev1.ConditionTrue, own)
	b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app"), "app")}
	node(corev1.ConditionTrue, notReady(own))
	b.expect("the kubelet calls the pod not ready", "one", "10.0.0.1!")
	node(corev1.ConditionUnknown, notReady(own))
	b.expect("it runs, and the kubelet is not heard", "one", "10.0.0.1")
}

// TestHungFromTheStart: the wrapper starts while the runtime hangs, for which the API server calls the node and its
// pods not ready. The notes say which of them were ready, and in which Services.
func TestHungFromTheStart(t *testing.T) {
	for ready, want := range map[bool]string{true: "10.0.0.1", false: "10.0.0.1!"} {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		said := own
		said.ready, said.serving = ready, ready
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", said), sliceFor("two", notReady(own))}
		b.beat(10)
		b.err, b.ready = context.DeadlineExceeded, corev1.ConditionUnknown
		b.restart()
		b.slices = []*discoveryv1.EndpointSlice{sliceFor("one", notReady(own)), sliceFor("two", notReady(own))}
		b.api()
		b.run(10)
		b.expect(fmt.Sprintf("ready before: %v", ready), "one", want)
		b.expect(fmt.Sprintf("ready before: %v", ready), "two", "10.0.0.1!")
	}
}

// TestSickSandboxIsSuspected: the runtime lists a pod, and cannot say which addresses it has.
func TestSickSandboxIsSuspected(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own, other), sliceFor("two", own))
	b.pods[0].Sick = true
	b.out(5)
	b.expect("sick", "one", "10.0.1.1")
	b.expect("sick", "two", "10.0.0.1")
}

// TestNoPodsInTheSameBoot: a runtime that knows no pods any more is an error, for which its last answer counts.
func TestNoPodsInTheSameBoot(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.machine = "second"
	b.restart()
	b.api()
	b.run(60)
	b.out(5)
	b.pods, b.err = nil, cri.ErrNoPods
	b.run(10)
	b.expect("it has run in this boot", "one", "10.0.0.1")
}

// TestAskedFirstInAnOutage: the runtime is asked from an outage on. The API server's last word counts.
func TestAskedFirstInAnOutage(t *testing.T) {
	for ready, want := range map[bool]string{true: "10.0.0.1 10.0.1.1", false: "10.0.1.1"} {
		b := newBench(t)
		said := own
		said.ready, said.serving = ready, ready
		b.says(said, other)
		b.state, b.pods = Away, []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
		b.restart()
		b.run(60)
		b.expect(fmt.Sprintf("ready before: %v", ready), "one", want)
	}
}

// TestLinkAfterAReady: a pod becomes ready at any moment between two questions to the runtime, and the link goes soon
// after. Then one of its containers ends.
func TestLinkAfterAReady(t *testing.T) {
	for after := range 10 {
		b := newBench(t)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "sidecar")}
		b.says(notReady(own), other)
		b.run(100 + after)
		b.says(own, other)
		b.run(2)
		b.out(2)
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar")}
		b.run(20)
		b.expect(fmt.Sprintf("%d s later", after), "one", "10.0.1.1")
	}
}

// TestUpstreamComesBackMeanwhile: while the keeper takes a last look in an outage the API server is back, with a pod
// that it did not have before. Its word on that one is new.
func TestUpstreamComesBackMeanwhile(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.out(60)
	b.pods = append(b.pods, up("new", "10.0.0.2", "s2", "app"))
	b.run(30)
	states := []UpstreamState{Away}
	b.keeper.config.Upstream = func() UpstreamState {
		if len(states) == 0 {
			return Followed
		}
		state := states[0]
		states = states[1:]
		return state
	}
	b.slices = append(b.slices, sliceFor("two", ep{"new", "10.0.0.2", "n0", false, false}))
	b.api()
	b.run(3)
	b.expect("it is not ready", "two", "10.0.0.2!")
}
