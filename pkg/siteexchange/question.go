package siteexchange

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"time"

	"k8s.io/klog/v2"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

// A question is a connection of its own, from the asker's InternalIP to the asked node's:
//
//	asker   1 byte    questionByte
//	asked   16 bytes  a challenge, drawn for this connection
//	asker   frame     the sealed question
//	asked   frame     the sealed answer
//
// A frame has 4 bytes with its length, big endian, and as many bytes. What is sealed is JSON; authenticated with it are
// what it is and the label of the cluster.

const (
	// questionByte begins a question. memberlist's connections begin with 244, the mark of a label.
	questionByte = 'Q'
	// challengeSize is the number of bytes of challenges and nonces.
	challengeSize = 16
	// maxQuestion is the most bytes of a sealed question.
	maxQuestion = 4 << 10
	// patience is how long a question may take, with its answer.
	patience = 3 * time.Second

	sealedQuestion, sealedAnswer = "question ", "answer "
)

// ignoredError is why a question or an answer is ignored.
type ignoredError struct {
	reason string
	err    error
}

func (e *ignoredError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *ignoredError) Unwrap() error { return e.err }

func ignore(reason, format string, args ...any) *ignoredError {
	return &ignoredError{reason: reason, err: fmt.Errorf(format, args...)}
}

func writeFrame(to io.Writer, frame []byte) error {
	if len(frame) > math.MaxInt32 {
		return errors.New("a frame is too long")
	}
	//nolint:gosec // it was checked
	_, err := to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
	return err
}

// readFrame reads a frame of no more than most bytes.
func readFrame(from io.Reader, most int64) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	length := int64(binary.BigEndian.Uint32(head[:]))
	if length > most {
		return nil, ignore(reasonFormat, "a frame of %d bytes", length)
	}
	return readExactly(from, length)
}

// readExactly reads so many bytes. It takes memory only for what has come.
func readExactly(from io.Reader, length int64) ([]byte, error) {
	var read bytes.Buffer
	if _, err := io.CopyN(&read, from, length); err != nil {
		return nil, err
	}
	return read.Bytes(), nil
}

// ask asks a member for its word. version is the one of the answer.
func (s *session) ask(m Member) (word *facts.LivePods, v version, err error) {
	to, err := s.reach(m)
	if err != nil {
		return nil, version{}, err
	}
	asked := time.Now()
	conn, err := s.transport.dial(to, patience)
	if err != nil {
		return nil, version{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(asked.Add(patience)); err != nil {
		return nil, version{}, err
	}
	if _, err := conn.Write([]byte{questionByte}); err != nil {
		return nil, version{}, err
	}
	q := question{
		Version: wordVersion, Asker: s.e.config.NodeName, Node: m.Name,
		Challenge: make([]byte, challengeSize), Nonce: make([]byte, challengeSize),
	}
	if _, err := io.ReadFull(conn, q.Challenge); err != nil {
		return nil, version{}, err
	}
	rand.Read(q.Nonce)
	message, err := json.Marshal(q)
	if err != nil {
		return nil, version{}, err
	}
	ring := s.e.keys.keys()
	if err := writeFrame(conn, ring.seal(message, []byte(sealedQuestion+s.label))); err != nil {
		return nil, version{}, err
	}
	sealed, err := readFrame(conn, maxAnswer)
	if err != nil {
		return nil, version{}, err
	}
	opened, err := ring.open(sealed, []byte(sealedAnswer+s.label))
	if err != nil {
		return nil, version{}, ignore(reasonKey, "the answer of node %s: %w", m.Name, err)
	}
	a, err := parseAnswer(opened)
	switch {
	case err != nil:
		return nil, version{}, ignore(reasonFormat, "the answer of node %s: %w", m.Name, err)
	case a.Node != m.Name:
		return nil, version{}, ignore(reasonNode, "node %s answers in the name of %s", m.Name, a.Node)
	case a.Asker != q.Asker || !bytes.Equal(a.Nonce, q.Nonce):
		return nil, version{}, ignore(reasonReplay, "the answer of node %s belongs to another question", m.Name)
	}
	word, leftOut, err := a.word(asked, s.e.possibleAddress())
	if err != nil {
		return nil, version{}, ignore(reasonFormat, "the answer of node %s: %w", m.Name, err)
	}
	for range leftOut {
		s.e.config.Observer.Ignored(ReasonAddress)
	}
	return word, version{a.Run, a.Sequence}, nil
}

// answer answers the question on a connection whose first byte was read, and closes it.
func (s *session) answer(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	err := s.tryAnswer(conn)
	var ignored *ignoredError
	if errors.As(err, &ignored) {
		s.e.config.Observer.Ignored(ignored.reason)
	}
	if err != nil {
		klog.FromContext(ctx).V(4).Info("A question was not answered", "from", conn.RemoteAddr(), "err", err)
	}
}

func (s *session) tryAnswer(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	from, ok := addressOf(conn.RemoteAddr())
	if !ok {
		return ignore(reasonStranger, "%s is no address", conn.RemoteAddr())
	}
	asker, ok := s.e.directory().byAddress[from]
	if !ok {
		return ignore(reasonStranger, "no node of the site has the address %s", from)
	}
	if !s.e.limits.questions.allow(from) {
		return ignore(reasonFlood, "node %s asks too often", asker)
	}
	challenge := make([]byte, challengeSize)
	rand.Read(challenge)
	if _, err := conn.Write(challenge); err != nil {
		return err
	}
	sealed, err := readFrame(conn, maxQuestion)
	if err != nil {
		return err
	}
	ring := s.e.keys.keys()
	opened, err := ring.open(sealed, []byte(sealedQuestion+s.label))
	if err != nil {
		return ignore(reasonKey, "the question of node %s: %w", asker, err)
	}
	var q question
	if err := json.Unmarshal(opened, &q); err != nil {
		return ignore(reasonFormat, "the question of node %s: %w", asker, err)
	}
	switch {
	case q.Version != wordVersion || len(q.Nonce) != challengeSize:
		return ignore(reasonFormat, "the question of node %s has version %d", asker, q.Version)
	case q.Asker != asker || q.Node != s.e.config.NodeName:
		return ignore(reasonNode, "node %s asks node %s in the name of %s", asker, q.Node, q.Asker)
	case !bytes.Equal(q.Challenge, challenge):
		return ignore(reasonReplay, "the question of node %s belongs to another connection", asker)
	}
	own, v := s.e.ownWord()
	if own == nil {
		return errors.New("this node does not know which pods it runs")
	}
	message, err := json.Marshal(answer{
		Version: wordVersion, Asker: asker, Node: s.e.config.NodeName, Nonce: q.Nonce,
		Run: v.run, Sequence: v.sequence, AgeMillis: max(time.Since(own.AsOf), 0).Milliseconds(), Pods: podsOf(own),
	})
	if err != nil {
		return err
	}
	if sealed = ring.seal(message, []byte(sealedAnswer+s.label)); len(sealed) > maxAnswer {
		return fmt.Errorf("the answer would have %d bytes, more than %d", len(sealed), maxAnswer)
	}
	return writeFrame(conn, sealed)
}
