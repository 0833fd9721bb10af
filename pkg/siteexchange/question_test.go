package siteexchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"
)

// label is the one of the nodes of newSite.
var label = labelOf("one")

// inPair runs a test with a started node n0 and a host at the address of its neighbour n1, which the test plays.
func inPair(t *testing.T, test func(t *testing.T, n *node, neighbour *host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 2)
		played, err := l.listen(netip.AddrPortFrom(nodes[1].address, testPort), func(netip.Addr) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		defer startAll(nodes[:1])()
		nodes[0].away.Store(true)
		nodes[0].runs("own=10.0.0.77")
		synctest.Wait()
		h, ok := played.(*host)
		if !ok {
			t.Fatalf("a %T", played)
		}
		test(t, nodes[0], h)
		if err := played.Shutdown(); err != nil {
			t.Fatal(err)
		}
	})
}

func ringOf(t *testing.T, key string) *keys {
	t.Helper()
	ring, err := parseKeys([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// answerOnce answers the next question with what reply makes of it.
func answerOnce(t *testing.T, h *host, reply func(q question) []byte) {
	t.Helper()
	for {
		conn := <-h.streams
		first := make([]byte, 1)
		if _, err := io.ReadFull(conn, first); err != nil || first[0] != questionByte {
			_ = conn.Close() // memberlist's
			continue
		}
		defer conn.Close()
		_, _ = conn.Write(bytes.Repeat([]byte{7}, challengeSize))
		sealed, err := readFrame(conn, maxQuestion)
		if err != nil {
			t.Error(err)
			return
		}
		message, err := ringOf(t, testKey(1)).open(sealed, []byte(sealedQuestion+label))
		if err != nil {
			t.Error(err)
			return
		}
		var q question
		if err := json.Unmarshal(message, &q); err != nil {
			t.Error(err)
		}
		_ = writeFrame(conn, reply(q))
		return
	}
}

func sealedJSON(t *testing.T, key, what string, message any) []byte {
	t.Helper()
	encoded, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return ringOf(t, key).seal(encoded, []byte(what+label))
}

// TestAnswers: an answer counts only if it is the asked node's, to this question, and readable.
func TestAnswers(t *testing.T) {
	pods := []answerPod{{
		Namespace: "ns", Name: "p", UID: "u", Addresses: []netip.Addr{netip.MustParseAddr("10.1.1.1")},
	}}
	good := func(q question) answer {
		return answer{
			Version: wordVersion, Asker: q.Asker, Node: "n1", Nonce: q.Nonce, Run: 1, Sequence: 2, AgeMillis: 500,
			Pods: pods,
		}
	}
	seal := func(change func(*answer)) func(*testing.T, question) []byte {
		return func(t *testing.T, q question) []byte {
			t.Helper()
			a := good(q)
			change(&a)
			return sealedJSON(t, testKey(1), sealedAnswer, a)
		}
	}
	for _, test := range []struct {
		name, reason string
		reply        func(*testing.T, question) []byte
	}{
		{"good", "", seal(func(*answer) {})},
		{"another key", reasonKey, func(t *testing.T, q question) []byte {
			t.Helper()
			return sealedJSON(t, testKey(9), sealedAnswer, good(q))
		}},
		{"the question itself", reasonKey, func(t *testing.T, q question) []byte {
			t.Helper()
			return sealedJSON(t, testKey(1), sealedQuestion, q)
		}},
		{"another cluster", reasonKey, func(t *testing.T, q question) []byte {
			t.Helper()
			message, err := json.Marshal(good(q))
			if err != nil {
				t.Error(err)
			}
			return ringOf(t, testKey(1)).seal(message, []byte(sealedAnswer+labelOf("two")))
		}},
		{"in another's name", reasonNode, seal(func(a *answer) { a.Node = "n2" })},
		{"to another", reasonReplay, seal(func(a *answer) { a.Asker = "n2" })},
		{"replayed", reasonReplay, seal(func(a *answer) { a.Nonce = bytes.Repeat([]byte{1}, challengeSize) })},
		{"a later version", reasonFormat, seal(func(a *answer) { a.Version++ })},
		{"from the future", reasonFormat, seal(func(a *answer) { a.AgeMillis = -1 })},
		{"no name", reasonFormat, seal(func(a *answer) { a.Pods = []answerPod{{Namespace: "ns"}} })},
		{"many addresses", reasonFormat, seal(func(a *answer) {
			a.Pods = []answerPod{{Namespace: "ns", Name: "p", Addresses: make([]netip.Addr, 9)}}
		})},
		{"no JSON", reasonFormat, func(t *testing.T, _ question) []byte {
			t.Helper()
			return ringOf(t, testKey(1)).seal([]byte("{"), []byte(sealedAnswer+label))
		}},
		{"too long", reasonFormat, func(*testing.T, question) []byte { return make([]byte, maxAnswer+1) }},
		{"empty", reasonKey, func(*testing.T, question) []byte { return nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPair(t, func(t *testing.T, n *node, neighbour *host) {
				t.Helper()
				go answerOnce(t, neighbour, func(q question) []byte { return test.reply(t, q) })
				word, v, err := n.session.ask(n.Members()[1])
				var ignored *ignoredError
				switch {
				case test.reason == "":
					if err != nil || v != (version{1, 2}) || len(word.Pods) != 1 ||
						time.Since(word.AsOf) < 500*time.Millisecond {
						t.Errorf("got %+v, %v, %v", word, v, err)
					}
				case !errors.As(err, &ignored) || ignored.reason != test.reason:
					t.Errorf("got %v, %v, want %s", word, err, test.reason)
				}
			})
		})
	}
}

// TestSlowAnswer: one byte after another does not hold the asker.
func TestSlowAnswer(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, neighbour *host) {
		t.Helper()
		go func() {
			for {
				select {
				case conn := <-neighbour.streams:
					go func() {
						defer conn.Close()
						// memberlist does not close one that takes too long for its label.
						err := conn.SetDeadline(time.Now().Add(10 * time.Second))
						for err == nil {
							time.Sleep(time.Second)
							_, err = conn.Write([]byte{0})
						}
					}()
				case <-neighbour.done:
					return
				}
			}
		}()
		begun := time.Now()
		_, _, err := n.session.ask(n.Members()[1])
		if !IsTimeout(err) || time.Since(begun) > patience {
			t.Errorf("got %v after %s", err, time.Since(begun))
		}
	})
}

// TestManyPods: an answer with more pods than a node can run is refused before it takes memory.
func TestManyPods(t *testing.T) {
	pods := "[" + strings.Repeat("{},", maxAnswer/4) + "{}]"
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := parseAnswer([]byte(`{"version":1,"pods":` + pods + `}`))
	runtime.ReadMemStats(&after)
	if err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("got %v", err)
	}
	if took := after.TotalAlloc - before.TotalAlloc; took > 3*maxAnswer {
		t.Errorf("it took %d bytes", took)
	}
}

