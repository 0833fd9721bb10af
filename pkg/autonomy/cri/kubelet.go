package cri

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// podsSocket is where the kubelet reports which pods it runs (PodsAPI, on by default from Kubernetes 1.37).
	podsSocket = "/var/lib/kubelet/pods-api/pods-api.sock"
	watchPods  = "v1alpha1.Pods/WatchPods"
	// watchPause is the time between two attempts to watch. After a reboot the kubelet refuses until it has the pods of
	// the API server, and older kubelets have no socket.
	watchPause = 10 * time.Second
)

// The types of the events of WatchPods.
const (
	podDeleted   = 3
	podsComplete = 4
)

// kubelet follows the kubelet's own reports on its pods: it continues probing while the API server is away.
type kubelet struct {
	socket string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex
	// pods are by UID; complete is set once all are known. Both are guarded by mu.
	pods     map[string]kubeletPod
	complete bool
}

// kubeletPod is the kubelet's report on a pod: whether it is ready, and its containers' ids by name. While the kubelet
// has just started, ready is nil: it calls every pod not ready, and its containers ready.
type kubeletPod struct {
	ready      *bool
	containers map[string]string
}

// follow watches the kubelet's pods until close is called.
func (k *kubelet) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.wg.Go(func() {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			c := connect(k.socket)
			_ = c.watch(ctx, watchPods, "", k.takeEvent) // without it only the runtime's state is used
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

// takeEvent takes a WatchPodsEvent.
func (k *kubelet) takeEvent(event []byte) error {
	var kind uint64
	var uid string
	pod := kubeletPod{containers: make(map[string]string)}
	ready, containersReady, because := false, false, ""
	err := fields{1: &kind, 2: fields{1: fields{5: &uid}, 3: fields{ // a core/v1 Pod: its metadata and its status
		2: func(condition []byte) error {
			var kind, status, reason string
			err := fields{1: &kind, 2: &status, 5: &reason}.read(condition)
			switch kind {
			case "Ready":
				ready, because = status == "True", reason
			case "ContainersReady":
				containersReady = status == "True"
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
	if !containersReady || because != "ContainersNotReady" { // a pod that is ready has no reason
		pod.ready = &ready
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch kind {
	case podsComplete:
		k.complete = true
	case podDeleted:
		delete(k.pods, uid)
	default:
		k.pods[uid] = pod
	}
	return nil
}

// says returns whether the kubelet calls a pod ready, and which containers it needs. A report about other containers
// than the runtime has is out of date, because the kubelet asks the runtime only once a second.
func (k *kubelet) says(pod Pod) (ready *bool, needed []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	said, found := k.pods[pod.UID]
	isReady := said.ready != nil && *said.ready
	if !k.complete || !found || isReady && len(said.containers) == 0 {
		return nil, nil
	}
	needed = slices.Collect(maps.Keys(said.containers))
	for name, id := range said.containers {
		c, found := pod.Containers[name]
		if !found || c.ID != id || isReady && c.State != Running {
			return nil, needed
		}
	}
	return said.ready, needed
}
