package livepods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/application-grid/application-grid/pkg/autonomy/cri"
	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// static returns a static pod with this UID, whose mirror is mirrorOf it.
func static(uid, address string, containers ...string) []cri.Pod {
	p := up("db", address, "sandbox-"+uid, containers...)
	p.UID, p.Static = uid, true
	return []cri.Pod{p}
}

func mirrorOf(uid string, of ...*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	for _, s := range of {
		s.Endpoints[0].TargetRef.UID = types.UID("mirror-of-" + uid)
	}
	return of
}

// newStatic makes a bench with a static pod that was ready for long, also at another network.
func newStatic(t *testing.T) *bench {
	t.Helper()
	b := newSettledBench(t, static("former", "10.0.0.1", "app")[0], mirrorOf("former",
		sliceFor("one", own, other), sliceFor("two", at("192.168.50.5", own)), sliceFor("three", own))...)
	b.wanted = true // so that the runtime is asked each second
	b.run(1)
	return b
}

// TestFormerStaticPodIsReported: what the API server says of the former static pod of a name is not said of the one
// that has replaced it, or that one. It is suspected, and at its own address.
func TestFormerStaticPodIsReported(t *testing.T) {
	for _, replaced := range []int{1, 2} {
		b := newStatic(t)
		for i := range replaced {
			b.pods = static(fmt.Sprint("next", i), "10.0.0.7", "app")
			b.run(15)
		}
		b.out(20)
		when := fmt.Sprintf("replaced %d times in contact", replaced)
		b.expect(when, "one", "10.0.1.1")
		b.expect(when, "three", "10.0.0.7")
	}
	b := newStatic(t)
	b.out(5)
	b.pods = static("next", "10.0.0.7", "app")
	b.run(600)
	for _, b.state = range []UpstreamState{Away, Followed} {
		b.run(20)
		when := fmt.Sprintf("replaced in an outage, state %v", b.state)
		b.expect(when, "one", "10.0.1.1")
		b.expect(when, "two", "192.168.50.5")
		b.expect(when, "three", "10.0.0.7")
	}
}

// TestStaticPodIsChangedBack: the manifest of a static pod was changed and changed back. After a minute of contact the
// API server means the one that runs.
func TestStaticPodIsChangedBack(t *testing.T) {
	for seconds, want := range map[int]string{59: "10.0.1.1", 60: "10.0.0.1 10.0.1.1"} {
		b := newStatic(t)
		b.pods = static("next", "10.0.0.7", "app")
		b.run(5)
		b.pods = static("former", "10.0.0.1", "app")
		b.run(seconds)
		b.out(11)
		b.expect(fmt.Sprintf("%d s after it was changed back", seconds), "one", want)
	}
}

// TestRestartIsSeen: a container that was started again in its sandbox is certainly needed, even if the runtime has not
// kept the one before. After a boot a debug container may be started again too.
func TestRestartIsSeen(t *testing.T) {
	for _, c := range []struct {
		what, sandbox, want string
		change              func(cri.Pod) cri.Pod
		restarts            bool
	}{
		{"started again, and seen", "s1", "10.0.0.1!", func(p cri.Pod) cri.Pod { return again(p, "app") }, false},
		{"started again while the wrapper was", "s1", "10.0.0.1!", func(p cri.Pod) cri.Pod {
			return restarted(again(p, "app"), "app")
		}, true},
		{"started by a boot", "s2", "10.0.0.1", func(p cri.Pod) cri.Pod { return p }, false},
		{"only the wrapper was started again", "s1", "10.0.0.1", func(p cri.Pod) cri.Pod { return p }, true},
	} {
		b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app", "sidecar"), sliceFor("one", own))
		b.out(20)
		if c.restarts {
			b.restart()
		}
		b.pods = []cri.Pod{c.change(up("db", "10.0.0.1", c.sandbox, "app", "sidecar"))}
		b.run(20)
		b.expect(c.what+", and it runs", "one", "10.0.0.1")
		b.pods = []cri.Pod{c.change(up("db", "10.0.0.1", c.sandbox, "app!", "sidecar"))}
		b.run(20)
		b.expect(c.what+", and it has ended", "one", c.want)
	}
}

// TestKubeletNamedTheContainers: the kubelet has said which containers a pod needs (PodsAPI) before it died together
// with one of them.
func TestKubeletNamedTheContainers(t *testing.T) {
	p := up("db", "10.0.0.1", "s1", "app", "debugger-x")
	p.Needed = []string{"app"}
	b := newSettledBench(t, p, sliceFor("one", own))
	b.out(5)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x!")}
	b.run(5)
	if pod := b.shared.Pods[facts.PodKey{Namespace: "ns", Name: "db", UID: "uid-db"}]; !pod.Serving || pod.Suspected {
		t.Errorf("only a debug container has ended, and the pod is suspected: %+v", pod)
	}
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "debugger-x!")}
	b.run(5)
	b.expect("a needed container has ended", "one", "10.0.0.1!")
}

