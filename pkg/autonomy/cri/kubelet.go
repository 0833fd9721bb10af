package cri

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/application-grid/application-grid/pkg/storage/wire/field"
)

const (
	// podsSocket is where the kubelet says which pods it runs (PodsAPI, on by default from Kubernetes 1.37).
	podsSocket = "/var/lib/kubelet/pods-api/pods-api.sock"
	watchPods  = "v1alpha1.Pods/WatchPods"
	// watchPause is the time between two attempts to watch. The kubelet refuses after a reboot until it has the pods of
	// the API server, and older ones have no socket.
	watchPause = 10 * time.Second
)

// The types of the events of WatchPods.
const (
	podDeleted   = 3
	podsComplete = 4
)

// kubelet follows what the kubelet itself says of its pods: it goes on probing while the API server is away.
type kubelet struct {
	socket string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// pods are by UID; complete is set once all are known. Both are guarded by mu.
	pods     map[string]kubeletPod
	complete bool
}

// kubeletPod is what the kubelet says of a pod: whether it is ready, with which containers, by name.
type kubeletPod struct {
	ready      bool
	containers map[string]string
}

// follow watches the kubelet's pods until close is called.
func (k *kubelet) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.wg.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			c := connect(k.socket)
			_ = c.watch(ctx, watchPods, "", k.take) // without it the runtime's word counts
			c.CloseIdleConnections()
			k.mu.Lock()
			defer k.mu.Unlock()
			k.pods, k.complete = make(map[string]kubeletPod), false
		}, watchPause)
	})
}

func (k *kubelet) close() {
	if k.cancel != nil {
		k.cancel()
		k.wg.Wait()
		k.cancel = nil
	}
}

// take takes a WatchPodsEvent.
func (k *kubelet) take(event []byte) error {
	var kind uint64
	var uid string
	pod := kubeletPod{containers: make(map[string]string)}
	err := fields{1: &kind, 2: fields{1: fields{5: &uid}, 3: fields{ // a core/v1 Pod: its metadata and its status
		2: func(condition []byte) error { // its type and its status have the numbers of a key and a value
			kind, status, err := field.MapEntry(condition)
			if string(kind) == "Ready" {
				pod.ready = string(status) == "True"
			}
			return err
		},
		8: func(container []byte) error { // not an init container
			var name, id string
			err := fields{1: &name, 8: &id}.read(container)
			if _, bare, found := strings.Cut(id, "://"); found {
				id = bare // it begins with the runtime's name
			}
			pod.containers[name] = id
			return err
		},
	}}}.read(event)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case kind == podsComplete:
		k.complete = true
	case kind == podDeleted:
		delete(k.pods, uid)
	case len(k.pods) >= maxSandboxes:
		return ErrTooMany
	default:
		k.pods[uid] = pod
	}
	return nil
}

// says returns the kubelet's word on a pod. What it says of other containers than the runtime has is old: it looks at
// the runtime every second.
func (k *kubelet) says(pod Pod) *bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	said, found := k.pods[pod.UID]
	if !k.complete || !found || said.ready && len(said.containers) == 0 {
		return nil
	}
	for name, id := range said.containers {
		c, found := pod.Containers[name]
		if !found || c.ID != id || said.ready && c.State != Running {
			return nil
		}
	}
	return &said.ready
}
