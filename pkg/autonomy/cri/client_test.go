package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runtime is a container runtime that runs what the test says.
type runtime struct {
	runtimev1.UnimplementedRuntimeServiceServer

	mu         sync.Mutex
	sandboxes  []*runtimev1.PodSandboxStatus
	containers []*runtimev1.ContainerStatus
	// sandboxOf has the sandbox of each container by id.
	sandboxOf map[string]string
	asked     map[string]int
	hang      chan struct{}
	padding   string
	// gone is the id of a sandbox that ends as soon as it was listed. sick has the answers about those whose state
	// cannot be had, by id.
	gone string
	sick map[string]func(context.Context) error
}

func newRuntime() *runtime {
	return &runtime{sandboxOf: make(map[string]string), asked: make(map[string]int)}
}

// serve serves at a socket until the test ends or stop is called.
func (r *runtime) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return server.Stop
}

func (r *runtime) change(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

// note counts a question, and hangs if the runtime is to.
func (r *runtime) note(ctx context.Context, question string) {
	r.mu.Lock()
	r.asked[question]++
	hang := r.hang
	r.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
		}
	}
}

func (r *runtime) count(question string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[question]
}

// pod adds a sandbox, whose id is name/attempt; without an address it uses the node's network.
func (r *runtime) pod(name, address string, attempt int, state runtimev1.PodSandboxState) *runtimev1.PodSandboxStatus {
	s := &runtimev1.PodSandboxStatus{
		Id: fmt.Sprintf("%s/%d", name, attempt),
		Metadata: &runtimev1.PodSandboxMetadata{
			Namespace: "ns", Name: name, Uid: "uid-" + name, Attempt: uint32(attempt),
		},
		State: state, CreatedAt: int64(1000 * attempt),
		Annotations: map[string]string{configSource: apiSource},
		Network:     &runtimev1.PodSandboxNetworkStatus{Ip: address},
	}
	if address == "" {
		s.Network = nil
		s.Linux = &runtimev1.LinuxPodSandboxStatus{Namespaces: &runtimev1.Namespace{
			Options: &runtimev1.NamespaceOption{Network: runtimev1.NamespaceMode_NODE},
		}}
	}
	r.change(func() { r.sandboxes = append(r.sandboxes, s) })
	return s
}

// readyPod adds the sandbox of the pod a.
func (r *runtime) readyPod() *runtimev1.PodSandboxStatus { return r.pod("a", "10.0.0.1", 0, ready) }

// container adds a container to a sandbox.
func (r *runtime) container(
	s *runtimev1.PodSandboxStatus, name string, attempt int, state runtimev1.ContainerState,
) *runtimev1.ContainerStatus {
	c := &runtimev1.ContainerStatus{
		Id:       fmt.Sprintf("%s/%s/%d", s.GetId(), name, attempt),
		Metadata: &runtimev1.ContainerMetadata{Name: name, Attempt: uint32(attempt)},
		State:    state, CreatedAt: s.GetCreatedAt() + int64(10+attempt),
	}
	r.change(func() {
		r.containers = append(r.containers, c)
		r.sandboxOf[c.GetId()] = s.GetId()
	})
	return c
}

func (r *runtime) ListPodSandbox(
	ctx context.Context, _ *runtimev1.ListPodSandboxRequest,
) (*runtimev1.ListPodSandboxResponse, error) {
	r.note(ctx, "sandboxes")
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &runtimev1.ListPodSandboxResponse{}
	for _, s := range r.sandboxes {
		response.Items = append(response.Items, &runtimev1.PodSandbox{
			Id: s.GetId(), Metadata: s.GetMetadata(), State: s.GetState(), CreatedAt: s.GetCreatedAt(),
			Annotations: s.GetAnnotations(), RuntimeHandler: r.padding,
		})
	}
	return response, nil
}

func (r *runtime) ListContainers(
	ctx context.Context, _ *runtimev1.ListContainersRequest,
) (*runtimev1.ListContainersResponse, error) {
	r.note(ctx, "containers")
	r.mu.Lock()
	defer r.mu.Unlock()
	response := &runtimev1.ListContainersResponse{}
	for _, c := range r.containers {
		response.Containers = append(response.Containers, &runtimev1.Container{
			Id: c.GetId(), PodSandboxId: r.sandboxOf[c.GetId()], Metadata: c.GetMetadata(), State: c.GetState(),
			CreatedAt: c.GetCreatedAt(),
		})
	}
	return response, nil
}

