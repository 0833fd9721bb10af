package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// defaultEchoPort is where the echo server of a pod listens that declares no port.
const defaultEchoPort = 8080

// echo plays the containers of the pods that kwok pretends to run: it puts every pod's address on its node and
// answers HTTP requests to it with "node=NODE pod=POD". It does so until the Pod object is gone, whether the
// pod is ready or not: whom traffic reaches is kube-proxy's decision.
type echo struct {
	cluster *Cluster
	stop    context.CancelFunc
	stopped chan struct{}

	mu     sync.Mutex
	served map[string]*echoPod // guarded by mu; by namespace/name
}

// echoPod is one pod that is being served.
type echoPod struct {
	node      *Node
	address   string
	listeners []net.Listener
}

// startEcho begins to watch the pods of the whole cluster.
func startEcho(c *Cluster) *echo {
	ctx, cancel := context.WithCancel(context.Background())
	e := &echo{cluster: c, stop: cancel, stopped: make(chan struct{}), served: map[string]*echoPod{}}
	pods := cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), "pods", "", fields.Everything())
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pods,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    e.update,
			UpdateFunc: func(_, object any) { e.update(object) },
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
					e.remove(key)
				}
			},
		},
	})
	go func() {
		defer close(e.stopped)
		controller.RunWithContext(ctx)
	}()
	return e
}

// update brings the servers of a pod in line with its object.
func (e *echo) update(object any) {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	key, err := cache.MetaNamespaceKeyFunc(pod)
	if err != nil {
		return
	}
	node, err := e.cluster.Node(pod.Spec.NodeName)
	finished := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	// Also an address that is not of the node's range, such as a kubelet's fake one, is nobody's here.
	// Pods of kube-system are programs of the cluster: a test that runs one needs its ports.
	if err != nil || finished || pod.Spec.HostNetwork || pod.Namespace == metav1.NamespaceSystem ||
		!mustCIDR(node.PodCIDR).Contains(net.ParseIP(pod.Status.PodIP)) {
		e.remove(key)
		return
	}
	e.mu.Lock()
	current := e.served[key]
	e.mu.Unlock()
	if current != nil {
		if current.node == node && current.address == pod.Status.PodIP {
			return
		}
		e.remove(key) // another pod of the same name
	}
	served := &echoPod{node: node, address: pod.Status.PodIP}
	if err := served.start(pod); err != nil {
		e.cluster.progress("echo server of pod %s on node %s: %v", key, node.Spec.Name, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.served[key] = served
}

func (e *echo) remove(key string) {
	e.mu.Lock()
	served := e.served[key]
	delete(e.served, key)
	e.mu.Unlock()
	if served != nil {
		served.close()
	}
}

// leave ends the servers on a node, whose namespace is about to go.
func (e *echo) leave(node *Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, served := range e.served {
		if served.node == node {
			served.close()
			delete(e.served, key)
		}
	}
}

func (e *echo) close() {
	e.stop()
	<-e.stopped
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, served := range e.served {
		served.close()
		delete(e.served, key)
	}
}

func (p *echoPod) start(pod *corev1.Pod) error {
	if err := p.changeAddress((*netlink.Handle).AddrAdd); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("adding address %s: %w", p.address, err)
	}
	answer := fmt.Sprintf("node=%s pod=%s\n", p.node.Spec.Name, pod.Name)
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, answer)
		}),
	}
	for _, port := range echoPorts(pod) {
		listener, err := p.node.namespace.Listen(context.Background(), net.JoinHostPort(p.address, strconv.Itoa(port)))
		if err != nil {
			return err
		}
		p.listeners = append(p.listeners, listener)
		go server.Serve(listener) //nolint:errcheck // it ends with the listener
	}
	return nil
}

// echoPorts are the TCP ports that the pod's containers declare.
func echoPorts(pod *corev1.Pod) []int {
	var ports []int
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Protocol == corev1.ProtocolTCP || port.Protocol == "" {
				ports = append(ports, int(port.ContainerPort))
			}
		}
	}
	if len(ports) == 0 {
		ports = []int{defaultEchoPort}
	}
	return ports
}

func (p *echoPod) close() {
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
	_ = p.changeAddress((*netlink.Handle).AddrDel) // the namespace may be gone, and the address with it
}

func (p *echoPod) changeAddress(change func(*netlink.Handle, netlink.Link, *netlink.Addr) error) error {
	handle, err := links(p.node.namespace)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(podsName)
	if err != nil {
		return err
	}
	return change(handle, link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(p.address),
		Mask: net.CIDRMask(32, 32)}})
}
