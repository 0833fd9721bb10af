package cri

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxMessage is the largest message that is read, in bytes. One with 1,000 containers has about 2 MB.
	maxMessage = 8 << 20
	// idle is how long a connection is kept without a question.
	idle = 30 * time.Second

	// frameHead is the length of what precedes a message: whether it is compressed, and its length.
	frameHead = 5
	// notFound is gRPC's code for what does not exist.
	notFound = 5

	contentType = "application/grpc"
)

// errTooLarge is the error for a message of more than maxMessage bytes.
var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxMessage)

// statusError is what a runtime answers in place of a message.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%s (gRPC status %d)", e.message, e.code) }

// isGone reports whether an error says that what was asked for does not exist any more. It may have ended since it was
// listed.
func isGone(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.code == notFound
}

// connection asks one server for one message at a time, by gRPC over HTTP/2 without TLS
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type connection struct {
	transport *http.Transport
}

// connect makes a connection to a socket. It is opened by the first question.
func connect(socket string) *connection {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the socket's permissions say who may connect
	return &connection{transport: &http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		IdleConnTimeout:    idle,
		DisableCompression: true,
	}}
}

func (c *connection) close() { c.transport.CloseIdleConnections() }

// ask sends a request to a method, and returns the response, whose body the caller closes. The request is a message
// with one string field, number 1, or an empty one.
func (c *connection) ask(ctx context.Context, method, argument string) (*http.Response, error) {
	request := make([]byte, frameHead, frameHead+2+len(argument)+binary.MaxVarintLen64)
	if argument != "" {
		request = protowire.AppendTag(request, 1, protowire.BytesType)
		request = protowire.AppendString(request, argument)
	}
	binary.BigEndian.PutUint32(request[1:], uint32(len(request)-frameHead)) //nolint:gosec // the length of an id
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/"+method, bytes.NewReader(request))
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Content-Type": {contentType}, "Te": {"trailers"}}
	response, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("the answer is %q instead of gRPC", response.Status)
	}
	return response, nil
}

// watch asks a method that answers with a stream of messages, and passes each on until the stream ends or take returns
// an error. It always returns an error.
func (c *connection) watch(ctx context.Context, method string, take func(message []byte) error) error {
	response, err := c.ask(ctx, method, "")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for {
		var head [frameHead]byte
		if _, err := io.ReadFull(response.Body, head[:]); err != nil {
			return cmp.Or(statusOf(response), err)
		}
		length := int64(binary.BigEndian.Uint32(head[1:]))
		if length > maxMessage {
			return errTooLarge
		}
		frame := bytes.NewBuffer(head[:])
		if _, err := io.CopyN(frame, response.Body, length); err != nil {
			return err
		}
		message, err := unframe(frame.Bytes())
		if err != nil {
			return err
		}
		if err := take(message); err != nil {
			return err
		}
	}
}

// call asks a method of the RuntimeService. If the server answers with a status other than OK, the error is a
// *statusError.
func (c *connection) call(ctx context.Context, method, argument string) ([]byte, error) {
	response, err := c.ask(ctx, "runtime.v1.RuntimeService/"+method, argument)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, frameHead+maxMessage+1))
	switch {
	case err != nil:
		return nil, err
	case len(body) > frameHead+maxMessage:
		return nil, errTooLarge
	}
	if err := statusOf(response); err != nil {
		return nil, err
	}
	return unframe(body)
}

// statusOf returns the status of an answer whose body was read; nil if it is OK. An answer without a body has it among
// its headers.
func statusOf(response *http.Response) error {
	from := response.Trailer
	if from.Get("Grpc-Status") == "" {
		from = response.Header
	}
	code, err := strconv.Atoi(from.Get("Grpc-Status"))
	switch {
	case err != nil:
		return errors.New("the answer has no gRPC status")
	case code == 0:
		return nil
	}
	message := from.Get("Grpc-Message")
	if plain, err := url.PathUnescape(message); err == nil {
		message = plain
	}
	return &statusError{code: code, message: message}
}

// unframe returns the message of an answer, which has one.
func unframe(body []byte) ([]byte, error) {
	switch {
	case len(body) < frameHead:
		return nil, errors.New("the answer has no message")
	case body[0] != 0:
		return nil, errors.New("the answer is compressed, which was not asked for")
	case int64(binary.BigEndian.Uint32(body[1:])) != int64(len(body)-frameHead):
		return nil, errors.New("the answer's message has not the length that it says")
	}
	return body[frameHead:], nil
}