// TestOldAnswer: an answer that is older than the one before changes nothing.
func TestOldAnswer(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, _ *host) {
		t.Helper()
		take := func(pod string, v version) {
			n.Exchange.mu.Lock()
			p := n.peer("n1")
			n.Exchange.mu.Unlock()
			n.take(t.Context(), attempt{n.Members()[1], p}, wordOf(pod), v, nil)
		}
		take("new=10.1.1.2", version{1, 5})
		take("old=10.1.1.1", version{1, 4})
		n.expect("n1 says", n.hears("n1"), "new=10.1.1.2")
		if n.ignoredFor(reasonOld) != 1 {
			t.Errorf("counted %v", n.reasons)
		}
		take("restarted=10.1.1.3", version{2, 1})
		n.expect("n1 says", n.hears("n1"), "restarted=10.1.1.3")
	})
}

// TestPodAddresses: of a pod that says that it has an address which is another's, nothing is known.
func TestPodAddresses(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, neighbour *host) {
		t.Helper()
		said := []string{
			"10.1.1.1", "fd00::1", // fine
			"192.168.0.1", "192.168.0.2", "10.0.0.77", "127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1",
			"224.0.0.1", "255.255.255.255", "::ffff:127.0.0.1",
		}
		go answerOnce(t, neighbour, func(q question) []byte {
			a := answer{Version: wordVersion, Asker: q.Asker, Node: "n1", Nonce: q.Nonce}
			for _, address := range said {
				a.Pods = append(a.Pods, answerPod{
					Namespace: "ns", Name: "p" + address, Addresses: []netip.Addr{netip.MustParseAddr(address)},
				})
			}
			return sealedJSON(t, testKey(1), sealedAnswer, a)
		})
		word, _, err := n.session.ask(n.Members()[1])
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, pod := range word.Pods {
			kept = append(kept, pod.Addresses[0].String())
		}
		slices.Sort(kept)
		if got := strings.Join(kept, " "); got != "10.1.1.1 fd00::1" || n.ignoredFor(ReasonAddress) != len(said)-2 {
			t.Errorf("kept %s, counted %v", got, n.reasons)
		}
	})
}

