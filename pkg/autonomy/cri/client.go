package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// sandboxPatience is how long the runtime may take to answer about one sandbox. One whose process hangs must not
	// hide all others.
	sandboxPatience = 500 * time.Millisecond
	// maxAddresses is the largest number of a pod's addresses that are used.
	maxAddresses = 8
)

// ErrNoPods means that the runtime knows no pods, not even ended ones. It is probably not the kubelet's runtime.
var ErrNoPods = errors.New("the container runtime knows no pods: it may not be the kubelet's")

// Client asks a container runtime. Only one goroutine at a time may call its methods.
type Client struct {
	sockets []string
	kubelet kubelet
	// connection goes to the socket connected; nil while none is open. socket is the one that answered last.
	connection        *connection
	connected, socket string
	// networks has the addresses of the sandboxes that were listed last, by id; none for the node's network.
	networks map[string][]netip.Addr
}

// New makes a Client for an address, unix:///PATH or Auto. It does not connect. It returns an error for an invalid
// address.
func New(address string) (*Client, error) {
	sockets, err := paths(address)
	if err != nil {
		return nil, err
	}
	return &Client{
		sockets: sockets, kubelet: kubelet{socket: podsSocket, pods: make(map[string]kubeletPod)},
		networks: make(map[string][]netip.Addr),
	}, nil
}

// Close closes the connections, if there are any. The next question opens others.
func (c *Client) Close() {
	c.disconnect()
	c.kubelet.close()
}

func (c *Client) disconnect() {
	if c.connection != nil {
		c.connection.CloseIdleConnections()
		c.connection = nil
	}
}

// Socket returns the path of the socket that has answered the last question.
func (c *Client) Socket() string { return c.socket }

// Named reports whether the address named the socket. With Auto it may be that of a runtime that is not the kubelet's.
func (c *Client) Named() bool { return len(c.sockets) == 1 }

// Pods returns the pods that the runtime runs, with the kubelet's reports on them if it gives any. It returns an error
// if the runtime does not answer all questions before ctx is done. The addresses that it has given are kept for the
// next call.
//
// Of several sockets the one that answered last is asked first. If its runtime runs no pods, the next one is asked: the
// first may be Docker's, and the kubelet may use another. If none runs pods, the first one without an error is used.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	if c.kubelet.cancel == nil {
		c.kubelet.follow()
	}
	sockets := c.sockets
	if i := slices.Index(sockets, c.socket); i > 0 {
		sockets = slices.Concat(sockets[i:i+1], sockets[:i], sockets[i+1:])
	}
	failed, empty := errNoSocket, ""
	for _, socket := range sockets {
		pods, err := c.askAt(ctx, socket)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !c.Named():
			continue
		case err != nil:
			if errors.Is(failed, errNoSocket) || errors.Is(failed, ErrNoPods) {
				failed = err // a runtime's failure is more important than another's lack of pods
			}
			continue
		case len(pods) == 0 && len(sockets) > 1:
			if empty == "" {
				empty = socket
			}
			continue
		}
		return pods, nil
	}
	if empty != "" {
		return c.askAt(ctx, empty)
	}
	return nil, failed
}

// askAt asks the runtime at a socket.
func (c *Client) askAt(ctx context.Context, socket string) ([]Pod, error) {
	if c.connection == nil || c.connected != socket {
		c.disconnect()
		c.connection, c.connected = connect(socket), socket
	}
	pods, err := c.ask(ctx)
	if err != nil {
		c.disconnect() // a broken connection is not worth keeping
		return nil, fmt.Errorf("asking the container runtime: %w", err)
	}
	for i := range pods {
		pods[i].Kubelet, pods[i].Needed = c.kubelet.says(pods[i])
	}
	c.socket = socket
	return pods, nil
}

func (c *Client) ask(ctx context.Context) ([]Pod, error) {
	sandboxes, err := list(ctx, c.connection, "ListPodSandbox", readSandbox)
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	containers, err := list(ctx, c.connection, "ListContainers", readContainer)
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	current, err := currentOf(sandboxes)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(c.networks, func(id string, _ []netip.Addr) bool { return current[id] == nil })
	for id, s := range current {
		if _, known := c.networks[id]; known {
			continue
		}
		attempt, cancel := context.WithTimeout(ctx, sandboxPatience)
		err := c.learnNetwork(attempt, id)
		_, refused := errors.AsType[*statusError](err)
		s.Sick = refused || err != nil && attempt.Err() != nil
		if cancel(); err != nil && !s.Sick {
			return nil, fmt.Errorf("the status of pod sandbox %s: %w", id, err)
		}
	}
	return podsOf(current, containers, c.networks), nil
}

// list calls a method that lists all objects of a kind.
func list[T any](
	ctx context.Context, c *connection, method string, read func([]byte) (T, error),
) (all []T, err error) {
	response, err := c.call(ctx, method, "")
	if err != nil {
		return nil, err
	}
	err = fields{1: func(value []byte) error { // both responses have this field only
		one, err := read(value)
		all = append(all, one)
		return err
	}}.read(response)
	return all, err
}

// learnNetwork asks for the addresses of a sandbox. It leaves out a sandbox that has no address yet, or that is gone.
func (c *Client) learnNetwork(ctx context.Context, id string) error {
	response, err := c.connection.call(ctx, "PodSandboxStatus", id)
	if gone, ok := errors.AsType[*statusError](err); ok && gone.code == notFound {
		return nil // it has ended since it was listed
	}
	if err != nil {
		return err
	}
	mode, texts, err := readNetwork(response)
	if err != nil {
		return err
	}
	var addresses []netip.Addr
	for _, text := range texts[:min(len(texts), maxAddresses)] {
		if address, err := netip.ParseAddr(text); err == nil && facts.CanBePods(address) {
			addresses = append(addresses, address.Unmap())
		}
	}
	switch {
	case mode == nodeNetwork:
		c.networks[id] = nil
	case len(addresses) > 0:
		c.networks[id] = addresses
	}
	return nil
}
