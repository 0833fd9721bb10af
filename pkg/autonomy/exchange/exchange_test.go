package exchange

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// settle is how long the nodes of a small site take to hear of anything at most.
const settle = 5 * time.Second

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

// sendAway takes their upstream away from nodes.
func sendAway(nodes []*node) {
	for _, n := range nodes {
		n.away.Store(true)
	}
}

// mendCut lets everything come everywhere again.
func mendCut(l *lan) { l.setCut(func(netip.Addr, netip.Addr) bool { return false }) }

// isolate lets nothing come to an address or from it.
func isolate(l *lan, address netip.Addr) {
	l.setCut(func(from, to netip.Addr) bool { return from == address || to == address })
}

// TestWords: while their upstream is away, nodes know each other's pods, and hear of changes soon. Otherwise they are
// asked every 5 minutes.
func TestWords(t *testing.T) {
	inSite(t, 3, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		nodes[0].runs("a=10.0.0.1", "b=10.0.0.2!")
		nodes[1].runs("c=10.0.1.1")
		time.Sleep(time.Hour)
		for _, n := range nodes {
			if asked := n.questions(); asked < 16 || asked > 40 || len(n.Words()) > 0 || n.Wanted() {
				t.Errorf("node %s has asked %d questions in an hour without need", n.name, asked)
			}
			n.expect("alive", fmt.Sprint(len(n.Status().Alive)), "2")
		}
		nodes[2].away.Store(true)
		time.Sleep(settle)
		nodes[2].expect("n0 says", nodes[2].hears("n0"), "a=10.0.0.1 b=10.0.0.2!")
		nodes[2].expect("n1 says", nodes[2].hears("n1"), "c=10.0.1.1")
		if !nodes[0].Wanted() || !nodes[1].Wanted() || nodes[2].Wanted() || len(nodes[0].Words()) > 0 {
			t.Error("only n2 needs to know the others' pods")
		}
		if age := time.Since(nodes[2].Words()["n0"].AsOf); age < time.Hour || age > time.Hour+2*settle {
			t.Errorf("n0 ran its pods %s ago", age)
		}
		before, connections, word := l.bytes.Load(), l.connections.Load(), nodes[2].Words()["n0"]
		time.Sleep(time.Minute)
		if bytes := (l.bytes.Load() - before) / 120; bytes > 300 || l.connections.Load() > connections+2 {
			t.Errorf("a question without news takes %d bytes, and %d connections were made", bytes,
				l.connections.Load()-connections)
		}
		if nodes[2].Words()["n0"] != word {
			t.Error("the same word is another pointer")
		}
		nodes[0].runs("a=10.0.0.1", "b=10.0.0.9")
		time.Sleep(settle)
		nodes[2].expect("n0 says", nodes[2].hears("n0"), "a=10.0.0.1 b=10.0.0.9")
		nodes[0].Share(nil)
		time.Sleep(settle)
		nodes[2].expect("n0 says nothing new", nodes[2].hears("n0"), "a=10.0.0.1 b=10.0.0.9")
		nodes[2].away.Store(false)
		time.Sleep(settle)
		nodes[2].expect("n1 says", nodes[2].hears("n1"), "unknown")
		for _, n := range nodes {
			for _, reason := range Reasons() {
				if count := n.ignoredFor(reason); count > 0 {
					t.Errorf("node %s has ignored something %d times: %s", n.name, count, reason)
				}
			}
		}
	})
}

