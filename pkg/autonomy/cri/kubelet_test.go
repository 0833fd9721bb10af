package cri

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimev1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// kubeletPods is a kubelet's PodsAPI that sends what the test says; it refuses while events is nil.
type kubeletPods struct {
	podsv1alpha1.UnimplementedPodsServer
	events chan *podsv1alpha1.WatchPodsEvent
}

func (k *kubeletPods) WatchPods(
	_ *podsv1alpha1.WatchPodsRequest, stream grpc.ServerStreamingServer[podsv1alpha1.WatchPodsEvent],
) error {
	if k.events == nil {
		return status.Error(codes.FailedPrecondition, "Kubelet is initializing")
	}
	for {
		select {
		case event, open := <-k.events:
			if !open {
				return status.Error(codes.ResourceExhausted, "watch client channel closed")
			}
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// serveKubelet serves at a socket until the test ends.
func serveKubelet(t *testing.T, k *kubeletPods) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "k")
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podsv1alpha1.RegisterPodsServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return socket
}

func kubeletEvent(
	t *testing.T, kind podsv1alpha1.EventType, name, container string, ready corev1.ConditionStatus,
	others ...corev1.PodCondition,
) *podsv1alpha1.WatchPodsEvent {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": name},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "image"}}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: "10.0.0.1",
			Conditions: append([]corev1.PodCondition{
				{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
				{Type: corev1.PodReady, Status: ready, Reason: "ContainersNotReady"},
			}, others...),
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://gone"}},
			ContainerStatuses: []corev1.ContainerStatus{
				{Name: "main", ContainerID: "containerd://" + container, RestartCount: 3},
			},
		},
	}
	if container == "" {
		pod.Status.ContainerStatuses = nil
	}
	encoded, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &podsv1alpha1.WatchPodsEvent{Type: kind, Pod: encoded}
}

// TestKubelet: the kubelet's word on a pod counts once it has said all, and as long as it speaks of the containers that
// the runtime runs.
func TestKubelet(t *testing.T) {
	t.Parallel()
	r, socket := newRuntime(), socketIn(t)
	r.serve(t, socket)
	main := r.container(r.pod("a", "10.0.0.1", 0, ready), "main", 0, running)
	k := &kubeletPods{events: make(chan *podsv1alpha1.WatchPodsEvent)}
	c := client(t, socket)
	c.kubelet.socket = serveKubelet(t, k)
	const unsaid, isReady, isNotReady = "nothing", "ready", "not ready"
	expect := func(what, want string) {
		t.Helper()
		got := ""
		for begun := time.Now(); time.Since(begun) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
			pods, err := c.Pods(t.Context())
			if err != nil || len(pods) != 1 {
				t.Fatalf("%s: %v, %v", what, pods, err)
			}
			switch said := pods[0].Kubelet; {
			case said == nil:
				got = unsaid
			case *said:
				got = isReady
			default:
				got = isNotReady
			}
			if got == want {
				return
			}
		}
		t.Fatalf("%s: the kubelet says %v, not %v", what, got, want)
	}
	id := main.GetId()
	expect("nothing came yet", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_ADDED, "a", id, corev1.ConditionTrue)
	expect("not all came yet", unsaid)
	k.events <- &podsv1alpha1.WatchPodsEvent{Type: podsv1alpha1.EventType_INITIAL_SYNC_COMPLETE}
	expect("it is ready", isReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse)
	expect("its probe fails", isNotReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionTrue)
	expect("it is ready again", isReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse,
		corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue})
	expect("the kubelet has just started", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse,
		corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse})
	expect("its containers are not ready", isNotReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionTrue)
	expect("it is ready", isReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse,
		corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
		corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ReadinessGatesNotReady"})
	expect("a readiness gate is closed", isNotReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", "", corev1.ConditionTrue)
	expect("it is ready without a container", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse)
	expect("it is not ready", isNotReady)
	if pods, err := c.Pods(t.Context()); err != nil || len(pods[0].Needed) != 1 {
		t.Errorf("the kubelet does not say which containers are needed: %v, %v", pods, err)
	}
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionTrue)
	expect("it is ready once more", isReady)
	r.change(func() { main.State = runtimev1.ContainerState_CONTAINER_EXITED })
	expect("the runtime knows better that it has ended", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionFalse)
	expect("the kubelet knows it too", isNotReady)
	r.change(func() { main.State = running })
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionTrue)
	expect("it runs", isReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", "another", corev1.ConditionTrue)
	expect("it speaks of another container", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_MODIFIED, "a", id, corev1.ConditionTrue)
	expect("it is ready", isReady)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_DELETED, "a", id, corev1.ConditionTrue)
	expect("the kubelet does not have it", unsaid)
	k.events <- kubeletEvent(t, podsv1alpha1.EventType_ADDED, "a", id, corev1.ConditionTrue)
	expect("it is ready", isReady)
	close(k.events)
	expect("the stream has ended", unsaid)
}

// TestKubeletRefuses: after a reboot the kubelet says nothing until it has the API server's pods, and what it says then
// is in the error.
func TestKubeletRefuses(t *testing.T) {
	t.Parallel()
	connection := connect(serveKubelet(t, &kubeletPods{}))
	defer connection.CloseIdleConnections()
	err := connection.watch(t.Context(), watchPods, "", func([]byte) error { return nil })
	var refused *statusError
	if !errors.As(err, &refused) || refused.code != int(codes.FailedPrecondition) {
		t.Errorf("got %v", err)
	}
}
