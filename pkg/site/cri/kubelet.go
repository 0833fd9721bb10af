package cri

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/application-grid/application-grid/pkg/wire/field"
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
	uid        string
	ready      bool
	containers map[string]string
}

// follow watches the kubelet's pods until close is called.
func (k *kubelet) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	k.wg.Go(func() {
		for ctx.Err() == nil {
			c := connect(k.socket)
			_ = c.watch(ctx, watchPods, k.take) // without it the runtime's word counts
			c.close()
			k.forget()
			select {
			case <-time.After(watchPause):
			case <-ctx.Done():
			}
		}
	})
}

func (k *kubelet) close() {
	if k.cancel != nil {
		k.cancel()
		k.wg.Wait()
		k.cancel = nil
	}
}

func (k *kubelet) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pods, k.complete = nil, false
}

var errManyPods = errors.New("the kubelet has more pods than a node can run")

// take takes a WatchPodsEvent.
func (k *kubelet) take(event []byte) error {
	var kind uint64
	var encoded []byte
	f := field.Of(event)
	for f.Next() {
		switch f.Number {
		case 1:
			kind = f.Varint
		case 2:
			encoded = f.Value
		}
	}
	if f.Err != nil {
		return f.Err
	}
	pod, err := readKubeletPod(encoded)
	if err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case kind == podsComplete:
		k.complete = true
	case kind == podDeleted:
		delete(k.pods, pod.uid)
	case len(k.pods) >= maxSandboxes:
		return errManyPods
	default:
		if k.pods == nil {
			k.pods = make(map[string]kubeletPod)
		}
		k.pods[pod.uid] = pod
	}
	return nil
}

// says returns the kubelet's word on a pod. What it says of other containers than the runtime has is old: it looks at
// the runtime every second.
func (k *kubelet) says(pod Pod) Readiness {
	k.mu.Lock()
	defer k.mu.Unlock()
	said, found := k.pods[pod.UID]
	if !k.complete || !found {
		return Unsaid
	}
	for name, id := range said.containers {
		c, found := pod.Containers[name]
		if !found || c.ID != id || said.ready && c.State != Running {
			return Unsaid
		}
	}
	switch {
	case said.ready && len(said.containers) > 0:
		return Ready
	case said.ready:
		return Unsaid
	default:
		return NotReady
	}
}

// readKubeletPod reads a core/v1 Pod.
func readKubeletPod(message []byte) (kubeletPod, error) {
	pod := kubeletPod{containers: make(map[string]string)}
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 1: // metadata
			uid, err := inside(f.Value, 5)
			if err != nil {
				return pod, err
			}
			pod.uid = string(uid)
		case 3:
			if err := pod.readStatus(f.Value); err != nil {
				return pod, err
			}
		}
	}
	return pod, f.Err
}

func (p *kubeletPod) readStatus(message []byte) error {
	f := field.Of(message)
	for f.Next() {
		switch f.Number {
		case 2: // a condition: its type and its status are the first fields, as key and value are
			kind, status, err := field.MapEntry(f.Value)
			if err != nil {
				return err
			}
			if string(kind) == "Ready" {
				p.ready = string(status) == "True"
			}
		case 8: // a container that is no init container
			name, err := inside(f.Value, 1)
			if err != nil {
				return err
			}
			id, err := inside(f.Value, 8)
			if err != nil {
				return err
			}
			p.containers[string(name)] = bareID(string(id))
		}
	}
	return f.Err
}