// TestSilent: a node that dies is silent soon, and one whose wrapper was stopped is suspected. With the upstream there,
// nothing is hidden.
func TestSilent(t *testing.T) {
	for _, count := range []int{2, 4} { // a site of two is the commonest
		inSite(t, count, func(t *testing.T, l *lan, nodes []*node) {
			t.Helper()
			last, names := nodes[count-1], make([]string, 0, count)
			for _, n := range nodes {
				n.away.Store(true)
				n.runs("p=10.0.0.1" + n.name[1:])
				names = append(names, n.name)
			}
			time.Sleep(settle)
			dead := last.address
			begun := time.Now()
			isolate(l, dead)
			for nodes[0].hidden() == "" && time.Since(begun) < time.Minute {
				time.Sleep(100 * time.Millisecond)
			}
			took := time.Since(begun)
			t.Logf("%d nodes: hidden %s after it died", count, took)
			if took < 3*time.Second || took > 12*time.Second {
				t.Errorf("it took %s", took)
			}
			time.Sleep(10 * time.Second)
			nodes[0].expect("silent", nodes[0].hidden(), last.name)
			nodes[0].expect("its last word", nodes[0].hears(last.name), "p=10.0.0.1"+last.name[1:])
			last.expect("silent, for one that is cut off from all", last.hidden(), strings.Join(names[:count-1], " "))

			mendCut(l)
			time.Sleep(2 * settle)
			nodes[0].expect("silent, it is back", nodes[0].hidden(), "")
			last.expect("alive", last.alive(), strings.Join(names[:count-1], " "))

			last.stop()
			time.Sleep(time.Second)
			nodes[0].expect("suspected, its wrapper was stopped", nodes[0].suspects(), "")
			time.Sleep(time.Hour)
			nodes[0].expect("silent, its wrapper was stopped", nodes[0].hidden(), "")
			nodes[0].expect("suspected, its wrapper was stopped", nodes[0].suspects(), last.name)
			nodes[0].expect("alive", nodes[0].alive(), strings.Join(names[1:count-1], " "))
			last.start()
			time.Sleep(2 * settle)
			nodes[0].expect("alive", nodes[0].alive(), strings.Join(names[1:], " "))
			nodes[0].away.Store(false)
			isolate(l, dead)
			time.Sleep(time.Minute)
			nodes[0].expect("silent, with an upstream", nodes[0].hidden(), "")
			nodes[0].away.Store(true)
			time.Sleep(2 * settle)
			nodes[0].expect("silent", nodes[0].hidden(), last.name)
			nodes[0].away.Store(false)
			time.Sleep(2 * time.Second)
			nodes[0].expect("silent, the upstream is back", nodes[0].hidden(), "")
			nodes[0].away.Store(true)
			time.Sleep(2 * settle)
			nodes[0].mu.Lock()
			nodes[0].cluster = ""
			nodes[0].mu.Unlock()
			time.Sleep(2 * loadInterval)
			nodes[0].expect("silent, nothing is exchanged", nodes[0].hidden(), "")
		})
	}
}

// TestNotBack: a node that took part before a power cut of the whole site and does not come back is silent. One of
// which the machine answers, or that has never taken part, is not.
func TestNotBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 5)
		stopped := startAll(nodes[:4]) // n4 has no exchange, and its machine drops what comes
		time.Sleep(settle)
		l.setCut(func(netip.Addr, netip.Addr) bool { return true })
		stopped()
		gone := func(a netip.Addr) bool { return a == nodes[2].address || a == nodes[4].address }
		l.setCut(func(from, to netip.Addr) bool { return gone(from) || gone(to) })
		for i, n := range nodes[:3] {
			n.expect("partners", strings.Join(slices.Sorted(maps.Keys(n.partners)), " "),
				[]string{"n1 n2 n3", "n0 n2 n3", "n0 n1 n3"}[i])
			n.away.Store(true)
		}
		defer startAll(nodes[:2])()
		time.Sleep(15 * time.Second)
		for _, n := range nodes[:2] {
			n.expect("silent", n.hidden(), "n2")
		}
		mendCut(l)
		nodes[2].start()
		defer nodes[2].stop()
		time.Sleep(2 * settle)
		nodes[0].expect("silent", nodes[0].hidden(), "")
	})
}

// TestRebooted: what a node said before it was started again stands until it knows its pods. The API server's word,
// which would be used in its place, is older.
func TestRebooted(t *testing.T) {
	inSite(t, 2, func(_ *testing.T, _ *lan, nodes []*node) {
		nodes[0].away.Store(true)
		nodes[1].runs("p=10.0.1.1")
		time.Sleep(settle)
		nodes[0].expect("n1 says", nodes[0].hears("n1"), "p=10.0.1.1")
		nodes[1].stop()
		nodes[1].start()
		defer nodes[1].stop()
		time.Sleep(2 * settle)
		nodes[0].expect("n1 said", nodes[0].hears("n1"), "p=10.0.1.1")
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		nodes[1].runs("p=10.0.1.2")
		time.Sleep(settle)
		nodes[0].expect("n1 says", nodes[0].hears("n1"), "p=10.0.1.2")
	})
}