// TestQuestions: only questions of a neighbour in its own name, on this connection, and not too many are answered.
func TestQuestions(t *testing.T) {
	type call struct {
		q    question
		conn net.Conn
	}
	for _, test := range []struct {
		name, reason string
		sealed       func(t *testing.T, c call) []byte
	}{
		{"good", "", func(t *testing.T, c call) []byte {
			t.Helper()
			return sealedJSON(t, testKey(1), sealedQuestion, c.q)
		}},
		{"another key", reasonKey, func(t *testing.T, c call) []byte {
			t.Helper()
			return sealedJSON(t, testKey(9), sealedQuestion, c.q)
		}},
		{"in another's name", reasonNode, func(t *testing.T, c call) []byte {
			t.Helper()
			c.q.Asker = "n2"
			return sealedJSON(t, testKey(1), sealedQuestion, c.q)
		}},
		{"to another", reasonNode, func(t *testing.T, c call) []byte {
			t.Helper()
			c.q.Node = "n2"
			return sealedJSON(t, testKey(1), sealedQuestion, c.q)
		}},
		{"replayed", reasonReplay, func(t *testing.T, c call) []byte {
			t.Helper()
			c.q.Challenge = bytes.Repeat([]byte{1}, challengeSize)
			return sealedJSON(t, testKey(1), sealedQuestion, c.q)
		}},
		{"another version", reasonFormat, func(t *testing.T, c call) []byte {
			t.Helper()
			c.q.Version++
			return sealedJSON(t, testKey(1), sealedQuestion, c.q)
		}},
		{"too long", reasonFormat, func(*testing.T, call) []byte { return make([]byte, maxQuestion+1) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPair(t, func(t *testing.T, n *node, neighbour *host) {
				t.Helper()
				conn, challenge := beginQuestion(t, n, neighbour)
				defer conn.Close()
				q := question{
					Version: wordVersion, Asker: "n1", Node: "n0", Challenge: challenge,
					Nonce: bytes.Repeat([]byte{3}, challengeSize),
				}
				go func() { _ = writeFrame(conn, test.sealed(t, call{q, conn})) }()
				sealed, err := readFrame(conn, maxAnswer)
				synctest.Wait()
				if test.reason != "" {
					if err == nil || n.ignoredFor(test.reason) != 1 {
						t.Errorf("got %d bytes, %v, counted %v", len(sealed), err, n.reasons)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				message, err := ringOf(t, testKey(1)).open(sealed, []byte(sealedAnswer+label))
				if err != nil {
					t.Fatal(err)
				}
				a, err := parseAnswer(message)
				if err != nil || a.Node != "n0" || a.Asker != "n1" || !bytes.Equal(a.Nonce, q.Nonce) ||
					len(a.Pods) != 1 || a.Pods[0].Name != "own" {
					t.Errorf("got %+v, %v", a, err)
				}
			})
		})
	}
}

// beginQuestion begins a question to a node, and returns its challenge.
func beginQuestion(t *testing.T, n *node, from *host) (net.Conn, []byte) {
	t.Helper()
	conn, err := from.DialTimeout(netip.AddrPortFrom(n.address, testPort).String(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	challenge := make([]byte, challengeSize)
	if _, err = conn.Write([]byte{questionByte}); err == nil {
		_, err = io.ReadFull(conn, challenge)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil
	}
	return conn, challenge
}

// TestFlood: questions, packets and connections above the rate are dropped and counted, and do not keep others out.
func TestFlood(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, neighbour *host) {
		t.Helper()
		for i := range 10 {
			conn, _ := beginQuestion(t, n, neighbour)
			if (conn == nil) != (i >= questionBurst) {
				t.Errorf("question %d: answered: %t", i, conn != nil)
			}
			if conn != nil {
				_ = conn.Close()
			}
		}
		synctest.Wait()
		if got := n.ignoredFor(reasonFlood); got != 10-questionBurst {
			t.Errorf("%d questions are counted", got)
		}
		time.Sleep(10 * time.Second)
		before := n.ignoredFor(reasonFlood)
		for range 2 * packetBurst {
			_, _ = neighbour.WriteTo([]byte("nonsense"), netip.AddrPortFrom(n.address, testPort).String())
			synctest.Wait()
		}
		if got := n.ignoredFor(reasonFlood) - before; got != packetBurst {
			t.Errorf("%d packets are counted", got)
		}
		time.Sleep(time.Minute)
		conn, _ := beginQuestion(t, n, neighbour)
		if conn == nil {
			t.Fatal("no question is answered any more")
		}
		_ = conn.Close()
	})
}

// TestManyConnections: connections that say nothing take a limited number of places, for a limited time. Those of one
// node keep no other one out.
func TestManyConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, maxStreams/maxStreamsOf+2)
		n := nodes[0]
		var neighbours []*host
		for _, other := range nodes[1:] {
			played, err := l.listen(netip.AddrPortFrom(other.address, testPort), func(netip.Addr) bool { return true })
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = played.Shutdown() }()
			neighbours = append(neighbours, played.(*host))
		}
		defer startAll(nodes[:1])()
		n.runs("own=10.0.0.77")
		synctest.Wait()
		last := neighbours[len(neighbours)-1]
		for i, neighbour := range neighbours[:len(neighbours)-1] {
			for range maxStreamsOf + 1 {
				conn, err := neighbour.DialTimeout(netip.AddrPortFrom(n.address, testPort).String(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
			}
			synctest.Wait()
			if got := n.ignoredFor(reasonFlood); got != i+1 {
				t.Fatalf("%d connections are counted, not %d", got, i+1)
			}
			if i == 0 {
				conn, _ := beginQuestion(t, n, last)
				if conn == nil {
					t.Fatal("the other nodes' questions are not answered")
				}
				_ = conn.Close()
				synctest.Wait()
			}
		}
		if conn, _ := beginQuestion(t, n, last); conn != nil {
			t.Error("there is no limit for all")
		}
		time.Sleep(2 * firstByte)
		conn, _ := beginQuestion(t, n, last)
		if conn == nil {
			t.Fatal("no question is answered any more")
		}
		_ = conn.Close()
	})
}