func (r *runtime) PodSandboxStatus(
	ctx context.Context, request *runtimev1.PodSandboxStatusRequest,
) (*runtimev1.PodSandboxStatusResponse, error) {
	r.note(ctx, "sandbox "+request.GetPodSandboxId())
	r.mu.Lock()
	sick := r.sick[request.GetPodSandboxId()]
	r.mu.Unlock()
	if sick != nil {
		return nil, sick(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sandboxes {
		if s.GetId() == request.GetPodSandboxId() && s.GetId() != r.gone {
			return &runtimev1.PodSandboxStatusResponse{Status: s}, nil
		}
	}
	return nil, status.Error(codes.NotFound, "no such sandbox")
}

const (
	ready    = runtimev1.PodSandboxState_SANDBOX_READY
	notReady = runtimev1.PodSandboxState_SANDBOX_NOTREADY
	created  = runtimev1.ContainerState_CONTAINER_CREATED
	running  = runtimev1.ContainerState_CONTAINER_RUNNING
	exited   = runtimev1.ContainerState_CONTAINER_EXITED
	unknown  = runtimev1.ContainerState_CONTAINER_UNKNOWN
)

// client is a Client of a runtime.
func client(t *testing.T, socket string) *Client {
	t.Helper()
	c, err := New(scheme + socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// socketIn is the path of a socket in a directory whose name is short: that of a socket may have 107 bytes.
func socketIn(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "s")
}

// describe writes pods as name=addresses, with a "!" after those of which no container runs or one waits, and a "-"
// before the names of containers that have ended.
func describe(pods []Pod) string {
	var all []string
	for _, p := range pods {
		text := p.Name + "="
		for i, a := range p.Addresses {
			if i > 0 {
				text += ","
			}
			text += a.String()
		}
		if p.Static {
			text += " static"
		}
		runs := false
		var ended []string
		for name, c := range p.Containers {
			runs = runs || c.State == Running
			if c.State == Exited {
				ended = append(ended, " -"+name)
			}
		}
		for _, c := range p.Containers {
			runs = runs && (c.State == Running || c.State == Exited)
		}
		if !runs {
			text += "!"
		}
		slices.Sort(ended)
		text += strings.Join(ended, "")
		all = append(all, text)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// TestPods: which pods are said to run, and where.
func TestPods(t *testing.T) {
	for name, test := range map[string]struct {
		have func(*runtime)
		want string
	}{
		"one": {func(r *runtime) { r.container(r.readyPod(), "main", 0, running) }, "a=10.0.0.1"},
		"both families": {func(r *runtime) {
			s := r.readyPod()
			s.Network.AdditionalIps = []*runtimev1.PodIP{{Ip: "fd00::1"}}
			r.container(s, "main", 0, running)
		}, "a=10.0.0.1,fd00::1"},
		"the node's network": {func(r *runtime) { r.container(r.pod("a", "", 0, ready), "main", 0, running) }, "a="},
		"static": {func(r *runtime) {
			s := r.readyPod()
			s.Annotations[configSource] = "file"
			r.container(s, "main", 0, running)
		}, "a=10.0.0.1 static"},
		"ended": {func(r *runtime) { r.container(r.pod("a", "10.0.0.1", 0, notReady), "main", 0, exited) }, ""},
		"made again": {func(r *runtime) {
			r.container(r.pod("a", "10.0.0.2", 1, ready), "main", 0, running)
			r.container(r.pod("a", "10.0.0.1", 0, notReady), "main", 0, exited)
		}, "a=10.0.0.2"},
		"two at once": {func(r *runtime) {
			r.container(r.pod("a", "10.0.0.2", 1, ready), "main", 0, running)
			r.container(r.readyPod(), "main", 0, running)
		}, "a=10.0.0.2"},
		"gone since it was listed": {func(r *runtime) {
			r.container(r.readyPod(), "main", 0, running)
			r.gone = r.pod("b", "10.0.0.2", 0, ready).GetId()
		}, "a=10.0.0.1"},
		"no container yet": {func(r *runtime) { r.readyPod() }, "a=10.0.0.1!"},
		"one of two crashed": {func(r *runtime) {
			s := r.readyPod()
			r.container(s, "main", 0, running)
			r.container(s, "side", 0, exited)
		}, "a=10.0.0.1 -side"},
		"crashed and started again": {func(r *runtime) {
			s := r.readyPod()
			r.container(s, "main", 1, running)
			r.container(s, "main", 0, exited)
		}, "a=10.0.0.1"},
		"created, not started": {func(r *runtime) {
			s := r.readyPod()
			r.container(s, "main", 0, running)
			r.container(s, "side", 0, created)
		}, "a=10.0.0.1!"},
		"unknown": {func(r *runtime) { r.container(r.readyPod(), "main", 0, unknown) }, "a=10.0.0.1!"},
		"init container done": {func(r *runtime) {
			s := r.readyPod()
			r.container(s, "init", 0, exited)
			r.container(s, "main", 0, running)
		}, "a=10.0.0.1 -init"},
		"all done": {func(r *runtime) { r.container(r.readyPod(), "init", 0, exited) }, "a=10.0.0.1! -init"},
		"no address yet": {func(r *runtime) {
			s := r.readyPod()
			s.Network.Ip = ""
			r.container(s, "main", 0, running)
			r.container(r.pod("b", "10.0.0.2", 0, ready), "main", 0, running)
		}, "b=10.0.0.2"},
		"lies": {func(r *runtime) {
			for i, address := range []string{
				"127.0.0.1", "0.0.0.0", "224.0.0.1", "fe80::1%eth0", "fe80::1", "169.254.1.1", "255.255.255.255",
				"nonsense",
			} {
				r.container(r.pod(fmt.Sprint("lie", i), address, 0, ready), "main", 0, running)
			}
			nameless := r.readyPod()
			nameless.Metadata = nil
			r.container(nameless, "main", 0, running)
			r.container(r.pod("b", "10.0.0.2", 0, ready), "main", 0, running)
		}, "b=10.0.0.2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, socket := newRuntime(), socketIn(t)
			r.serve(t, socket)
			test.have(r)
			pods, err := client(t, socket).Pods(t.Context())
			if err != nil || describe(pods) != test.want {
				t.Errorf("got %q, %v; want %q", describe(pods), err, test.want)
			}
		})
	}
}

// TestWhatDoesNotChangeIsAskedOnce: the network of a sandbox.
func TestWhatDoesNotChangeIsAskedOnce(t *testing.T) {
	t.Parallel()
	r, socket := newRuntime(), socketIn(t)
	r.serve(t, socket)
	s := r.readyPod()
	r.container(s, "init", 0, exited)
	r.container(s, "main", 0, running)
	c := client(t, socket)
	for range 3 {
		if pods, err := c.Pods(t.Context()); err != nil || describe(pods) != "a=10.0.0.1 -init" {
			t.Fatalf("got %q, %v", describe(pods), err)
		}
	}
	c.Close() // what is known stays
	if _, err := c.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	for question, want := range map[string]int{
		"sandboxes": 4, "containers": 4, "sandbox a/0": 1,
	} {
		if got := r.count(question); got != want {
			t.Errorf("asked for %s %d times, want %d", question, got, want)
		}
	}
	r.change(func() { r.sandboxes, r.containers = nil, nil })
	r.pod("b", "10.0.0.2", 0, ready)
	if _, err := c.Pods(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.networks) != 1 {
		t.Errorf("what is gone is not forgotten: %v", c.networks)
	}
}

// TestErrors: a runtime that is absent, hangs, comes back, is another's, or says too much.
func TestErrors(t *testing.T) {
	t.Parallel()
	r, socket := newRuntime(), socketIn(t)
	c := client(t, socket)
	if _, err := c.Pods(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	stop := r.serve(t, socket)
	if _, err := c.Pods(t.Context()); !errors.Is(err, ErrNoPods) {
		t.Errorf("without pods: %v", err)
	}
	r.container(r.readyPod(), "main", 0, running)
	if pods, err := c.Pods(t.Context()); err != nil || describe(pods) != "a=10.0.0.1" {
		t.Errorf("with a pod: %q, %v", describe(pods), err)
	}

	hang := make(chan struct{})
	r.change(func() { r.hang = hang })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Pods(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("of a runtime that hangs: %v", err)
	}
	close(hang)
	r.change(func() { r.hang = nil })
	if _, err := c.Pods(t.Context()); err != nil {
		t.Errorf("of a runtime that answers again: %v", err)
	}

	stop()
	if _, err := c.Pods(t.Context()); err == nil {
		t.Error("a runtime that was stopped answers")
	}
	r.serve(t, socket)
	if pods, err := c.Pods(t.Context()); err != nil || describe(pods) != "a=10.0.0.1" {
		t.Errorf("of a runtime that was started again: %q, %v", describe(pods), err)
	}

	r.change(func() { r.padding = strings.Repeat("x", maxMessage) })
	if _, err := c.Pods(t.Context()); !errors.Is(err, errTooLarge) {
		t.Errorf("of a message that is too large: %v", err)
	}
	r.change(func() { r.padding = "" })
	for i := range 5000 { // of Jobs: the control plane deletes them from 12,500 on
		r.container(r.pod(fmt.Sprint("ended", i), "10.0.0.2", 0, notReady), "main", 0, exited)
	}
	if pods, err := c.Pods(t.Context()); err != nil || describe(pods) != "a=10.0.0.1" {
		t.Errorf("beside ended pods: %q, %v", describe(pods), err)
	}
}

// TestSickSandbox: a sandbox about which the runtime does not answer, or answers with an error, is listed without
// addresses, and the others as they are.
func TestSickSandbox(t *testing.T) {
	for what, answer := range map[string]func(context.Context) error{
		"an error": func(context.Context) error {
			return status.Error(codes.Unknown, "failed to query controller status")
		},
		"nothing": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		r, socket := newRuntime(), socketIn(t)
		r.serve(t, socket)
		r.container(r.readyPod(), "main", 0, running)
		r.container(r.pod("sick", "10.0.0.2", 0, ready), "main", 0, running)
		r.change(func() { r.sick = map[string]func(context.Context) error{"sick/0": answer} })
		c := client(t, socket)
		for range 2 {
			pods, err := c.Pods(t.Context())
			slices.SortFunc(pods, func(a, b Pod) int { return cmp.Compare(a.Name, b.Name) })
			if err != nil || len(pods) != 2 || pods[0].Sick || len(pods[0].Addresses) != 1 || !pods[1].Sick {
				t.Errorf("%s: %+v, %v", what, pods, err)
			}
		}
		r.change(func() { r.sick = nil })
		if pods, err := c.Pods(t.Context()); err != nil || describe(pods) != "a=10.0.0.1; sick=10.0.0.2" {
			t.Errorf("after %s: %q, %v", what, describe(pods), err)
		}
	}
}

// TestRestarted: a container was started again if another of its name is in the same sandbox. After a reboot in which
// the runtime has lost its containers the kubelet counts on from its logs, also for those of kubectl debug.
func TestRestarted(t *testing.T) {
	r, socket := newRuntime(), socketIn(t)
	r.serve(t, socket)
	pod := r.readyPod()
	r.container(pod, "again", 0, exited)
	r.container(pod, "again", 1, running)
	r.container(pod, "debugger", 1, running)
	c := client(t, socket)
	pods, err := c.Pods(t.Context())
	if err != nil || len(pods) != 1 || pods[0].Containers["debugger"].Restarted ||
		!pods[0].Containers["again"].Restarted || pods[0].Containers["again"].State != Running {
		t.Errorf("%+v, %v", pods, err)
	}
}

// TestAddresses: which are taken.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "/run/x.sock", "unix://", "unix://run/x.sock", "tcp://127.0.0.1:1", "off"} {
		if _, err := New(address); err == nil || !strings.Contains(err.Error(), "unix:///run/containerd") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := New(Auto); err != nil {
		t.Error(err)
	}
}

// TestSeveralSockets: of several runtimes the one that runs pods is the kubelet's.
func TestSeveralSockets(t *testing.T) {
	t.Parallel()
	c := client(t, socketIn(t))
	dir := filepath.Dir(c.sockets[0])
	c.sockets = []string{filepath.Join(dir, "absent"), filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	expect := func(what, want, socket string, wantErr error) {
		t.Helper()
		pods, err := c.Pods(t.Context())
		if describe(pods) != want || !errors.Is(err, wantErr) || err == nil && filepath.Base(c.Socket()) != socket {
			t.Errorf("%s: %q from %s, %v", what, describe(pods), c.Socket(), err)
		}
	}
	expect("no socket", "", "", errNoSocket)
	dockers, kubelets := newRuntime(), newRuntime()
	dockers.serve(t, c.sockets[1])
	expect("Docker's has no pods", "", "", ErrNoPods)
	ended := kubelets.pod("a", "10.0.0.1", 0, notReady)
	kubelets.serve(t, c.sockets[2])
	expect("the kubelet's has pods that have ended", "", "b", nil)
	dockers.pod("old", "10.0.0.9", 0, notReady)
	expect("Docker's had pods once", "", "b", nil)
	kubelets.change(func() { ended.State = ready })
	expect("the kubelet's runs a pod", "a=10.0.0.1!", "b", nil)
	dockers.pod("other", "10.0.0.8", 0, ready)
	expect("Docker's runs a pod too", "a=10.0.0.1!", "b", nil)
}