// TestSeveralAddresses: nodes whose two families are in the same order or in another one, or of which one family is cut
// off, find each other.
func TestSeveralAddresses(t *testing.T) {
	v4 := []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")}
	v6 := []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}
	for _, second := range [][]netip.Addr{{v6[1], v4[1]}, {v4[1], v6[1]}} {
		synctest.Test(t, func(t *testing.T) {
			l := newLAN()
			nodes := newSite(t, l, 2)
			members := []facts.SiteNode{
				{Name: "n0", InternalIPs: []netip.Addr{v4[0], v6[0]}, Shown: true},
				{Name: "n1", InternalIPs: second, Shown: true},
			}
			for _, n := range nodes {
				n.setMembers(members)
				n.away.Store(true)
			}
			defer startAll(nodes)()
			time.Sleep(2 * settle)
			for _, family := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
				l.setCut(func(from, _ netip.Addr) bool { return family(from) })
				time.Sleep(4 * settle)
				nodes[0].expect("alive", nodes[0].alive(), "n1")
				nodes[1].expect("alive", nodes[1].alive(), "n0")
			}
		})
	}
}

// TestAnswers: pods are told only to those who need them and have another version.
func TestAnswers(t *testing.T) {
	inSite(t, 2, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		n := nodes[0]
		if got := n.answerQuestion("n1", question{Needs: true}); got.Version != 0 || got.Pods != nil {
			t.Errorf("nothing is known, and the answer is %+v", got)
		}
		n.runs("p=10.0.0.1")
		version := n.answerQuestion("n1", question{}).Version
		for asked, want := range map[question]bool{
			{}: false, {Needs: true}: true, {Needs: true, Version: version}: false,
			{Needs: true, Version: version - 1}: true, {Version: version - 1}: false,
		} {
			if got := n.answerQuestion("n1", asked); got.Version != version || got.Pods != nil != want {
				t.Errorf("%+v is answered with %+v", asked, got)
			}
		}
		n.runs("p=10.0.0.1")
		if got := n.answerQuestion("n1", question{}).Version; got != version {
			t.Error("the same pods have another version")
		}
	})
}

// TestConnectionsEnd: a connection is not used when what was proved on it no longer holds.
func TestConnectionsEnd(t *testing.T) {
	for what, change := range map[string]func(n *node){
		"another cluster": func(n *node) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.cluster = "another"
		},
		"no cluster": func(n *node) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.cluster = ""
		},
		"another key":                  func(n *node) { n.keys(testKey(7)) },
		"the other is not of the site": func(n *node) { n.setMembers(n.Site()[:1]) },
		"too many nodes": func(n *node) {
			members := slices.Clone(n.Site())
			for i := range maxMembers {
				members = append(members, facts.SiteNode{Name: fmt.Sprint("more", i)})
			}
			n.setMembers(members)
		},
	} {
		inSite(t, 2, func(_ *testing.T, _ *lan, nodes []*node) {
			sendAway(nodes)
			time.Sleep(settle)
			nodes[1].expect("alive", nodes[1].alive(), "n0")
			change(nodes[0])
			time.Sleep(2*loadInterval + settle)
			nodes[1].expect("alive, and "+what, nodes[1].alive(), "")
		})
	}
}

// TestNeverAPartner: a machine that refuses connections, and has never taken part, is not suspected. While nothing is
// exchanged, those that have are not forgotten.
func TestNeverAPartner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := newSite(t, newLAN(), 2)
		nodes[0].away.Store(true)
		stop := startAll(nodes[:1])
		time.Sleep(time.Minute)
		nodes[0].expect("suspected", nodes[0].suspects(), "")
		stop()
		nodes[0].partners = map[string]struct{}{"n1": {}}
		nodes[0].setMembers(nil)
		stop = startAll(nodes[:1])
		time.Sleep(time.Minute)
		stop()
		if _, found := nodes[0].partners["n1"]; !found {
			t.Error("a partner is forgotten while this node's address is not known")
		}
	})
}

