package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/application-grid/application-grid/pkg/storage/facts"
)

const (
	// Auto is the address for the first socket of wellKnown whose runtime runs pods. scheme begins every other address.
	Auto, scheme = "auto", "unix://"
	// sandboxPatience is how long the runtime may take to answer about one sandbox. One whose process hangs must not
	// hide all others.
	sandboxPatience = 500 * time.Millisecond
	// maxAddresses is the largest number of a pod's addresses that are used.
	maxAddresses = 8
)

// wellKnown are the paths of runtimes' sockets: those of containerd, CRI-O, k3s and RKE2, MicroK8s, and cri-dockerd.
var wellKnown = []string{
	"/run/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/k3s/containerd/containerd.sock",
	"/var/snap/microk8s/common/run/containerd.sock",
	"/run/cri-dockerd.sock",
}

var (
	// ErrNoPods means that the runtime knows no pods, not even ended ones. It is probably not the kubelet's runtime.
	ErrNoPods   = errors.New("the container runtime knows no pods: it may not be the kubelet's")
	errNoSocket = errors.New("no container runtime has a socket at any of " + strings.Join(wellKnown, ", "))
)

// Client asks a container runtime. Only one goroutine at a time may call its methods.
type Client struct {
	sockets []string
	kubelet kubelet
	// socket is the one that answered last.
	socket string
	// networks has the addresses of the sandboxes that were listed last, by id; none for the node's network.
	networks map[string][]netip.Addr
}

// New makes a Client for an address, unix:///PATH or Auto. It does not connect. It returns an error for an invalid
// address.
func New(address string) (*Client, error) {
	sockets := wellKnown
	if address != Auto {
		socket, found := strings.CutPrefix(address, scheme)
		if !found || !path.IsAbs(socket) {
			return nil, fmt.Errorf("%q is neither %s nor the address of a socket, such as %s%s",
				address, Auto, scheme, wellKnown[0])
		}
		sockets = []string{socket}
	}
	return &Client{
		sockets: sockets, kubelet: kubelet{socket: podsSocket, pods: make(map[string]kubeletPod)},
		networks: make(map[string][]netip.Addr),
	}, nil
}

// Close ends what Pods began.
func (c *Client) Close() { c.kubelet.close() }

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
func (c *Client) Pods(ctx context.Context) (pods []Pod, err error) {
	if c.kubelet.cancel == nil {
		c.kubelet.follow()
	}
	sockets := c.sockets
	if i := slices.Index(sockets, c.socket); i > 0 {
		sockets = slices.Concat(sockets[i:i+1], sockets[:i], sockets[i+1:])
	}
	answered, failed := "", errNoSocket
	for _, socket := range sockets {
		found, err := c.ask(ctx, socket)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !c.Named():
		case err != nil:
			if errors.Is(failed, errNoSocket) || errors.Is(failed, ErrNoPods) {
				// A runtime's failure is more important than another's lack of pods.
				failed = fmt.Errorf("asking the container runtime: %w", err)
			}
		case answered == "" || len(found) > 0:
			answered, pods = socket, found
		}
		if len(pods) > 0 {
			break
		}
	}
	if answered == "" {
		return nil, failed
	}
	c.socket = answered
	for i := range pods {
		pods[i].Kubelet, pods[i].Needed = c.kubelet.says(pods[i])
	}
	return pods, nil
}

// ask asks the runtime at a socket, over a connection of its own: that costs little on a node.
func (c *Client) ask(ctx context.Context, socket string) ([]Pod, error) {
	runtime := connect(socket)
	defer runtime.CloseIdleConnections()
	sandboxes, err := list(ctx, runtime, "ListPodSandbox", readSandbox)
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	containers, err := list(ctx, runtime, "ListContainers", readContainer)
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	current, err := currentOf(sandboxes)
	if err != nil {
		return nil, err
	}
	addContainers(current, containers)
	maps.DeleteFunc(c.networks, func(id string, _ []netip.Addr) bool { return current[id] == nil })
	pods := make([]Pod, 0, len(current))
	for id, pod := range current {
		if _, known := c.networks[id]; !known {
			if pod.Sick, err = c.learnNetwork(ctx, runtime, id); err != nil {
				return nil, fmt.Errorf("the status of pod sandbox %s: %w", id, err)
			}
		}
		addresses, known := c.networks[id]
		if known || pod.Sick { // a pod without a network does not run
			pod.Addresses = addresses
			pods = append(pods, *pod)
		}
	}
	return pods, nil
}

// list calls a method that lists all objects of a kind.
func list[T any](
	ctx context.Context, runtime *connection, method string, read func([]byte) (T, error),
) (all []T, err error) {
	response, err := runtime.call(ctx, method, "")
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
// sick is Pod.Sick.
func (c *Client) learnNetwork(ctx context.Context, runtime *connection, id string) (sick bool, err error) {
	attempt, cancel := context.WithTimeout(ctx, sandboxPatience)
	defer cancel()
	var mode uint64
	var texts []string
	response, err := runtime.call(attempt, "PodSandboxStatus", id)
	if err == nil {
		mode, texts, err = readNetwork(response)
	}
	refused, isRefused := errors.AsType[*statusError](err)
	switch {
	case isRefused:
		return refused.code != notFound, nil // else it has ended since it was listed
	case err != nil && attempt.Err() != nil:
		return true, nil
	case err != nil:
		return false, err
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
	return false, nil
}