// TestDebuggedBeforeAReport: kubectl debug in a pod that the API server has called ready for more than a minute, to a
// wrapper without notes. The kubelet reports the node only every five minutes.
func TestDebuggedBeforeAReport(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	b.beats = true
	b.says(own, other)
	b.run(100)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x")}
	b.run(100)
	b.beat(5)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "debugger-x!")}
	b.out(20)
	b.expect("only a debug container has ended", "one", "10.0.0.1 10.0.1.1")
}

// TestSandboxWithoutContainers: the API server still calls a pod ready whose sandbox is made again, and whose container
// takes minutes to be there. The container is none of kubectl debug.
func TestSandboxWithoutContainers(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s2")}
	b.says(own, other)
	b.run(100)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s2", "app")}
	b.run(100)
	b.out(20)
	b.expect("its container runs", "one", "10.0.0.1 10.0.1.1")
}

// TestReadyWhileNoneRuns: a pod is called ready just as all of its containers have ended again. Then the link goes, and
// one of the two comes back.
func TestReadyWhileNoneRuns(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app", "sidecar"), sliceFor("one", own, other))
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar!")}
	b.says(notReady(own), other)
	b.run(2)
	b.says(own, other)
	b.run(2)
	b.out(5)
	b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app!", "sidecar"), "sidecar")}
	b.run(60)
	b.expect("one of two containers runs", "one", "10.0.1.1")
}

// TestLearnedFromAFreshAnswer: what a pod needs is not learned from an answer of the runtime that is old: it hangs,
// does not list the pod, or cannot say which addresses it has.
func TestLearnedFromAFreshAnswer(t *testing.T) {
	web := up("web", "10.0.0.2", "s9", "app")
	for what, hide := range map[string]func(*bench){
		"it hangs":                 func(b *bench) { b.err = context.DeadlineExceeded },
		"it does not list it":      func(b *bench) { b.pods = []cri.Pod{web} },
		"it has not its addresses": func(b *bench) { b.pods[0].Sick = true },
	} {
		b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app", "sidecar"),
			sliceFor("one", own, other, ep{"web", "10.0.0.2", "n0", false, false}))
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar"), web}
		b.says(notReady(own), other)
		b.run(2)
		hide(b)
		b.says(own, other)
		b.run(5)
		b.err, b.pods = nil, []cri.Pod{again(up("db", "10.0.0.1", "s1", "app", "sidecar"), "app"), web}
		b.run(12)
		b.state, b.pods = Away, []cri.Pod{again(up("db", "10.0.0.1", "s1", "app!", "sidecar"), "app"), web}
		b.run(20)
		b.expect(what, "one", "10.0.0.1! 10.0.1.1")
	}
}

// TestNotLearnedBeforeItIsReady: the API server calls a pod ready of which nothing runs, and then the node and the pod
// not ready. When the node is ready again a container is still missing.
func TestNotLearnedBeforeItIsReady(t *testing.T) {
	b := newBench(t)
	b.wanted, b.pods = true, []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar!")}
	b.says(own, other)
	b.run(5)
	b.ready = corev1.ConditionUnknown
	b.says(notReady(own), other)
	b.run(5)
	b.pods, b.ready = []cri.Pod{up("db", "10.0.0.1", "s1", "app!", "sidecar")}, corev1.ConditionTrue
	b.api()
	b.run(5)
	b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app", "sidecar"), "app")}
	b.says(own, other)
	b.run(5)
	b.state, b.pods = Away, []cri.Pod{again(up("db", "10.0.0.1", "s1", "app!", "sidecar"), "app")}
	b.run(20)
	b.expect("the container that was missing has ended", "one", "10.0.1.1")
}

// TestSidecarIsDownAsItIsCalledReady: the API server's "ready" arrives as a container has just ended. That one is
// needed nevertheless, also if the wrapper is started again meanwhile.
func TestSidecarIsDownAsItIsCalledReady(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		b := newBench(t)
		b.wanted = true
		b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app", "sidecar!")}
		b.says(notReady(own), other)
		b.run(2)
		b.says(own, other)
		b.run(5)
		b.pods = []cri.Pod{again(up("db", "10.0.0.1", "s1", "app", "sidecar"), "sidecar")}
		b.run(90)
		if restarts {
			b.restart()
		}
		b.beat(5)
		b.state, b.pods = Away, []cri.Pod{again(up("db", "10.0.0.1", "s1", "app", "sidecar!"), "sidecar")}
		b.run(20)
		b.expect(fmt.Sprintf("it has ended again, restarts %v", restarts), "one", "10.0.1.1")
	}
}

// TestNotesRest: the notes of pods that do not change do not change, so that nothing is written to the disk.
func TestNotesRest(t *testing.T) {
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app")}
	b.says(own)
	b.beat(3)
	before := string(b.store.Notes().PodNotes)
	if b.beat(3); string(b.store.Notes().PodNotes) != before {
		t.Errorf("nothing has changed, and the notes were %s, and are %s", before, b.store.Notes().PodNotes)
	}
}

