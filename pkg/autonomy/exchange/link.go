package exchange

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"time"
)

const keySize = 32

// parseKeys reads the content of a file: one key a line, base64 of 32 bytes. Empty lines and lines that begin with #
// are skipped. A node proves the first key and accepts all. Two are needed while one replaces the other.
func parseKeys(content []byte) (keys [][]byte, err error) {
	for number, line := range bytes.Split(content, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(string(line))
		if err != nil || len(key) != keySize {
			// The line is not repeated: it may be a key.
			return nil, fmt.Errorf("line %d is not the base64 of a key of %d bytes (openssl rand -base64 %d)",
				number+1, keySize, keySize)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("it has no key")
	}
	return keys, nil
}

// A connection uses TLS 1.3. Each side presents a key pair that it derives (HKDF) from the first of its keys of the
// site, the version of the protocol, the cluster and its name. It accepts a key pair that is derived from any of its
// keys, the cluster and the other's name. Of a certificate only the public key is checked, so nothing expires. Messages
// are JSON values. Nodes with other versions of the protocol are recognised as alive, but exchange no messages.

const (
	// protocol is the version of the protocol, and maxProtocol the last one that is recognised.
	protocol, maxProtocol = 4, 16
)

// errVersion means that a node has proved that it has the key, but has another version of the protocol.
var errVersion = errors.New("it is alive, but has version")

// pair derives the key pair of a node of a cluster from a key of the site.
func pair(key []byte, protocol int, cluster, node string) ed25519.PrivateKey {
	info := fmt.Sprintf("application-grid site exchange %d\n%q %q", protocol, cluster, node)
	seed, _ := hkdf.Key(sha256.New, key, nil, info, ed25519.SeedSize) // it fails only for longer seeds or shorter keys
	return ed25519.NewKeyFromSeed(seed)
}

// link is a connection on which both sides have proved that they have a key of the site. Both ask and answer on it.
type link struct {
	*tls.Conn
	// from limits how many bytes reader reads for a message.
	from   *io.LimitedReader
	reader *json.Decoder
	// answers has the answer to the last question. ended is closed when the connection is dropped.
	answers chan answer
	ended   chan struct{}
}

// ask asks a question and waits for the answer. Only one goroutine at a time may call it.
func (l *link) ask(asked question, until time.Time) (answer, error) {
	if err := l.send(message{Question: &asked}, until); err != nil {
		return answer{}, err
	}
	select {
	case answered := <-l.answers:
		return answered, nil
	case <-l.ended:
		return answer{}, net.ErrClosed
	case <-time.After(time.Until(until)):
		return answer{}, os.ErrDeadlineExceeded
	}
}

// secure makes a link from a connection with a node. side is tls.Client for the asker and tls.Server for the asked
// node.
func (e *Exchange) secure(
	ctx context.Context, conn net.Conn, side func(net.Conn, *tls.Config) *tls.Conn, node string,
) (*link, error) {
	e.mu.Lock()
	keys, cluster := e.keys, e.cluster
	e.mu.Unlock()
	own := pair(keys[0], e.protocol, cluster, e.config.NodeName)
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, own.Public(), own)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	has := e.protocol
	secured := side(conn, &tls.Config{
		MinVersion:             tls.VersionTLS13,
		CurvePreferences:       []tls.CurveID{tls.X25519}, // the hybrid one takes 2 kB a handshake
		SessionTicketsDisabled: true,
		Certificates:           []tls.Certificate{{Certificate: [][]byte{certificate}, PrivateKey: own}},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, //nolint:gosec // the certificate is not signed by a CA, its key is checked below
		VerifyConnection: func(state tls.ConnectionState) error {
			public, _ := state.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
			for i := range maxProtocol {
				has = 1 + (e.protocol-1+i)%maxProtocol // its own first
				for _, key := range keys {
					if public.Equal(pair(key, has, cluster, node).Public()) {
						return nil
					}
				}
			}
			return ignore(reasonKey, "node %s has none of the keys", node)
		},
	})
	if err := secured.HandshakeContext(ctx); err != nil {
		return nil, reasoned(err)
	}
	if has != e.protocol {
		return nil, fmt.Errorf("%w %d of the site exchange and not %d: upgrade the older one",
			errVersion, has, e.protocol)
	}
	from := &io.LimitedReader{R: secured}
	return &link{
		Conn: secured, from: from, reader: json.NewDecoder(from),
		answers: make(chan answer, 1), ended: make(chan struct{}),
	}, nil
}

func (l *link) send(m message, until time.Time) error {
	return errors.Join(l.SetWriteDeadline(until), json.NewEncoder(l).Encode(m))
}

func (l *link) receive(until time.Time) (m message, err error) {
	l.from.N = maxMessage
	err = errors.Join(l.SetReadDeadline(until), l.reader.Decode(&m))
	if err != nil && l.from.N == 0 {
		return m, ignore(reasonFormat, "a message of more than %d bytes", maxMessage)
	}
	return m, reasoned(err)
}

// ignoredError is why a connection, a message or an address is ignored.
type ignoredError struct {
	error
	reason string
}

func ignore(reason, format string, args ...any) error {
	return &ignoredError{fmt.Errorf(format, args...), reason}
}

// reasoned adds the reason for ignoring the other side to an error, if the error is about data that it has sent.
func reasoned(err error) error {
	_, header := errors.AsType[tls.RecordHeaderError](err)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	op, _ := errors.AsType[*net.OpError](err)
	switch {
	case header, syntax, kind:
		return ignore(reasonFormat, "reading a message: %w", err)
	case op != nil && (op.Op == "local error" || op.Op == "remote error"): // an alert of TLS
		return ignore(reasonKey, "opening a message: %w", err)
	}
	return err
}
