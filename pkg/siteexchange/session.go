package siteexchange

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
	"k8s.io/klog/v2"
)

const (
	// updatePatience is how long Run waits for a new meta to be sent. memberlist sends it later too.
	updatePatience = time.Millisecond
	// leavePatience is how long a process that ends waits until another node has heard of it.
	leavePatience = time.Second
	// reclaimAfter is how long a node must have been dead before it may come back with another address. That address is
	// known from the cluster.
	reclaimAfter = time.Second
)

// session is the part of an Exchange that belongs to an address and a label. With other ones there is another session.
type session struct {
	e         *Exchange
	local     netip.AddrPort
	label     string
	transport *door
	list      *memberlist.Memberlist
	// said is the meta that was given to memberlist last, at saidAt. again has how long after that it is given once
	// more each time. Only the goroutine of Run uses them.
	said   meta
	again  []time.Duration
	saidAt time.Time
}

// sayAgain is how long after a new meta, and after that, memberlist is given the same again. News may pass by a node,
// which would hear of it half a minute later: memberlist sends it to a few nodes at random, and 0.7.0 loses it if
// it takes the place of earlier news in an otherwise empty queue, and news of the same length about two other nodes
// come before it is sent (TransmitLimitedQueue begins to count its items anew then, and two get the same number).
var sayAgain = []time.Duration{time.Second, 3 * time.Second}

// open opens a session.
func (e *Exchange) open(ctx context.Context, local netip.AddrPort, label string) (*session, error) {
	inner, err := e.config.Listen(local, e.admit)
	if err != nil {
		return nil, err
	}
	s := &session{e: e, local: local, label: label}
	s.transport = newDoor(inner, doorConfig{
		guard: &guard{keys: e.keys, label: label}, limits: e.limits, member: e.member,
		answer:    func(conn net.Conn) { s.answer(ctx, conn) },
		inspected: e.inspected, ignored: e.config.Observer.Ignored,
	})
	config := memberlist.DefaultLANConfig()
	config.Name = e.config.NodeName
	config.Transport = s.transport
	config.ProtocolVersion = memberlist.ProtocolVersion2Compatible
	config.Label = label
	config.AdvertiseAddr, config.AdvertisePort = local.Addr().String(), int(local.Port())
	config.BindAddr, config.BindPort = local.Addr().String(), int(local.Port())
	config.Keyring = e.keys.ring
	config.TCPTimeout = patience
	config.DeadNodeReclaimTime = reclaimAfter
	config.EnableCompression = false
	config.DNSConfigPath = ""
	config.Delegate, config.Events, config.Alive, config.Conflict = s, s, s, s
	config.Logger = log.New(logLines{klog.FromContext(ctx)}, "", 0)
	e.begin()
	s.said = e.meta()
	if s.list, err = memberlist.Create(config); err != nil {
		return nil, errors.Join(fmt.Errorf("starting memberlist: %w", err), s.transport.Shutdown())
	}
	return s, nil
}

// close ends the session. The other nodes hear that this wrapper is being stopped, and not that the node is dead.
func (s *session) close() error {
	// An error says that nobody has heard of it in time.
	_ = s.list.UpdateNode(leavePatience)
	_ = s.list.Leave(leavePatience)
	return s.list.Shutdown()
}

// update gives memberlist this node's meta if it has changed, or is due again.
func (s *session) update() {
	now := s.e.meta()
	switch {
	case now != s.said:
		s.said, s.again = now, sayAgain
	case len(s.again) > 0 && time.Since(s.saidAt) >= s.again[0]:
		s.again = s.again[1:]
	default:
		return
	}
	s.saidAt = time.Now()
	_ = s.list.UpdateNode(updatePatience) // an error says that it was not sent yet
}

// reach returns where a member is reached, with the port.
func (s *session) reach(m Member) (string, error) {
	to, ok := m.reach(s.local.Addr())
	if !ok {
		return "", fmt.Errorf("node %s has no address of the family of %s", m.Name, s.local.Addr())
	}
	return netip.AddrPortFrom(to, s.local.Port()).String(), nil
}