// TestContainersThatEnd: what of a ready pod may have ended until it is down.
func TestContainersThatEnd(t *testing.T) {
	certain := func(p cri.Pod) cri.Pod { return restarted(p, "sidecar") }
	for _, c := range []struct{ before, after, want string }{
		{"app", "app!", "10.0.0.1!"},
		{"app third", "app! third", "10.0.0.1"},
		{"app third", "app! third!", "10.0.0.1!"},
		{"app sidecar third", "app! sidecar third", "10.0.0.1"},
		{"app sidecar third", "app sidecar! third", "10.0.0.1!"},
		{"app sidecar third", "app! sidecar! third", "10.0.0.1!"},
	} {
		pod := func(containers string) []cri.Pod {
			p := up("db", "10.0.0.1", "s1", strings.Fields(containers)...)
			if strings.Contains(containers, "sidecar") {
				p = certain(p)
			}
			return []cri.Pod{p}
		}
		for debugged, debug := range map[bool]string{false: "", true: " debugger-x"} {
			b := newSettledBench(t, pod(c.before)[0], sliceFor("one", own))
			b.pods = pod(c.before + debug) // in contact
			b.run(12)
			b.out(1)
			b.pods = pod(c.after + debug)
			b.run(20)
			b.expect(fmt.Sprintf("%s, debugged %v", c.after, debugged), "one", c.want)
		}
	}
}

// TestCertainlyNeeded: the API server's "ready" arrives as a container has ended that was started again before.
func TestCertainlyNeeded(t *testing.T) {
	b := newSettledBench(t, restarted(up("db", "10.0.0.1", "s1", "app", "sidecar"), "sidecar"), sliceFor("one", own))
	b.pods = []cri.Pod{restarted(up("db", "10.0.0.1", "s1", "app", "sidecar!"), "sidecar")}
	b.says(notReady(own))
	b.run(2)
	b.says(own)
	b.run(2)
	b.out(20)
	b.expect("it has ended", "one", "10.0.0.1!")
}

// TestManyAddresses: of the addresses that a pod has had, the oldest and the newest are kept.
func TestManyAddresses(t *testing.T) {
	b := newSettledBench(t, up("db", "10.0.0.1", "s1", "app"), sliceFor("one", own))
	b.state = Away
	for i := range 20 {
		b.pods = []cri.Pod{up("db", fmt.Sprint("10.0.0.", i+1), fmt.Sprint("s", i+1), "app")}
		b.run(2)
	}
	former := b.shared.Pods[facts.PodKey{Namespace: "ns", Name: "db", UID: "uid-db"}].Former
	if first, last := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.20"); len(former) != maxFormer ||
		former[0] != first || former[maxFormer-1] != last {
		t.Errorf("of 20 addresses are kept: %v", former)
	}
	for i, address := range former {
		if slices.Contains(former[:i], address) {
			t.Errorf("%s is kept twice", address)
		}
	}
}

// TestAbsentForAWhile: the notes of a pod are kept while it has no sandbox, so that it is known which addresses it had.
// They end with its last endpoint.
func TestAbsentForAWhile(t *testing.T) {
	web := up("web", "10.0.0.2", "s9", "app")
	b := newBench(t)
	b.pods = []cri.Pod{up("db", "10.0.0.1", "s1", "app"), web}
	b.says(own, ep{"web", "10.0.0.2", "n0", true, true})
	b.run(600)
	b.pods = []cri.Pod{web}
	b.run(12)
	if notes := string(b.store.Notes().PodNotes); !strings.Contains(notes, "uid-db") {
		t.Errorf("a pod that the API server has is not noted: %s", notes)
	}
	b.pods = []cri.Pod{up("db", "10.0.0.7", "s2", "app"), web}
	b.run(12)
	b.out(12)
	b.expect("it has another sandbox", "one", "10.0.0.2 10.0.0.7")
	b.state, b.pods = Followed, []cri.Pod{web}
	b.says(ep{"web", "10.0.0.2", "n0", true, true})
	b.run(60)
	if notes := string(b.store.Notes().PodNotes); strings.Contains(notes, "uid-db") {
		t.Errorf("a pod that has ended is noted: %s", notes)
	}
}

// TestStaticPodIsNotReadyAtFirst: a static pod has replaced a ready one in an outage. The API server calls the node and
// the former pod not ready at first, and then the new one, of which that is the kubelet's word.
func TestStaticPodIsNotReadyAtFirst(t *testing.T) {
	b := newStatic(t)
	says := func(uid string, status corev1.ConditionStatus) {
		b.ready, b.slices = status, mirrorOf(uid, sliceFor("one", at("10.0.0.7", notReady(own)), other))
		b.api()
		b.run(5)
	}
	b.out(60)
	b.pods = static("next", "10.0.0.7", "app")
	b.run(600)
	b.state = Followed
	says("former", corev1.ConditionUnknown)
	says("next", corev1.ConditionTrue)
	b.run(20)
	b.out(20)
	b.expect("it was never ready", "one", "10.0.1.1")
}
