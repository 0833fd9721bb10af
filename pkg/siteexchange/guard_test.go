package siteexchange

import (
	"bytes"
	"compress/lzw"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"hash/crc32"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// memberSealed seals a message as memberlist does, in one of its two ways.
func memberSealed(t *testing.T, way byte, plain, authenticated []byte) []byte {
	t.Helper()
	block, err := aes.NewCipher(ringOf(t, testKey(1)).gossip[0])
	if err != nil {
		t.Fatal(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		t.Fatal(err)
	}
	nonce := bytes.Repeat([]byte{3}, gcm.NonceSize())
	return gcm.Seal(append([]byte{way}, nonce...), nonce, plain, authenticated)
}

func labelled(message []byte) []byte {
	return append(append([]byte{244, byte(len(label))}, label...), message...)
}

// memberPacket is a packet of a node that has the key.
func memberPacket(t *testing.T, way byte, plain []byte) []byte {
	t.Helper()
	return labelled(memberSealed(t, way, plain, []byte(label)))
}

// memberStream is what a node that has the key sends on a connection, after the label.
func memberStream(t *testing.T, way byte, plain []byte) []byte {
	t.Helper()
	head := binary.BigEndian.AppendUint32([]byte{10}, uint32(29+len(plain)))
	return append(head, memberSealed(t, way, plain, slices.Concat(head, []byte(label)))...)
}

func packed(t *testing.T, kind byte, message any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := codec.NewEncoder(&b, &codec.MsgpackHandle{}).Encode(message); err != nil {
		t.Fatal(err)
	}
	return append([]byte{kind}, b.Bytes()...)
}

// bomb is a message that takes more than 30 MiB when it is decompressed.
func bomb(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lzw.NewWriter(&b, lzw.LSB, 8)
	if _, err := w.Write(make([]byte, 32<<20)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed(t, 9, map[string]any{"Algo": 0, "Buf": b.Bytes()})
}

// refusedOnStreams are messages of a node that has the key, which memberlist cannot read, or only at a high price. Two
// of them end its process.
func refusedOnStreams(t *testing.T) map[string][]byte {
	t.Helper()
	return map[string][]byte{
		"empty":              memberStream(t, 1, nil),
		"padded with more":   memberStream(t, 0, bytes.Repeat([]byte{200}, 32)),
		"a bomb":             memberStream(t, 1, bomb(t)),
		"a million nodes":    memberStream(t, 1, packed(t, 6, map[string]any{"Nodes": 1 << 20})),
		"-1 nodes":           memberStream(t, 1, packed(t, 6, map[string]any{"Nodes": -1})),
		"a large user state": memberStream(t, 1, packed(t, 6, map[string]any{"UserStateLen": 20 << 20})),
		"a user message":     memberStream(t, 1, packed(t, 8, map[string]any{"UserMsgLen": 20 << 20})),
		"not encrypted":      packed(t, 6, map[string]any{"Nodes": 1}),
		"larger than any":    append([]byte{10}, 0x7f, 0xff, 0xff, 0xff),
	}
}

// TestGuardStreams: what memberlist should not read on a connection is refused and counted, whoever has made the
// connection.
func TestGuardStreams(t *testing.T) {
	for name, message := range refusedOnStreams(t) {
		t.Run(name, func(t *testing.T) {
			inPair(t, func(t *testing.T, n *node, neighbour *host) {
				t.Helper()
				before := n.ignoredFor(reasonFormat)
				conn, err := neighbour.DialTimeout(netip.AddrPortFrom(n.address, testPort).String(), time.Second)
				if err != nil {
					t.Fatal(err)
				}
				go func() { _, _ = conn.Write(labelled(message)) }()
				synctest.Wait()
				if got := n.ignoredFor(reasonFormat) - before; got != 1 {
					t.Errorf("%d are counted when the neighbour connects: %v", got, n.reasons)
				}
				_ = conn.Close()
				before = n.ignoredFor(reasonFormat)
				// n0 tries to join its neighbour now and then.
				theirs := <-neighbour.streams
				go func() {
					_, _ = theirs.Read(make([]byte, 64<<10))
					_, _ = theirs.Read(make([]byte, 64<<10))
					_, _ = theirs.Write(message)
				}()
				synctest.Wait()
				if got := n.ignoredFor(reasonFormat) - before; got != 1 {
					t.Errorf("%d are counted when the neighbour answers: %v", got, n.reasons)
				}
				_ = theirs.Close()
			})
		})
	}
}

// TestGuardPackets: what memberlist should not read of packets is refused and counted.
func TestGuardPackets(t *testing.T) {
	compound := func(parts ...[]byte) []byte {
		message := []byte{7, byte(len(parts))}
		for _, part := range parts {
			message = binary.BigEndian.AppendUint16(message, uint16(len(part)))
		}
		return append(message, slices.Concat(parts...)...)
	}
	summed := func(message []byte) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{12}, crc32.ChecksumIEEE(message)), message...)
	}
	ping := packed(t, 0, map[string]any{"SeqNo": 1, "Node": "n0"})
	user := []byte{8, 1, 2, 3}
	small := packed(t, 9, map[string]any{"Algo": 0, "Buf": []byte{1, 2, 3}})
	for _, test := range []struct {
		name   string
		packet []byte
		reason string
	}{
		{"a ping", memberPacket(t, 1, ping), ""},
		{"several", memberPacket(t, 1, summed(compound(ping, ping))), ""},
		{"empty", memberPacket(t, 1, nil), reasonFormat},
		{"padded with more", memberPacket(t, 0, bytes.Repeat([]byte{200}, 32)), reasonFormat},
		{"compressed", memberPacket(t, 1, small), reasonFormat},
		{"compressed among others", memberPacket(t, 1, summed(compound(ping, small))), reasonFormat},
		{"several in several", memberPacket(t, 1, compound(compound(ping))), reasonFormat},
		{"too few parts", memberPacket(t, 1, []byte{7, 9, 0, 1}), reasonFormat},
		{"a user message", memberPacket(t, 1, user), reasonFormat},
		{"another label", append([]byte{244, 1, 'x'}, memberSealed(t, 1, ping, []byte(label))...), reasonKey},
		{"no label", memberSealed(t, 1, ping, nil), reasonKey},
		{"not sealed", labelled(ping), reasonFormat},
		{"damaged", labelled(append(memberSealed(t, 1, ping, []byte(label)), 1)), reasonKey},
		{"cut", labelled([]byte{1, 2, 3}), reasonKey},
		{"half a label", []byte{244}, reasonFormat},
	} {
		t.Run(test.name, func(t *testing.T) {
			inPair(t, func(t *testing.T, n *node, neighbour *host) {
				t.Helper()
				to := netip.AddrPortFrom(n.address, testPort).String()
				if _, err := neighbour.WriteTo(test.packet, to); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for _, reason := range Reasons() {
					want := 0
					if reason == test.reason {
						want = 1
					}
					if got := n.ignoredFor(reason); got != want {
						t.Errorf("%d are counted as %s", got, reason)
					}
				}
			})
		})
	}
}