// join asks a member for all nodes that it knows, and makes this one known to it.
func (s *session) join(m Member) error {
	to, err := s.reach(m)
	if err != nil {
		return err
	}
	// Without the name memberlist would take anyone at that address.
	if _, err := s.list.Join([]string{m.Name + "/" + to}); err != nil {
		// It is a list of one error, in several lines.
		_, line, _ := strings.Cut(err.Error(), "* ")
		return fmt.Errorf("node %s: %s", m.Name, strings.TrimSpace(line))
	}
	return nil
}

// NodeMeta implements memberlist.Delegate.
func (s *session) NodeMeta(int) []byte { return s.e.meta().encode() }

// NotifyMsg implements memberlist.Delegate: nothing is believed whose sender is not known.
func (s *session) NotifyMsg([]byte) { s.e.config.Observer.Ignored(reasonFormat) }

// GetBroadcasts implements memberlist.Delegate.
func (s *session) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (s *session) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (s *session) MergeRemoteState(state []byte, _ bool) {
	if len(state) > 0 {
		s.e.config.Observer.Ignored(reasonFormat)
	}
}

// NotifyAlive implements memberlist.AliveDelegate: a node that does not belong to the site, or has another address than
// in the cluster, is not taken.
func (s *session) NotifyAlive(node *memberlist.Node) error {
	reason, err := s.judge(node)
	if err != nil {
		s.e.config.Observer.Ignored(reason)
		if reason == ReasonAddress {
			s.e.doubtAddresses()
		}
	}
	return err
}

func (s *session) judge(node *memberlist.Node) (reason string, err error) {
	address, _ := netip.AddrFromSlice(node.Addr)
	address = address.Unmap()
	if node.Name == s.e.config.NodeName {
		// What others say of this node is refuted by memberlist, but only if it is the same address.
		if address != s.local.Addr() || node.Port != s.local.Port() {
			return ReasonAddress, fmt.Errorf("this node is not at %s port %d", address, node.Port)
		}
		return "", nil
	}
	member, found := s.e.directory().byName[node.Name]
	if !found {
		return reasonNode, fmt.Errorf("node %s does not belong to the site", node.Name)
	}
	if to, ok := member.reach(s.local.Addr()); !ok || to != address || node.Port != s.local.Port() {
		return ReasonAddress, fmt.Errorf("node %s is not at %s port %d", node.Name, address, node.Port)
	}
	if _, err := parseMeta(node.Meta); err != nil {
		return reasonFormat, err
	}
	// memberlist refuses the state of all nodes if one of them does not speak what all others do.
	const ours = memberlist.ProtocolVersion2Compatible
	if node.PMin > ours || node.PMax < ours || node.PCur != ours || node.DMin != 0 || node.DCur != 0 {
		return reasonFormat, fmt.Errorf("node %s speaks version %d of memberlist's protocol, not %d",
			node.Name, node.PCur, ours)
	}
	return "", nil
}

// NotifyConflict implements memberlist.ConflictDelegate: the one that is there stays.
func (s *session) NotifyConflict(*memberlist.Node, *memberlist.Node) {
	s.e.config.Observer.Ignored(ReasonAddress)
}

// NotifyJoin implements memberlist.EventDelegate. As the two below it is called with memberlist's lock held.
func (s *session) NotifyJoin(node *memberlist.Node) { s.heard(node, true) }

// NotifyUpdate implements memberlist.EventDelegate.
func (s *session) NotifyUpdate(node *memberlist.Node) { s.heard(node, true) }

// NotifyLeave implements memberlist.EventDelegate.
func (s *session) NotifyLeave(node *memberlist.Node) { s.heard(node, false) }

func (s *session) heard(node *memberlist.Node, alive bool) {
	if node.Name == s.e.config.NodeName {
		return
	}
	said, err := parseMeta(node.Meta)
	if err != nil {
		return // NotifyAlive has refused it
	}
	s.e.heard(node.Name, said, alive)
}

// logLines takes memberlist's log.
type logLines struct{ logger klog.Logger }

// Write implements io.Writer.
func (l logLines) Write(line []byte) (int, error) {
	l.logger.V(4).Info("memberlist", "line", strings.TrimSpace(string(line)))
	return len(line), nil
}