// TestUnreached: which errors mean that nothing arrives from a machine.
func TestUnreached(t *testing.T) {
	for err, want := range map[error]bool{
		os.ErrDeadlineExceeded: true, context.DeadlineExceeded: true, syscall.EHOSTUNREACH: true,
		syscall.ENETUNREACH: true, syscall.ENETDOWN: true, syscall.ECONNREFUSED: false, syscall.ECONNRESET: false,
		io.EOF: false, net.ErrClosed: false,
	} {
		if got := errors.Is(unreached(&net.OpError{Op: "dial", Err: err}), errNothing); got != want {
			t.Errorf("%v: nothing arrives: %v", err, got)
		}
	}
}

// TestRelabelled: a node that leaves the site is forgotten, and one that comes is taken up.
func TestRelabelled(t *testing.T) {
	inSite(t, 3, func(_ *testing.T, _ *lan, nodes []*node) {
		all := nodes[0].Site()
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
		time.Sleep(2 * settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1 n2")
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.0.12")
	})
}

// TestAddressChanges: a node that has another address now is reached there, once the cluster says so.
func TestAddressChanges(t *testing.T) {
	inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		sendAway(nodes)
		moved := slices.Clone(nodes[0].Site())
		moved[2].InternalIPs = []netip.Addr{netip.MustParseAddr("192.168.9.9")}
		nodes[2].setMembers(moved)
		time.Sleep(time.Minute)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		if nodes[0].ignoredFor(reasonStranger) == 0 {
			t.Error("packets from an address that nobody has are not counted")
		}
		if unknown := nodes[0].unknown; unknown == 0 || unknown > 3 {
			t.Errorf("the addresses were called unknown %d times", unknown)
		}
		nodes[0].setMembers(moved)
		nodes[1].setMembers(moved)
		time.Sleep(2 * settle)
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
		if len(l.hosts) > 0 || l.connections.Load() > 0 {
			t.Errorf("%d ports are open, %d connections were made", len(l.hosts), l.connections.Load())
		}
		nodes[0].keys("not a key")
		time.Sleep(loadInterval + settle)
		if err := nodes[0].Status().Err; !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "line 1") ||
			strings.Contains(err.Error(), "not a key") {
			t.Errorf("status %v", err)
		}
		for _, n := range nodes {
			n.keys(testKey(1))
		}
		time.Sleep(2*loadInterval + settle)
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
		sendAway(nodes)
		last := byte(0)
		for _, step := range [][]string{
			{testKey(1), testKey(2)}, {testKey(2), testKey(1)}, {testKey(2)},
		} {
			for _, n := range nodes {
				n.keys(step...)
				last++
				nodes[0].runs("p=10.0.0." + string(rune('0'+last)))
				time.Sleep(loadInterval + settle)
				for _, other := range nodes[1:] {
					other.expect("n0 says", other.hears("n0"), "p=10.0.0."+string(rune('0'+last)))
				}
			}
		}
		for _, n := range nodes {
			if n.ignoredFor(reasonKey) > 0 || n.hidden() != "" || len(n.Status().Alive) != 2 {
				t.Errorf("node %s: %d messages not opened, %+v", n.name, n.ignoredFor(reasonKey), n.Status())
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
		{"another name", reasonKey, func(other *node, _ []*node) {
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
			if s := n.Status(); s.Unreached == nil || s.KeyErr != nil ||
				!strings.HasPrefix(s.Unreached.Error(), "node n2: ") || !strings.Contains(s.Unreached.Error(), "key") {
				t.Errorf("node %s: %+v", n.name, s)
			}
		}
		if s := nodes[2].Status(); s.Unreached == nil || len(s.Alive) > 0 {
			t.Errorf("the node with another key: %+v", s)
		}
		s := nodes[3].Status()
		if len(s.Alive) > 0 || s.Unreached == nil || !strings.HasPrefix(s.Unreached.Error(), "node n0: ") ||
			!strings.Contains(s.Unreached.Error(), "refused") {
			t.Errorf("the node with another port: %+v", s)
		}
		nodes[2].keys(testKey(1))
		nodes[0].keys(testKey(1), "and a line that is none")
		time.Sleep(settle + 2*loadInterval + checkInterval/5)
		s = nodes[0].Status()
		if s.KeyErr == nil || s.Err != nil || !slices.Equal(s.Alive, []string{"n1", "n2"}) {
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
			nodes[0].members = append(nodes[0].members, facts.SiteNode{Name: "more" + string(rune(i+1000))})
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
		taken, err := l.Listen(netip.AddrPortFrom(nodes[0].address, testPort))
		if err != nil {
			t.Fatal(err)
		}
		defer startAll(nodes)()
		time.Sleep(time.Minute)
		if err := nodes[0].Status().Err; err == nil || !strings.Contains(err.Error(), "in use") {
			t.Errorf("status %v", err)
		}
		if err := taken.Close(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
	})
}

// TestNetwork: the same over TCP, beside others that take the processor. Use -count to try it often.
func TestNetwork(t *testing.T) {
	var busy atomic.Bool
	busy.Store(true)
	defer busy.Store(false)
	for range 2 * runtime.GOMAXPROCS(0) {
		go func() {
			for busy.Load() {
			}
		}()
	}
	nodes := newSite(t, newLAN(), 3)
	var members []facts.SiteNode
	for i := range nodes {
		members = append(members, facts.SiteNode{
			Name: nodes[i].name, Shown: true,
			InternalIPs: []netip.Addr{netip.AddrFrom4([4]byte{127, 17, 94, byte(i + 1)})},
		})
	}
	for i, n := range nodes {
		n.members, n.listen, n.dial = members, listenTCP, dialTCP
		n.away.Store(true)
		n.start()
		defer n.stop()
		n.runs("p=10.0." + string(rune('0'+i)) + ".1")
	}
	within := func(what string, done func() bool) {
		t.Helper()
		for begun := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Since(begun) > 20*time.Second {
				t.Fatalf("%s: not within %s", what, time.Since(begun))
			}
		}
	}
	within("all words are known", func() bool {
		known := 0
		for _, n := range nodes {
			known += len(n.Words())
		}
		return known == 6
	})
	nodes[2].expect("n1 says", nodes[2].hears("n1"), "p=10.0.1.1")
	nodes[1].stop()
	within("n1 is gone", func() bool { return nodes[0].alive() == "n2" })
	nodes[0].expect("silent, its machine refuses connections", nodes[0].hidden(), "")
	nodes[1].start()
	defer nodes[1].stop()
	within("n1 is back", func() bool { return nodes[0].alive() == "n1 n2" })
}

// TestLies: addresses that no pod can have are left out, and counted. Those of others are left out by package livepods.
func TestLies(t *testing.T) {
	inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		nodes[0].away.Store(true)
		nodes[0].runs("mine=10.0.0.1")
		nodes[1].runs("a=10.0.1.1", "d=127.0.0.1", "e=169.254.0.1", "f=224.0.0.1", "g=0.0.0.0", "h=255.255.255.255",
			"i=fe80::1")
		time.Sleep(settle)
		nodes[0].expect("n1 says", nodes[0].hears("n1"), "a=10.0.1.1")
		if count := nodes[0].ignoredFor(ReasonAddress); count != 6 {
			t.Errorf("%d lies are counted, not 6", count)
		}
	})
}

