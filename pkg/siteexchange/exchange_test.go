package siteexchange

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// settle is how long the nodes of a small site take to hear of anything at most.
const settle = 4 * time.Second

// inSite runs a test with the started nodes of a site, in time that passes only while all wait.
func inSite(t *testing.T, count int, test func(t *testing.T, l *lan, nodes []*node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, count)
		defer startAll(nodes)()
		time.Sleep(settle)
		test(t, l, nodes)
	})
}

// TestWords: while their upstream is away, nodes know each other's pods, and hear of changes soon. Otherwise nothing is
// asked.
func TestWords(t *testing.T) {
	inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		nodes[0].runs("a=10.0.0.1", "b=10.0.0.2!")
		nodes[1].runs("c=10.0.1.1")
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if n.questions() > 0 || len(n.Words()) > 0 || n.Wanted() {
				t.Errorf("node %s has asked %d questions without need", n.name, n.questions())
			}
		}
		nodes[2].away.Store(true)
		time.Sleep(settle)
		nodes[2].expect("n0 says", nodes[2].hears("n0"), "a=10.0.0.1 b=10.0.0.2!")
		nodes[2].expect("n1 says", nodes[2].hears("n1"), "c=10.0.1.1")
		if !nodes[0].Wanted() || !nodes[1].Wanted() || nodes[2].Wanted() || len(nodes[0].Words()) > 0 {
			t.Error("only n2 needs to know the others' pods")
		}
		if age := time.Since(nodes[2].Words()["n0"].AsOf); age < time.Minute || age > time.Minute+2*settle {
			t.Errorf("n0 ran its pods %s ago", age)
		}
		before := nodes[2].questions()
		time.Sleep(time.Minute)
		if after := nodes[2].questions(); after != before || before > 4 {
			t.Errorf("it asked %d times, and %d times more without any news", before, after-before)
		}
		nodes[0].runs("a=10.0.0.1", "b=10.0.0.9")
		time.Sleep(settle)
		nodes[2].expect("n0 says", nodes[2].hears("n0"), "a=10.0.0.1 b=10.0.0.9")
		nodes[0].Share(nil)
		nodes[2].away.Store(false)
		time.Sleep(settle)
		nodes[2].expect("n0 says", nodes[2].hears("n0"), "unknown")
		for _, n := range nodes {
			for _, reason := range Reasons() {
				if count := n.ignoredFor(reason); count > 0 {
					t.Errorf("node %s has ignored something %d times: %s", n.name, count, reason)
				}
			}
		}
	})
}

// TestStart: nodes that all start at the same time know each other's pods within a few seconds.
func TestStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newSite(t, newLAN(), 3)
		for _, n := range nodes {
			n.away.Store(true)
		}
		defer startAll(nodes)()
		begun := time.Now()
		for i, n := range nodes {
			n.runs("p=10.0." + string(rune('0'+i)) + ".1")
		}
		for known := 0; known < 6; {
			time.Sleep(10 * time.Millisecond)
			known = 0
			for _, n := range nodes {
				known += len(n.Words())
			}
			if time.Since(begun) > settle {
				t.Fatalf("only %d words are known after %s", known, settle)
			}
		}
		t.Logf("all words were known after %s", time.Since(begun))
	})
}

