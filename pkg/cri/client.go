package cri

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	// maxMessage is the largest message that is read. One with 1,000 containers has about 2 MB.
	maxMessage = 8 << 20
	// maxSandboxes and maxContainers are the most of each that are listed. The kubelet runs 110 pods at most by
	// default; those that have ended are listed for a while too.
	maxSandboxes, maxContainers = 2000, 8000
	// maxAddresses is the most addresses of a pod that are used.
	maxAddresses = 8
	// idle is how long a connection is kept without a question.
	idle = 30 * time.Second
)

// ErrNoPods means that the runtime knows no pod, not even one that has ended. Probably it is not the kubelet's.
var ErrNoPods = errors.New("the container runtime knows no pods: it may not be the kubelet's")

// ErrTooMany means that the runtime lists more than a node can run.
var ErrTooMany = errors.New("the container runtime lists more pods or containers than a node can run")

// Client asks a container runtime. Its methods may be called from any goroutine.
type Client struct {
	sockets []string
	now     func() time.Time

	// mu is held while the runtime is asked, because only one question at a time is of use.
	mu sync.Mutex
	// connection is nil while there is none; runtime belongs to it.
	connection *grpc.ClientConn
	runtime    runtimev1.RuntimeServiceClient
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
	return &Client{sockets: sockets, now: time.Now}, nil
}

// Close closes the connection, if there is one. The next question opens another.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disconnect()
}

func (c *Client) disconnect() {
	if c.connection != nil {
		_ = c.connection.Close() // it fails only if it is closed already
		c.connection, c.runtime = nil, nil
	}
}

// connect makes a connection if there is none. It does not wait until the runtime accepts it.
func (c *Client) connect() error {
	if c.connection != nil {
		return nil
	}
	socket, err := pick(c.sockets)
	if err != nil {
		return err
	}
	c.connection, err = grpc.NewClient(scheme+socket,
		// The socket's permissions say who may connect.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second},
		}),
		grpc.WithIdleTimeout(idle),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
	)
	if err != nil {
		return fmt.Errorf("the container runtime at %s: %w", socket, err)
	}
	c.runtime = runtimev1.NewRuntimeServiceClient(c.connection)
	return nil
}

// Pods returns the pods that the runtime runs. It returns an error if the runtime does not say all that is needed
// before ctx is done; what it has said is kept for the next call.
func (c *Client) Pods(ctx context.Context) ([]Pod, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.connect(); err != nil {
		return nil, err
	}
	pods, err := c.ask(ctx)
	if err != nil {
		// The socket of Auto may be another one the next time, and a broken connection is not worth keeping.
		c.disconnect()
		return nil, fmt.Errorf("asking the container runtime: %w", err)
	}
	return pods, nil
}

func (c *Client) ask(ctx context.Context) ([]Pod, error) {
	sandboxes, err := c.runtime.ListPodSandbox(ctx, &runtimev1.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing pod sandboxes: %w", err)
	}
	containers, err := c.runtime.ListContainers(ctx, &runtimev1.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", err)
	}
	if len(sandboxes.GetItems()) > maxSandboxes || len(containers.GetContainers()) > maxContainers {
		return nil, ErrTooMany
	}
	l := newListing(sandboxes.GetItems(), containers.GetContainers())
	if len(l.current) == 0 && len(l.others) == 0 {
		return nil, ErrNoPods
	}
	if err := c.learn(ctx, l); err != nil {
		return nil, err
	}
	return l.pods(c.networks, c.succeeded, c.now()), nil
}

// learn asks for the networks of sandboxes and the exit codes of containers that are listed and not known, and forgets
// those that are not listed.
func (c *Client) learn(ctx context.Context, l *listing) error {
	networks, succeeded := make(map[string]network), make(map[string]bool)
	for _, s := range l.current {
		if known, found := c.networks[s.GetId()]; found {
			networks[s.GetId()] = known
		}
		for _, container := range l.containers[s.GetId()] {
			if known, found := c.succeeded[container.GetId()]; found {
				succeeded[container.GetId()] = known
			}
		}
	}
	c.networks, c.succeeded = networks, succeeded
	for _, s := range l.current {
		if _, known := networks[s.GetId()]; !known {
			if err := c.learnNetwork(ctx, s.GetId()); err != nil {
				return err
			}
		}
		for _, container := range l.latest(s.GetId()) {
			_, known := succeeded[container.GetId()]
			if known || container.GetState() != runtimev1.ContainerState_CONTAINER_EXITED {
				continue
			}
			if err := c.learnExit(ctx, container.GetId()); err != nil {
				return err
			}
		}
	}
	return nil
}

// learnNetwork asks how the pod of a sandbox is reached. It learns nothing of a sandbox that has no address yet, or
// that is gone.
func (c *Client) learnNetwork(ctx context.Context, id string) error {
	response, err := c.runtime.PodSandboxStatus(ctx, &runtimev1.PodSandboxStatusRequest{PodSandboxId: id})
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the status of pod sandbox %s: %w", id, err)
	}
	status := response.GetStatus()
	if status.GetLinux().GetNamespaces().GetOptions().GetNetwork() == runtimev1.NamespaceMode_NODE {
		c.networks[id] = network{host: true}
		return nil
	}
	texts := []string{status.GetNetwork().GetIp()}
	for _, additional := range status.GetNetwork().GetAdditionalIps() {
		texts = append(texts, additional.GetIp())
	}
	var addresses []netip.Addr
	for _, text := range texts[:min(len(texts), maxAddresses)] {
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
	response, err := c.runtime.ContainerStatus(ctx, &runtimev1.ContainerStatusRequest{ContainerId: id})
	if isGone(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the status of container %s: %w", id, err)
	}
	if status := response.GetStatus(); status.GetState() == runtimev1.ContainerState_CONTAINER_EXITED {
		c.succeeded[id] = status.GetExitCode() == 0
	}
	return nil
}