// TestIntruder: whoever has a neighbour's address and not the key learns nothing, and takes no more than its places.
func TestIntruder(t *testing.T) {
	inSite(t, 2, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		nodes[0].runs("a=10.0.0.1")
		nodes[0].away.Store(true)
		nodes[1].stop()
		dial := func() net.Conn { return l.connect(t, nodes[1], nodes[0]) }
		right := parties{"one", "n1", "n0"}
		greet := func(conn net.Conn, key byte, p parties) (*link, error) {
			return p.exchange(key).secure(t.Context(), conn, tls.Client, p.other)
		}
		ask := func(key byte, p parties, questions int) (answers int) {
			conn := dial()
			defer conn.Close()
			l, err := greet(conn, key, p)
			for i := 0; err == nil && i < questions; i++ {
				err = l.send(message{Question: &question{Needs: true}}, time.Now().Add(patience))
				for answered := false; err == nil && !answered; { // it may ask in between
					var m message
					m, err = l.receive(time.Now().Add(patience))
					if answered = m.Answer != nil; answered {
						answers++
					}
				}
			}
			return answers
		}
		for _, test := range []struct {
			what      string
			key       byte
			p         parties
			questions int
			answers   int
			reason    string
		}{
			{"a neighbour", 1, right, 1, 1, ""},
			{"another key", 9, right, 1, 0, reasonKey},
			{"another cluster", 1, parties{"two", "n1", "n0"}, 1, 0, reasonKey},
			{"another name", 1, parties{"one", "n7", "n0"}, 1, 0, reasonKey},
			{"a question to another node", 1, parties{"one", "n1", "n7"}, 1, 0, reasonKey},
			{"its own answers", 1, parties{"one", "n0", "n1"}, 1, 0, reasonKey},
			{"many questions", 1, right, 100, questionBurst, reasonFlood},
		} {
			before := nodes[0].ignoredFor(test.reason)
			if answers := ask(test.key, test.p, test.questions); answers != test.answers {
				t.Errorf("%s: %d answers, not %d", test.what, answers, test.answers)
			}
			time.Sleep(time.Second)
			if test.reason != "" && nodes[0].ignoredFor(test.reason) == before {
				t.Errorf("%s is not counted: %v", test.what, nodes[0].reasons)
			}
		}
		sends := func(value any) func(conn net.Conn) error {
			return func(conn net.Conn) error {
				l, err := greet(conn, 1, right)
				if err != nil {
					return err
				}
				return json.NewEncoder(l).Encode(value)
			}
		}
		for what, say := range map[string]func(conn net.Conn) error{
			"another protocol": func(conn net.Conn) error {
				_, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
				return err
			},
			"a question that is none": sends([]string{"?"}),
			"an answer to nothing": func(conn net.Conn) error {
				l, err := greet(conn, 1, right)
				for range 3 {
					if err == nil {
						err = l.send(message{Answer: &answer{}}, time.Now().Add(patience))
					}
				}
				return err
			},
			"a question that is too large": sends(map[string]string{"?": strings.Repeat("?", 2*maxMessage)}),
		} {
			before := nodes[0].ignoredFor(reasonFormat)
			conn := dial()
			// The connection may be closed before all is written.
			if err := say(conn); err != nil && !errors.Is(err, syscall.EPIPE) {
				t.Errorf("%s: %v", what, err)
			}
			time.Sleep(3 * time.Second)
			if nodes[0].ignoredFor(reasonFormat) == before {
				t.Errorf("%s is not counted", what)
			}
			_ = conn.Close()
		}
		for range 2 * maxLinksOf {
			conn := dial()
			defer conn.Close()
			if _, err := greet(conn, 1, right); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		nodes[0].Exchange.mu.Lock()
		defer nodes[0].Exchange.mu.Unlock()
		if links := len(nodes[0].links["n1"]); links != maxLinksOf {
			t.Errorf("%d connections with one node are kept", links)
		}
	})
}