// TestSilent: a node that dies is silent after the suspicion time, and one that was stopped is not. If none is heard
// any more, nothing is hidden. With the upstream there, nothing is.
func TestSilent(t *testing.T) {
	inSite(t, 4, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		for _, n := range nodes {
			n.expect("alive", n.alive(), strings.Join(slices.DeleteFunc([]string{"n0", "n1", "n2", "n3"},
				func(name string) bool { return name == n.name }), " "))
			n.away.Store(n != nodes[0])
		}
		dead := nodes[3].address
		begun := time.Now()
		l.setCut(func(from, to netip.Addr) bool { return from == dead || to == dead })
		for nodes[1].hidden() == "" && time.Since(begun) < time.Minute {
			time.Sleep(100 * time.Millisecond)
		}
		took := time.Since(begun)
		t.Logf("hidden %s after it died", took)
		if took < 3*time.Second || took > 30*time.Second {
			t.Errorf("it took %s", took)
		}
		time.Sleep(10 * time.Second)
		nodes[1].expect("silent", nodes[1].hidden(), "n3")
		nodes[2].expect("silent", nodes[2].hidden(), "n3")
		nodes[0].expect("silent, with an upstream", nodes[0].hidden(), "")
		nodes[3].expect("silent, cut off from all", nodes[3].hidden(), "")

		l.setCut(func(netip.Addr, netip.Addr) bool { return false })
		time.Sleep(lastPause + settle)
		nodes[1].expect("silent, it is back", nodes[1].hidden(), "")
		nodes[3].expect("alive", nodes[3].alive(), "n0 n1 n2")

		nodes[3].stop()
		time.Sleep(time.Minute)
		nodes[1].expect("silent, its wrapper was stopped", nodes[1].hidden(), "")
		nodes[1].expect("alive", nodes[1].alive(), "n0 n2")
		nodes[3].start()
		time.Sleep(lastPause + settle)
		nodes[1].expect("alive", nodes[1].alive(), "n0 n2 n3")
	})
}

// TestNotBack: a node that took part before a power cut of the whole site and does not come back is silent. One that
// was stopped before, or has never taken part, is not.
func TestNotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 5)
		stopped := startAll(nodes[:4]) // n4 has no exchange
		time.Sleep(settle)
		nodes[3].stop()
		time.Sleep(settle)
		// The power fails: nobody hears that the others stop.
		l.setCut(func(netip.Addr, netip.Addr) bool { return true })
		stopped()
		l.setCut(func(netip.Addr, netip.Addr) bool { return false })
		for i, n := range nodes[:3] {
			n.expect("partners", strings.Join(slices.Sorted(maps.Keys(n.partners)), " "),
				[]string{"n1 n2", "n0 n2", "n0 n1"}[i])
			n.away.Store(true)
		}
		defer startAll(nodes[:2])()
		time.Sleep(firstWord - settle)
		nodes[0].expect("silent", nodes[0].hidden(), "")
		time.Sleep(2 * settle)
		for _, n := range nodes[:2] {
			n.expect("silent", n.hidden(), "n2")
		}
		nodes[2].start()
		defer nodes[2].stop()
		time.Sleep(lastPause + settle)
		nodes[0].expect("silent", nodes[0].hidden(), "")
	})
}

// TestSplit: two halves of a site each keep their own, and find each other again.
func TestSplit(t *testing.T) {
	inSite(t, 6, func(_ *testing.T, l *lan, nodes []*node) {
		for i, n := range nodes {
			n.away.Store(true)
			n.runs("p=10.0." + string(rune('0'+i)) + ".1")
		}
		time.Sleep(settle)
		half := func(a netip.Addr) bool { return a.As4()[3] > 3 }
		l.setCut(func(from, to netip.Addr) bool { return half(from) != half(to) })
		time.Sleep(time.Minute)
		for i, n := range nodes {
			own, other := []string{"n0", "n1", "n2"}, []string{"n3", "n4", "n5"}
			if i > 2 {
				own, other = other, own
			}
			n.expect("silent", n.hidden(), strings.Join(other, " "))
			n.expect("alive", n.alive(), strings.Join(slices.DeleteFunc(own,
				func(name string) bool { return name == n.name }), " "))
		}
		nodes[1].runs("p=10.0.1.2")
		time.Sleep(settle)
		nodes[0].expect("n1 says", nodes[0].hears("n1"), "p=10.0.1.2")
		nodes[3].expect("n1 said", nodes[3].hears("n1"), "p=10.0.1.1")
		l.setCut(func(netip.Addr, netip.Addr) bool { return false })
		time.Sleep(lastPause + settle)
		for _, n := range nodes {
			n.expect("silent", n.hidden(), "")
		}
		nodes[3].expect("n1 says", nodes[3].hears("n1"), "p=10.0.1.2")
	})
}

