package cri

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	// maxMessage is the largest size in bytes of a message that is read. It is the kubelet's limit: maxMsgSize of its
	// k8s.io/cri-client. A message with 1,000 containers has about 2 MB.
	maxMessage = 16 << 20
	// frameHead is the length of a message's header: whether it is compressed, and its length.
	frameHead = 5
	// notFound is gRPC's code NOT_FOUND.
	notFound = 5

	contentType = "application/grpc"
)

var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxMessage)

// statusError is a gRPC status other than OK.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string { return fmt.Sprintf("%s (gRPC status %d)", e.message, e.code) }

// connection asks one server for one message at a time, by gRPC over HTTP/2 without TLS
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
type connection struct{ *http.Transport }

// connect makes a connection to a socket. It is opened by the first question.
func connect(socket string) *connection {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true) // the socket's permissions say who may connect
	return &connection{&http.Transport{
		Protocols: &protocols,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
		DisableCompression: true,
	}}
}

// watch calls a method, and passes each message of the answer to take until the answer ends or take returns an error.
// The request is a message with one string field, number 1, or an empty one. If the server ends with a status other
// than OK, the error is a *statusError.
func (c *connection) watch(ctx context.Context, method, argument string, take func(message []byte) error) error {
	request := make([]byte, frameHead, frameHead+2+len(argument)+binary.MaxVarintLen64)
	if argument != "" {
		request = protowire.AppendTag(request, 1, protowire.BytesType)
		request = protowire.AppendString(request, argument)
	}
	binary.BigEndian.PutUint32(request[1:], uint32(len(request)-frameHead)) //nolint:gosec // the length of an id
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/"+method, bytes.NewReader(request))
	if err != nil {
		return err
	}
	r.Header = http.Header{"Content-Type": {contentType}, "Te": {"trailers"}}
	response, err := c.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %q instead of gRPC", response.Status)
	}
	for {
		message, err := readMessage(response.Body)
		switch {
		case errors.Is(err, io.EOF):
			return statusOf(response)
		case err != nil:
			return fmt.Errorf("reading a message: %w", err)
		}
		if err := take(message); err != nil {
			return err
		}
	}
}

// call calls a method of the RuntimeService, which answers with one message.
func (c *connection) call(ctx context.Context, method, argument string) (answer []byte, err error) {
	err = c.watch(ctx, "runtime.v1.RuntimeService/"+method, argument, func(message []byte) error {
		answer = message
		return nil
	})
	if err == nil && answer == nil {
		err = errors.New("the answer has no message")
	}
	return answer, err
}

// readMessage reads a message; io.EOF is the end of the answer.
func readMessage(body io.Reader) ([]byte, error) {
	var head [frameHead]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	switch {
	case head[0] != 0:
		return nil, errors.New("the answer is compressed, which was not asked for")
	case length > maxMessage:
		return nil, errTooLarge
	}
	message := make([]byte, length)
	_, err := io.ReadFull(body, message)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return message, err
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