// TestStrangers: connections without a word have places of their own, for no longer than a question may take. However
// many there are, the neighbour is heard.
func TestStrangers(t *testing.T) {
	inSite(t, 2, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		nodes[0].runs("a=10.0.0.1")
		open := make([]net.Conn, 2*maxStrangers)
		for i := range open {
			open[i] = l.connect(t, nodes[1], nodes[0])
		}
		time.Sleep(time.Second)
		strangers := func() int {
			nodes[0].Exchange.mu.Lock()
			defer nodes[0].Exchange.mu.Unlock()
			return len(nodes[0].strangers)
		}
		n := strangers()
		if n == 0 || n > maxStrangers {
			t.Errorf("%d connections without a word are open", n)
		}
		unknown, err := l.Dial(
			t.Context(), netip.MustParseAddr("192.168.77.7"), netip.AddrPortFrom(nodes[0].address, testPort))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if now := strangers(); now != n {
			t.Errorf("%d connections were open, and another one, of no node, has left %d", n, now)
		}
		_ = unknown.Close()
		sendAway(nodes)
		time.Sleep(settle)
		nodes[1].expect("n0 says", nodes[1].hears("n0"), "a=10.0.0.1")
		if n := strangers(); n > 0 {
			t.Errorf("%d connections without a word stay open", n)
		}
		for _, conn := range open {
			_ = conn.Close()
		}
	})
}