// TestRelabelled: a node that leaves the site is forgotten, and one that comes is taken up.
func TestRelabelled(t *testing.T) {
	inSite(t, 3, func(_ *testing.T, _ *lan, nodes []*node) {
		all := nodes[0].Members()
		for _, n := range nodes {
			n.away.Store(true)
			n.runs("p=10.0.0.1" + n.name[1:])
		}
		time.Sleep(settle)
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.0.12")
		nodes[0].setMembers(all[:2])
		nodes[1].setMembers(all[:2])
		nodes[2].setMembers(all[2:])
		time.Sleep(time.Minute)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "unknown")
		nodes[0].expect("silent", nodes[0].hidden(), "")
		nodes[2].expect("alive", nodes[2].alive(), "")
		for _, n := range nodes {
			n.setMembers(all)
		}
		time.Sleep(lastPause + settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1 n2")
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.0.12")
	})
}

// TestRelabelledBriefly: a node that has left the site, and comes back before memberlist has taken it for dead, takes
// part again.
func TestRelabelledBriefly(t *testing.T) {
	inSite(t, 3, func(_ *testing.T, _ *lan, nodes []*node) {
		all := nodes[0].Members()
		for _, n := range nodes {
			n.away.Store(true)
			n.runs("p=10.0.0.1" + n.name[1:])
		}
		time.Sleep(settle)
		nodes[0].setMembers(all[:2])
		time.Sleep(2 * interval)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		nodes[0].setMembers(all)
		time.Sleep(settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1 n2")
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.0.12")
	})
}

// TestAddressChanges: a node that has another address now is reached there, once the cluster says so.
func TestAddressChanges(t *testing.T) {
	inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		moved := slices.Clone(nodes[0].Members())
		moved[2].Addresses = []netip.Addr{netip.MustParseAddr("192.168.9.9")}
		nodes[2].setMembers(moved)
		time.Sleep(time.Minute)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		if nodes[0].ignoredFor(reasonStranger) == 0 {
			t.Error("packets from an address that nobody has are not counted")
		}
		if doubted := nodes[0].doubted; doubted == 0 || doubted > 3 {
			t.Errorf("the addresses were doubted %d times", doubted)
		}
		nodes[0].setMembers(moved)
		nodes[1].setMembers(moved)
		time.Sleep(lastPause + settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1 n2")
		nodes[1].expect("alive", nodes[1].alive(), "n0 n2")
	})
}

// TestWithoutKey: no port is opened and nothing is sent without a key, and the Status says why.
func TestWithoutKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 2)
		for _, n := range nodes {
			n.away.Store(true)
			if err := os.Remove(n.keyFile); err != nil {
				t.Fatal(err)
			}
		}
		defer startAll(nodes)()
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if err := n.Status().Err; !errors.Is(err, ErrNoKey) || !errors.Is(err, os.ErrNotExist) {
				t.Errorf("status %v", err)
			}
		}
		if len(l.hosts) > 0 || l.packets.Load()+l.connections.Load() > 0 {
			t.Errorf("%d ports are open, %d packets were sent", len(l.hosts), l.packets.Load())
		}
		nodes[0].keys("not a key")
		time.Sleep(keyInterval + settle)
		if err := nodes[0].Status().Err; !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "line 1") ||
			strings.Contains(err.Error(), "not a key") {
			t.Errorf("status %v", err)
		}
		for _, n := range nodes {
			n.keys(testKey(1))
		}
		time.Sleep(2*keyInterval + lastPause)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		if err := nodes[0].Status().Err; err != nil {
			t.Errorf("status %v", err)
		}
		// A file that went wrong later changes nothing.
		nodes[0].keys("")
		time.Sleep(time.Minute)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
	})
}

