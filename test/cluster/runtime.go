package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// containerRuntime is the container runtime of a node, as far as the Container Runtime Interface says which pods the
// node runs: those whose addresses the echo servers have on the node, each with one container. It serves the
// interface's own types at a socket.
type containerRuntime struct {
	runtimev1.UnimplementedRuntimeServiceServer

	node   *Node
	socket string
	server *grpc.Server
}

func newContainerRuntime(node *Node) *containerRuntime {
	return &containerRuntime{node: node, socket: filepath.Join(node.cluster.dir, "cri-"+node.Spec.Name+".sock")}
}

// start begins to serve.
func (r *containerRuntime) start(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", r.socket)
	if err != nil {
		return fmt.Errorf("the container runtime of node %s: %w", r.node.Spec.Name, err)
	}
	r.server = grpc.NewServer()
	runtimev1.RegisterRuntimeServiceServer(r.server, r)
	server := r.server
	go func() { _ = server.Serve(listener) }() // it ends with the server
	return nil
}

// stop ends the serving at once.
func (r *containerRuntime) stop() {
	if r.server != nil {
		r.server.Stop()
		r.server = nil
	}
	_ = os.Remove(r.socket) // the server has removed it
}

// sandboxID is the id of a pod's sandbox, containerID that of its container. A pod that was started again has others.
func sandboxID(p *echoPod) string   { return fmt.Sprintf("%s-%d", p.pod.UID, p.since.UnixNano()) }
func containerID(p *echoPod) string { return sandboxID(p) + "-main" }

func metadataOf(p *echoPod) *runtimev1.PodSandboxMetadata {
	return &runtimev1.PodSandboxMetadata{Namespace: p.pod.Namespace, Name: p.pod.Name, Uid: string(p.pod.UID)}
}

// ListPodSandbox implements the interface.
func (r *containerRuntime) ListPodSandbox(
	context.Context, *runtimev1.ListPodSandboxRequest,
) (*runtimev1.ListPodSandboxResponse, error) {
	// The sandbox that a node has of a pod before its kubelet has started any: what runs there is never nothing at all.
	response := &runtimev1.ListPodSandboxResponse{Items: []*runtimev1.PodSandbox{{
		Id: "ended", State: runtimev1.PodSandboxState_SANDBOX_NOTREADY, CreatedAt: 1,
		Metadata: &runtimev1.PodSandboxMetadata{Namespace: "default", Name: "ended", Uid: "ended"},
	}}}
	for _, p := range r.node.cluster.echo.podsOn(r.node) {
		response.Items = append(response.Items, &runtimev1.PodSandbox{
			Id: sandboxID(p), Metadata: metadataOf(p), CreatedAt: p.since.UnixNano(),
			Annotations: map[string]string{"kubernetes.io/config.source": "api"},
		})
	}
	return response, nil
}

// PodSandboxStatus implements the interface.
func (r *containerRuntime) PodSandboxStatus(
	_ context.Context, request *runtimev1.PodSandboxStatusRequest,
) (*runtimev1.PodSandboxStatusResponse, error) {
	for _, p := range r.node.cluster.echo.podsOn(r.node) {
		if sandboxID(p) == request.GetPodSandboxId() {
			return &runtimev1.PodSandboxStatusResponse{Status: &runtimev1.PodSandboxStatus{
				Id: sandboxID(p), Metadata: metadataOf(p), CreatedAt: p.since.UnixNano(),
				Network: &runtimev1.PodSandboxNetworkStatus{Ip: p.address},
			}}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "there is no sandbox %s", request.GetPodSandboxId())
}

// ListContainers implements the interface.
func (r *containerRuntime) ListContainers(
	context.Context, *runtimev1.ListContainersRequest,
) (*runtimev1.ListContainersResponse, error) {
	response := &runtimev1.ListContainersResponse{}
	for _, p := range r.node.cluster.echo.podsOn(r.node) {
		response.Containers = append(response.Containers, &runtimev1.Container{
			Id: containerID(p), PodSandboxId: sandboxID(p), Metadata: &runtimev1.ContainerMetadata{Name: "main"},
			State: runtimev1.ContainerState_CONTAINER_RUNNING, CreatedAt: p.since.Add(time.Millisecond).UnixNano(),
		})
	}
	return response, nil
}