// TestOtherVersion: nodes of which one has another version of the protocol know that the others are alive, whoever of
// them can open a connection, and nothing of their pods.
func TestOtherVersion(t *testing.T) {
	for _, other := range []int{1, protocol - 1, protocol + 1, maxProtocol} {
		inSite(t, 3, func(t *testing.T, _ *lan, nodes []*node) {
			t.Helper()
			nodes[1].runs("b=10.0.1.1")
			sendAway(nodes)
			time.Sleep(settle)
			nodes[1].expect("n2 hears n1", nodes[2].hears("n1"), "b=10.0.1.1")
			nodes[1].stop()
			nodes[1].protocol = other
			nodes[1].dial = func(ctx context.Context, _ netip.Addr, _ netip.AddrPort) (net.Conn, error) {
				<-ctx.Done()
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
			}
			nodes[1].start()
			nodes[1].runs("b=10.0.1.1")
			for range 60 {
				time.Sleep(time.Second)
				for _, n := range nodes {
					n.expect("silent", n.hidden(), "")
					n.expect("suspected", n.suspects(), "")
				}
			}
			for _, n := range []*node{nodes[0], nodes[2]} {
				n.expect("n1 says", n.hears("n1"), "unknown")
				n.expect("n1", n.Status().Unreached.Error(), fmt.Sprintf("node n1: it is alive, but has version %d of "+
					"the site exchange and not %d: upgrade the older one", other, protocol))
			}
			nodes[0].expect("alive", nodes[0].alive(), "n2")
			nodes[1].expect("alive", nodes[1].alive(), "")
		})
	}
}

// parties are between whom a connection is, as one of them sees it.
type parties struct{ cluster, own, other string }

// exchange is that of a node with one key.
func (p parties) exchange(key byte) *Exchange {
	e := New(Config{NodeName: p.own})
	e.cluster, e.keys = p.cluster, [][]byte{slices.Repeat([]byte{key}, keySize)}
	return e
}

// TestReplay: nothing that was recorded can be used again.
func TestReplay(t *testing.T) {
	inSite(t, 2, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		nodes[0].runs("a=10.0.0.1")
		record := func(bytes []byte) []byte {
			conn := l.connect(t, nodes[1], nodes[0])
			defer conn.Close()
			_, _ = conn.Write(bytes)
			_ = conn.SetDeadline(time.Now().Add(time.Second))
			got, _ := io.ReadAll(conn)
			return got
		}
		tapped := &tap{}
		conn := l.connect(t, nodes[1], nodes[0])
		tapped.Conn = conn
		lnk, err := parties{"one", "n1", "n0"}.exchange(1).secure(t.Context(), tapped, tls.Client, "n0")
		if err == nil {
			err = lnk.send(message{Question: &question{Needs: true}}, time.Now().Add(patience))
		}
		var got answer
		for err == nil && got.Pods == nil {
			var m message
			if m, err = lnk.receive(time.Now().Add(patience)); m.Answer != nil {
				got = *m.Answer
			}
		}
		pods := []byte("10.0.0.1")
		if !bytes.Contains(got.Pods, pods) {
			t.Errorf("the neighbour is answered %+v", got)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		// The server's part of another handshake comes, and no answer after it.
		handshake := record(tapped.written[:tapped.first])
		if got := record(tapped.written); len(got) > len(handshake)+64 || bytes.Contains(got, pods) {
			t.Errorf("what was recorded is answered with %d bytes, its beginning with %d", len(got), len(handshake))
		}
		if nodes[0].ignoredFor(reasonKey) == 0 {
			t.Error("it is not counted")
		}
	})
}

// tap records what is written.
type tap struct {
	net.Conn
	written []byte
	first   int // the length of what was written first
}