// TestLentSender: a neighbour cannot make this node send packets to an address that no node of the site has.
func TestLentSender(t *testing.T) {
	inPair(t, func(t *testing.T, n *node, neighbour *host) {
		t.Helper()
		stranger, err := neighbour.lan.listen(netip.MustParseAddrPort("10.9.9.9:53"),
			func(netip.Addr) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stranger.Shutdown() }()
		address := net.IPv4(10, 9, 9, 9).To4()
		for _, message := range [][]byte{
			packed(t, 0, map[string]any{
				"SeqNo": 1, "Node": "n0", "SourceAddr": []byte(address), "SourcePort": 53, "SourceNode": "n1",
			}),
			packed(t, 1, map[string]any{"SeqNo": 1, "Target": []byte(address), "Port": 53, "Node": "n1"}),
		} {
			_, err := neighbour.WriteTo(memberPacket(t, 1, message), netip.AddrPortFrom(n.address, testPort).String())
			if err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		if got := len(stranger.PacketCh()); got > 0 {
			t.Errorf("it has sent %d packets", got)
		}
	})
}

// TestLiesAboutOthers: a node that has the key and says of another one that it is dead cannot hide that one's
// endpoints, and not keep it from being heard. When that node dies, it is silent nevertheless.
func TestLiesAboutOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLAN()
		nodes := newSite(t, l, 4)
		liar := nodes[3]
		played, err := l.listen(netip.AddrPortFrom(liar.address, testPort), func(netip.Addr) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = played.Shutdown() }()
		defer startAll(nodes[:3])()
		for _, n := range nodes[:3] {
			n.away.Store(true)
			n.runs("p=10.0.0.1" + n.name[1:])
		}
		time.Sleep(settle)
		stop := make(chan struct{})
		defer close(stop)
		go func() { // it says that n2 is dead, so that n2 cannot say otherwise
			kill := packed(t, 5, map[string]any{"Incarnation": uint32(math.MaxUint32), "Node": "n2", "From": "n3"})
			for {
				select {
				case <-played.StreamCh(): // it answers nobody
				case <-time.After(time.Second):
					for _, n := range nodes[:2] {
						to := netip.AddrPortFrom(n.address, testPort).String()
						_, _ = played.WriteTo(memberPacket(t, 1, kill), to)
					}
				case <-stop:
					return
				}
			}
		}()
		for i := range 60 {
			nodes[2].runs("p=10.0.2." + strconv.Itoa(i+1))
			time.Sleep(time.Second)
			if hidden := nodes[0].hidden() + nodes[1].hidden(); hidden != "" {
				t.Fatalf("%s is hidden after %d s", hidden, i)
			}
		}
		time.Sleep(2 * settle)
		nodes[0].expect("n2 says", nodes[0].hears("n2"), "p=10.0.2.60")
		dead := nodes[2].address
		l.setCut(func(from, to netip.Addr) bool { return from == dead || to == dead })
		time.Sleep(20 * time.Second)
		nodes[0].expect("silent", nodes[0].hidden(), "n2")
	})
}

// TestOtherProtocol: a node that says of itself that it speaks another version of memberlist's protocol does not keep
// the others from each other: memberlist refuses all states of which one node does not fit.
func TestOtherProtocol(t *testing.T) {
	inSite(t, 3, func(t *testing.T, l *lan, nodes []*node) {
		t.Helper()
		liar := nodes[2]
		liar.stop()
		time.Sleep(settle)
		played, err := l.listen(netip.AddrPortFrom(liar.address, testPort), func(netip.Addr) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = played.Shutdown() }()
		alive := packed(t, 4, map[string]any{
			"Incarnation": uint32(1000), "Node": "n2", "Addr": liar.address.AsSlice(), "Port": testPort,
			"Meta": meta{}.encode(), "Vsn": []uint8{5, 5, 5, 0, 0, 0},
		})
		for _, n := range nodes[:2] {
			_, err := played.WriteTo(memberPacket(t, 1, alive), netip.AddrPortFrom(n.address, testPort).String())
			if err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		if nodes[0].ignoredFor(reasonFormat) == 0 {
			t.Error("it is not counted")
		}
		nodes[1].stop()
		time.Sleep(settle)
		nodes[1].start()
		time.Sleep(settle)
		nodes[0].expect("alive", nodes[0].alive(), "n1")
		nodes[1].expect("alive", nodes[1].alive(), "n0")
	})
}
