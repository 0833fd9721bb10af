package cri

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

const (
	// maxSandboxes and maxContainers are the most of each that are listed. The kubelet runs 110 pods at most by
	// default; those that have ended are listed for a while too.
	maxSandboxes, maxContainers = 2000, 8000
	// maxAddresses is the most addresses of a pod that are used.
	maxAddresses = 8
)

// ErrNoPods means that the runtime knows no pod, not even one that has ended. Probably it is not the kubelet's.
var ErrNoPods = errors.New("the container runtime knows no pods: it may not be the kubelet's")

// ErrTooMany means that the runtime lists more than a node can run.
var ErrTooMany = errors.New("the container runtime lists more pods or containers than a node can run")

// Client asks a container runtime. Its methods may be called from any goroutine.
type Client struct {
	sockets []string
	kubelet kubelet

	// mu is held while the runtime is asked, because only one question at a time is of use.
	mu sync.Mutex
	// connection is nil while there is none.
	connection *connection
	// networks has the addresses of sandboxes by id, succeeded the containers that have ended and whether they have
	// done so without an error. Both have only what was listed last.
	networks  map[string]network
	succeeded map[string]bool
}

// network is how the pods of a sandbox are reached.
type network struct {
	addresses []netip.Addr
	// host is set if the pod uses the node's network.
	host bool
}

// New makes a Client for an address, unix:///PATH or Auto. It does not connect. The error says what about the address
// is wrong.
func New(address string) (*Client, error) {
	sockets, err := paths(address)
	if err != nil {
		return nil, err
	}
	return &Client{sockets: sockets, kubelet: kubelet{socket: podsSocket}}, nil
}

// Close closes the connections, if there are any. The next question opens others.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
	c.kubelet.close()
}

func (c *Client) disconnect() {
	if c.connection != nil {
		c.connection.close()
		c.connection = nil
	}
}

// Pods returns the pods that the runtime runs, with the kubelet's word on them where it gives one. It returns an error
// if the runtime does not say all that is needed before ctx is done; what it has said is kept for the next call.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kubelet.cancel == nil {
		c.kubelet.follow()
	}
	if c.connection == nil {
		socket, err := pick(c.sockets)
		if err != nil {
			return nil, err
		}
		c.connection = connect(socket)
	}
	pods, err := c.ask(ctx)
	if err != nil {
		// The socket of Auto may be another one the next time, and a broken connection is not worth keeping.
		c.disconnect()
		return nil, fmt.Errorf("asking the container runtime: %w", err)
	}
	for i := range pods {
		pods[i].Kubelet = c.kubelet.says(pods[i])
	}
	return pods, nil
}

func (c *Client) ask(ctx context.Context) ([]Pod, error) {
	sandboxes, err := list(ctx, c.connection, "ListPodSandbox", maxSandboxes, readSandbox)
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	containers, err := list(ctx, c.connection, "ListContainers", maxContainers, readContainer)
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	l := newListing(sandboxes, containers)
	if !l.any {
		return nil, ErrNoPods
	}
	if err := c.learn(ctx, l); err != nil {
		return nil, err
	}
	return l.pods(c.networks, c.succeeded), nil
}

// list asks for all of something.
func list[T any](
	ctx context.Context, c *connection, method string, most int, read func([]byte) (T, error),
) ([]T, error) {
	response, err := c.call(ctx, method, "")
	if err != nil {
		return nil, err
	}
	all, err := repeated(response, read)
	switch {
	case err != nil:
		return nil, err
	case len(all) > most:
		return nil, ErrTooMany
	}
	return all, nil
}

// learn asks for the networks of sandboxes and the exit codes of containers that are listed and not known, and forgets
// those that are not listed.
func (c *Client) learn(ctx context.Context, l *listing) error {
	networks, succeeded := make(map[string]network), make(map[string]bool)
	for _, s := range l.current {
		if known, found := c.networks[s.id]; found {
			networks[s.id] = known
		}
		for _, container := range l.containers[s.id] {
			if known, found := c.succeeded[container.id]; found {
				succeeded[container.id] = known
			}
		}
	}
	c.networks, c.succeeded = networks, succeeded
	for _, s := range l.current {
		if _, known := networks[s.id]; !known {
			if err := c.learnNetwork(ctx, s.id); err != nil {
				return err
			}
		}
		for _, container := range l.latest(s.id) {
			_, known := succeeded[container.id]
			if known || container.state != containerExited {
				continue
			}
			if err := c.learnExit(ctx, container.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// learnNetwork asks how the pod of a sandbox is reached. It learns nothing of a sandbox that has no address yet, or
// that is gone.
func (c *Client) learnNetwork(ctx context.Context, id string) error {
	response, err := c.connection.call(ctx, "PodSandboxStatus", id)
	if isGone(err) {
		return nil
	}
	var reached sandboxNetwork
	if err == nil {
		reached, err = readNetwork(response)
	}
	if err != nil {
		return fmt.Errorf("the status of pod sandbox %s: %w", id, err)
	}
	if reached.mode == nodeNetwork {
		c.networks[id] = network{host: true}
		return nil
	}
	var addresses []netip.Addr
	for _, text := range reached.addresses[:min(len(reached.addresses), maxAddresses)] {
		if address, err := netip.ParseAddr(text); err == nil && isUsable(address) {
			addresses = append(addresses, address.Unmap())
		}
	}
	if len(addresses) > 0 {
		c.networks[id] = network{addresses: addresses}
	}
	return nil
}

// isUsable reports whether an address can be a pod's.
func isUsable(address netip.Addr) bool {
	return address.Zone() == "" && !address.IsUnspecified() && !address.IsLoopback() && !address.IsMulticast()
}

// learnExit asks whether a container that has ended has done so without an error.
func (c *Client) learnExit(ctx context.Context, id string) error {
	response, err := c.connection.call(ctx, "ContainerStatus", id)
	if isGone(err) {
		return nil
	}
	var ended exit
	if err == nil {
		ended, err = readExit(response)
	}
	if err != nil {
		return fmt.Errorf("the status of container %s: %w", id, err)
	}
	if ended.state == containerExited {
		c.succeeded[id] = ended.code == 0
	}
	return nil
}
