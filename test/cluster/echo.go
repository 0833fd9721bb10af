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
	"golang.org/x/sys/unix"
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
	pods    cache.Store

	mu     sync.Mutex
	served map[string]*echoPod // guarded by mu; by namespace/name
	// offline are the nodes whose kubelet is cut off: what becomes of their pods in the API has no effect. Guarded by
	// mu.
	offline map[*Node]bool
	// moved are the addresses that pods have in place of those in the API; guarded by mu.
	moved map[string]string
}

// echoPod is one pod that is being served.
type echoPod struct {
	node      *Node
	pod       *corev1.Pod
	address   string
	address6  string // "" without one
	since     time.Time
	listeners []net.Listener
}

// startEcho begins to watch the pods of the whole cluster.
func startEcho(c *Cluster) *echo {
	ctx, cancel := context.WithCancel(context.Background())
	e := &echo{
		cluster: c, stop: cancel, stopped: make(chan struct{}),
		served: map[string]*echoPod{}, offline: map[*Node]bool{}, moved: map[string]string{},
	}
	pods := cache.NewListWatchFromClient(c.client.CoreV1().RESTClient(), "pods", "", fields.Everything())
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: pods,
		ObjectType:    &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    e.update,
			UpdateFunc: func(_, object any) { e.update(object) },
			DeleteFunc: func(object any) {
				if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil && !e.keeps(key) {
					e.remove(key)
				}
			},
		},
	})
	e.pods = store
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
	e.mu.Lock()
	address6 := ""
	for _, ip := range pod.Status.PodIPs {
		if err == nil && mustCIDR(podCIDR6(node.index)).Contains(net.ParseIP(ip.IP)) {
			address6 = ip.IP
		}
	}
	current, address, offline := e.served[key], pod.Status.PodIP, err == nil && e.offline[node]
	if moved := e.moved[key]; moved != "" {
		address = moved
	}
	e.mu.Unlock()
	if offline {
		return
	}
	// Also an address that is not of the node's range, such as a kubelet's fake one, is nobody's here.
	// Pods of kube-system are programs of the cluster: a test that runs one needs its ports.
	if err != nil || finished || pod.Spec.HostNetwork || pod.Namespace == metav1.NamespaceSystem ||
		!mustCIDR(node.PodCIDR).Contains(net.ParseIP(address)) {
		e.remove(key)
		return
	}
	if current != nil {
		if current.node == node && current.address == address && current.address6 == address6 {
			return
		}
		e.remove(key) // another pod of the same name
	}
	served := &echoPod{node: node, pod: pod, address: address, address6: address6, since: time.Now()}
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
	delete(e.moved, key)
	var heir *echoPod
	for _, other := range e.served {
		if served != nil && other.node == served.node && other.address == served.address {
			heir = other
		}
	}
	e.mu.Unlock()
	switch {
	case served == nil:
	case heir == nil:
		served.close()
	default: // kwok gives addresses that are in use to new pods after it was restarted
		served.stop()
		if len(heir.listeners) == 0 {
			if err := heir.start(heir.pod); err != nil {
				e.cluster.progress("echo server of pod %s, which inherits %s: %v", heir.pod.Name, heir.address, err)
			}
		}
	}
}

// keeps tells whether a pod goes on although its object is gone, because its kubelet does not know.
func (e *echo) keeps(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	served := e.served[key]
	return served != nil && e.offline[served.node]
}

// leave ends the servers on a node, whose namespace is about to go.
func (e *echo) leave(node *Node) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, served := range e.served {
		if served.node == node {
			served.close()
			delete(e.served, key)
			delete(e.moved, key)
		}
	}
	delete(e.offline, node)
}

// powerOff ends the servers on a node, whose kubelet is cut off from now on, and returns the pods that they were of.
func (e *echo) powerOff(node *Node) []*corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.offline[node] = true
	var pods []*corev1.Pod
	for key, served := range e.served {
		if served.node == node {
			served.close()
			delete(e.served, key)
			pods = append(pods, served.pod)
		}
	}
	return pods
}

// powerOn starts a server of a pod again, at another address.
func (e *echo) powerOn(node *Node, pod *corev1.Pod, address string) error {
	served := &echoPod{node: node, pod: pod, address: address, since: time.Now()}
	if err := served.start(pod); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := pod.Namespace + "/" + pod.Name
	e.served[key], e.moved[key] = served, address
	return nil
}

// online lets the objects of a node's pods have their effect again.
func (e *echo) online(node *Node) {
	e.mu.Lock()
	delete(e.offline, node)
	e.mu.Unlock()
	for _, object := range e.pods.List() {
		if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName == node.Spec.Name {
			e.update(pod)
		}
	}
}

// podsOn are the pods that are served on a node.
func (e *echo) podsOn(node *Node) []*echoPod {
	e.mu.Lock()
	defer e.mu.Unlock()
	var pods []*echoPod
	for _, served := range e.served {
		if served.node == node {
			pods = append(pods, served)
		}
	}
	return pods
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
	for _, address := range p.addresses() {
		for _, port := range echoPorts(pod) {
			at := net.JoinHostPort(address, strconv.Itoa(port))
			listener, err := p.node.namespace.Listen(context.Background(), at)
			if err != nil {
				return err
			}
			p.listeners = append(p.listeners, listener)
			go server.Serve(listener) //nolint:errcheck // it ends with the listener
		}
	}
	return nil
}

func (p *echoPod) addresses() []string {
	if p.address6 == "" {
		return []string{p.address}
	}
	return []string{p.address, p.address6}
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

// stop closes the listeners, and leaves the address on the node.
func (p *echoPod) stop() {
	for _, listener := range p.listeners {
		_ = listener.Close()
	}
}

func (p *echoPod) close() {
	p.stop()
	_ = p.changeAddress((*netlink.Handle).AddrDel) // the namespace may be gone, and the address with it
}

func (p *echoPod) changeAddress(change func(*netlink.Handle, netlink.Link, *netlink.Addr) error) error {
	return p.node.namespace.Links(func(handle *netlink.Handle) error {
		link, err := handle.LinkByName(podsName)
		if err != nil {
			return err
		}
		var failures []error
		for _, address := range p.addresses() {
			failures = append(failures, change(handle, link, &netlink.Addr{
				IPNet: netlink.NewIPNet(net.ParseIP(address)),
				Flags: unix.IFA_F_NODAD, // without it an address of IPv6 may not be used at once
			}))
		}
		return errors.Join(failures...)
	})
}