// TestRotation: the keys are rotated node by node, in the order of the documentation, without a gap.
func TestRotation(t *testing.T) {
	inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		for _, n := range nodes {
			n.away.Store(true)
		}
		last := byte(0)
		for _, step := range [][]string{
			{testKey(1), testKey(2)}, {testKey(2), testKey(1)}, {testKey(2)},
		} {
			for _, n := range nodes {
				n.keys(step...)
				last++
				nodes[0].runs("p=10.0.0." + string(rune('0'+last)))
				time.Sleep(keyInterval + settle)
				for _, other := range nodes[1:] {
					other.expect("n0 says", other.hears("n0"), "p=10.0.0."+string(rune('0'+last)))
				}
			}
		}
		for _, n := range nodes {
			if n.ignoredFor(reasonKey) > 0 || n.hidden() != "" || len(n.Status().Alive) != 2 {
				t.Errorf("node %s: %d messages not opened, %+v", n.name, n.ignoredFor(reasonKey), n.Status())
			}
			if keys := n.Exchange.keys.ring.GetKeys(); len(keys) != 1 {
				t.Errorf("node %s: memberlist has %d keys", n.name, len(keys))
			}
		}
	})
}

// TestOthers: nodes with another key, of another cluster, or that do not belong to the site are not heard, and counted.
func TestOthers(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		makeOther    func(other *node, others []*node)
	}{
		{"another key", reasonKey, func(other *node, _ []*node) { other.keys(testKey(9)) }},
		{"another cluster", reasonKey, func(other *node, _ []*node) { other.cluster = "two" }},
		{"another site", reasonStranger, func(_ *node, others []*node) {
			for _, n := range others {
				n.members = n.members[:2]
			}
		}},
		{"another name", reasonNode, func(other *node, _ []*node) {
			other.name = "intruder"
			other.members = slices.Clone(other.members)
			other.members[2].Name = other.name
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				nodes := newSite(t, newLAN(), 3)
				test.makeOther(nodes[2], nodes[:2])
				defer startAll(nodes)()
				for i, n := range nodes {
					n.away.Store(true)
					n.runs("p=10.0.0." + string(rune('0'+i)))
				}
				time.Sleep(time.Minute)
				for i, n := range nodes[:2] {
					other := nodes[1-i].name
					n.expect("alive", n.alive(), other)
					n.expect("heard", n.hears(other), "p=10.0.0."+string(rune('1'-i)))
					n.expect("heard of the other", n.hears(nodes[2].name)+n.hears("n2"), "unknownunknown")
				}
				if sum := nodes[0].ignoredFor(test.reason) + nodes[1].ignoredFor(test.reason); sum == 0 {
					t.Errorf("nothing is counted: %v, %v", nodes[0].reasons, nodes[1].reasons)
				}
				if words := len(nodes[2].Words()); words > 0 {
					t.Errorf("the other one has heard %d nodes", words)
				}
			})
		})
	}
}

// TestWithoutUDP: nodes between which only TCP passes take part, know each other's pods, and say what is wrong.
func TestWithoutUDP(t *testing.T) {
	if raceDetector {
		// Without packets every probe of memberlist lasts until the next is due. Then a ticker is overdue when a select
		// looks at it, and Go 1.26 runs it there. For all goroutines of a bubble that do so at the same time, the race
		// detector has one context, and crashes.
		t.Skip("the race detector crashes")
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		l.lossy.Store(true)
		nodes := newSite(t, l, 3)
		defer startAll(nodes)()
		for i, n := range nodes {
			n.away.Store(true)
			n.runs("p=10.0.0." + string(rune('0'+i)))
		}
		time.Sleep(lastPause)
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.0.2")
		time.Sleep(udpPatience)
		for _, n := range nodes {
			n.expect("silent", n.hidden(), "")
			if got := n.Status().WithoutUDP; len(got) != 2 {
				t.Errorf("node %s: no packets come from %v", n.name, got)
			}
		}
		l.lossy.Store(false)
		time.Sleep(settle)
		if got := nodes[0].Status().WithoutUDP; len(got) > 0 {
			t.Errorf("packets come, and not from %v", got)
		}
	})
}