// TestLongStream: memberlist reads a limited number of bytes of a connection.
func TestLongStream(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, neighbour *host) {
		t.Helper()
		conn, err := neighbour.DialTimeout(netip.AddrPortFrom(n.address, testPort).String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		// A label, and an encrypted message that says that it has 16 MiB.
		_, err = conn.Write(append(append([]byte{244, byte(len(label))}, label...), 10, 1, 0, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		written := 0
		for err == nil && written < 16<<20 {
			var m int
			m, err = conn.Write(make([]byte, 64<<10))
			written += m
		}
		if err == nil || written > maxStream {
			t.Errorf("%d bytes were taken, %v", written, err)
		}
	})
}

// TestNotifyAlive: memberlist takes the nodes of the site at their addresses and no others.
func TestNotifyAlive(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, _ *host) {
		t.Helper()
		good := meta{flags: flagPods, version: version{1, 2}}.encode()
		for _, test := range []struct {
			name, address string
			port          uint16
			meta          []byte
			reason        string
		}{
			{"n1", "192.168.0.2", testPort, good, ""},
			{"n1", "192.168.0.2", testPort, append(slices.Clone(good), "and what a later version adds"...), ""},
			{"n0", "192.168.0.1", testPort, nil, ""},
			{"n0", "192.168.0.2", testPort, nil, ReasonAddress},
			{"n1", "192.168.0.1", testPort, good, ReasonAddress},
			{"n1", "192.168.0.2", testPort + 1, good, ReasonAddress},
			{"n2", "192.168.0.2", testPort, good, reasonNode},
			{"", "192.168.0.2", testPort, good, reasonNode},
			{"n1", "192.168.0.2", testPort, nil, reasonFormat},
			{"n1", "192.168.0.2", testPort, []byte{0, 1}, reasonFormat},
		} {
			before := n.ignoredFor(test.reason)
			err := n.session.NotifyAlive(&memberlist.Node{
				Name: test.name, Addr: netip.MustParseAddr(test.address).AsSlice(), Port: test.port, Meta: test.meta,
				PMin: 1, PMax: 9, PCur: 2,
			})
			if (err == nil) != (test.reason == "") || n.ignoredFor(test.reason)-before != min(len(test.reason), 1) {
				t.Errorf("%+v: got %v, counted %v", test, err, n.reasons)
			}
		}
		if n.doubted != 1 { // no more than once a minute
			t.Errorf("the addresses were doubted %d times", n.doubted)
		}
		n.session.NotifyMsg([]byte("from nobody knows whom"))
		n.session.MergeRemoteState([]byte("from nobody knows whom"), true)
		if got := n.ignoredFor(reasonFormat); got != 4 {
			t.Errorf("%d are counted", got)
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
		{strings.Repeat(testKey(1)+"\n", maxKeys+1), "more than", 0},
	} {
		parsed, err := parseKeys([]byte(test.content))
		switch {
		case test.says == "" && (err != nil || len(parsed.words) != test.keys || len(parsed.gossip) != test.keys):
			t.Errorf("%q: got %+v, %v", test.content, parsed, err)
		case test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says) ||
			strings.Contains(err.Error(), "secret")):
			t.Errorf("%q: got %v", test.content, err)
		}
	}
	first, second := ringOf(t, testKey(1)), ringOf(t, testKey(2)+"\n"+testKey(1))
	if bytes.Equal(first.gossip[0], bytes.Repeat([]byte{1}, keySize)) {
		t.Error("memberlist has the key itself")
	}
	sealed := first.seal([]byte("m"), []byte("a"))
	if message, err := second.open(sealed, []byte("a")); err != nil || string(message) != "m" {
		t.Errorf("got %q, %v", message, err)
	}
	if _, err := second.open(sealed, []byte("b")); err == nil {
		t.Error("something else was authenticated")
	}
	if _, err := first.open(second.seal([]byte("m"), nil), nil); err == nil {
		t.Error("a key that is not there has opened")
	}
}

// TestKeyFile: memberlist has the keys of the file in their order, whatever they were before.
func TestKeyFile(t *testing.T) {
	f := newKeyFile(filepath.Join(t.TempDir(), "keys"))
	for _, numbers := range [][]byte{
		{1}, {1, 2}, {2, 1}, {2}, {3, 4, 5, 6}, {3, 5}, {7, 3}, {8}, {1, 2, 3, 4}, {5, 6},
	} {
		var content string
		for _, number := range numbers {
			content += testKey(number) + "\n"
		}
		if err := os.WriteFile(f.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if changed, err := f.load(); !changed || err != nil {
			t.Fatalf("%v: %t, %v", numbers, changed, err)
		}
		if changed, err := f.load(); changed || err != nil {
			t.Errorf("%v again: %t, %v", numbers, changed, err)
		}
		want, got := ringOf(t, content).gossip, f.ring.GetKeys()
		if !bytes.Equal(got[0], want[0]) || len(got) != len(want) {
			t.Errorf("%v: memberlist has %d keys", numbers, len(got))
		}
		for _, key := range want {
			if !contains(got, key) {
				t.Errorf("%v: memberlist lacks a key", numbers)
			}
		}
	}
}