func (t *tap) Write(p []byte) (int, error) {
	if t.written = append(t.written, p...); t.first == 0 {
		t.first = len(p)
	}
	return t.Conn.Write(p)
}

// TestLargeSite: in a large site only nodes whose endpoints are shown are asked, and no more than 50 a second.
func TestLargeSite(t *testing.T) {
	inSite(t, 80, func(t *testing.T, _ *lan, nodes []*node) {
		t.Helper()
		members := slices.Clone(nodes[0].Site())
		for i := range members {
			members[i].Shown = i < 70
		}
		nodes[0].setMembers(members)
		nodes[0].away.Store(true)
		time.Sleep(4 * settle)
		if alive := len(nodes[0].Status().Alive); alive != 69 {
			t.Errorf("%d nodes are alive", alive)
		}
		before := nodes[0].questions()
		time.Sleep(10 * time.Second)
		const due = 10 * questionsPerSecond
		if asked := nodes[0].questions() - before; asked > due*11/10 || asked < due*7/10 {
			t.Errorf("%d questions in 10 s", asked)
		}
	})
}

func TestParseKeys(t *testing.T) {
	for _, test := range []struct {
		content, says string
		keys          int
	}{
		{testKey(1), "", 1},
		{"# the new one\n" + testKey(1) + "\r\n\n  " + testKey(2) + "\n", "", 2},
		{"", "no key", 0},
		{"# nothing\n", "no key", 0},
		{testKey(1) + "\nsecret", "line 2", 0},
		{"c2hvcnQ=", "line 1", 0},
	} {
		parsed, err := parseKeys([]byte(test.content))
		switch {
		case test.says == "" && (err != nil || len(parsed) != test.keys):
			t.Errorf("%q: got %+v, %v", test.content, parsed, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "secret")):
			t.Errorf("%q: got %v", test.content, err)
		}
	}
}

// TestIdleServices: neighbours hear of every Service in which a pod is idle, and read a bounded number of them.
func TestIdleServices(t *testing.T) {
	idle := make([]string, maxIdle)
	for i := range idle {
		idle[i] = fmt.Sprint("service-", i)
	}
	key := facts.PodKey{Namespace: "ns", Name: "db", UID: "uid"}
	for _, count := range []int{0, 8, 9, 100, maxIdle} {
		said := facts.LivePod{Serving: true, Idle: idle[:count]}
		pods, err := New(Config{}).decodePods(encodePods(map[facts.PodKey]facts.LivePod{key: said}))
		if heard := pods[key]; err != nil || !slices.Equal(heard.Idle, said.Idle) {
			t.Errorf("of %d Services neighbours hear %d: %v", count, len(heard.Idle), err)
		}
	}
	half := facts.LivePod{Idle: idle[:maxIdle/2+1]}
	tooMany := encodePods(map[facts.PodKey]facts.LivePod{key: half, {Namespace: "ns", Name: "web"}: half})
	if _, err := New(Config{}).decodePods(tooMany); err == nil {
		t.Errorf("more than %d Services are read", maxIdle)
	}
}

// TestNeighboursHearAll: neighbours hear each field of a pod, beside serving, so that nodes that do not know the others
// are not misled.
func TestNeighboursHearAll(t *testing.T) {
	address := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
	former := []netip.Addr{netip.MustParseAddr("10.0.0.9")}
	key := facts.PodKey{Namespace: "ns", Name: "db", UID: "uid"}
	for _, said := range []facts.LivePod{
		{},
		{Addresses: address},
		{Addresses: address, Former: former},
		{Serving: true},
		{Serving: true, Suspected: true},
		{Serving: true, Idle: []string{"drained"}},
		{Addresses: address, Former: former, Serving: true, Suspected: true, Idle: []string{"drained"}, Why: "so"},
	} {
		pods, err := New(Config{}).decodePods(encodePods(map[facts.PodKey]facts.LivePod{key: said}))
		if heard := pods[key]; err != nil || !reflect.DeepEqual(heard, said) {
			t.Errorf("neighbours hear %+v of %+v: %v", heard, said, err)
		}
	}
}