// TestMistakes: a Status says what an operator may have done wrong: a node has another key or another port, or the file
// with the keys was damaged later.
func TestMistakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newSite(t, newLAN(), 4)
		nodes[2].keys(testKey(9))
		nodes[3].port = testPort + 1
		defer startAll(nodes)()
		time.Sleep(time.Minute)
		for _, n := range nodes[:2] {
			s := n.Status()
			if !slices.Equal(s.OtherKey, []string{"n2"}) || s.Unreached == nil || s.KeyErr != nil {
				t.Errorf("node %s: %+v", n.name, s)
			}
		}
		if s := nodes[2].Status(); len(s.OtherKey) == 0 || len(s.Alive) > 0 {
			t.Errorf("the node with another key: %+v", s)
		}
		s := nodes[3].Status()
		if len(s.Alive) > 0 || s.Unreached == nil || !strings.HasPrefix(s.Unreached.Error(), "node n0: ") ||
			!strings.Contains(s.Unreached.Error(), "refused") {
			t.Errorf("the node with another port: %+v", s)
		}
		nodes[2].keys(testKey(1))
		nodes[0].keys(testKey(1), "and a line that is none")
		time.Sleep(lastPause + 2*keyInterval + keyPatience)
		s = nodes[0].Status()
		if s.KeyErr == nil || s.Err != nil || !slices.Equal(s.Alive, []string{"n1", "n2"}) || len(s.OtherKey) > 0 {
			t.Errorf("the node with a damaged file: %+v", s)
		}
	})
}

// TestTooMany: no exchange begins among more nodes than a site can have.
func TestTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 1)
		for i := range maxMembers {
			nodes[0].members = append(nodes[0].members, Member{Name: "more" + string(rune(i+1000))})
		}
		defer startAll(nodes)()
		time.Sleep(settle)
		if err := nodes[0].Status().Err; !errors.Is(err, ErrTooMany) || len(l.hosts) > 0 {
			t.Errorf("status %v", err)
		}
	})
}

// TestListenFails: a port that is taken is tried again.
func TestListenFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 2)
		taken, err := l.listen(netip.AddrPortFrom(nodes[0].address, testPort), func(netip.Addr) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		defer startAll(nodes)()
		time.Sleep(time.Minute)
		if err := nodes[0].Status().Err; err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("status %v", err)
		}
		if err := taken.Shutdown(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(lastPause + settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
	})
}

// TestNetwork: the same over UDP and TCP.
func TestNetwork(t *testing.T) {
	nodes := newSite(t, newLAN(), 3)
	var members []Member
	for i := range nodes {
		members = append(members, Member{
			Name: nodes[i].name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 17, 94, byte(i + 1)})},
		})
	}
	for _, n := range nodes {
		n.members = members
		n.away.Store(true)
	}
	var stops []func()
	defer func() {
		var wg sync.WaitGroup
		for _, stop := range stops {
			wg.Go(stop)
		}
		wg.Wait()
	}()
	for i, n := range nodes {
		n.listen = listenNetwork
		n.start()
		stops = append(stops, n.stop)
		n.runs("p=10.0." + string(rune('0'+i)) + ".1")
	}
	begun := time.Now()
	for known := 0; known < 6; time.Sleep(10 * time.Millisecond) {
		known = 0
		for _, n := range nodes {
			known += len(n.Words())
		}
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("only %d words are known", known)
		}
	}
	nodes[2].expect("n1 says", nodes[2].hears("n1"), "p=10.0.1.1")
	t.Logf("all words were known after %s", time.Since(begun))
}
