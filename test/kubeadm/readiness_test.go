package kubeadm_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
	"github.com/application-grid/application-grid/test/workload"
)

// followReadiness changes what the echo pod of node0 answers to its readiness probe, and waits until the change has
// passed every hop: the kubelet's status manager, the EndpointSlice controller, the wrapper of the node that looks, and
// the rules of that node's kube-proxy. It prints when it passed each, since the answer of the probe changed.
func (o *operator) followReadiness(ready bool, from string) {
	o.Helper()
	ctx, cancel := context.WithTimeout(o.Context(), operate.Patience.Within)
	defer cancel()
	pod := o.echoOn("node0")
	node := shared.Node(from)
	pods, err := o.Client.CoreV1().Pods(pod.Namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + pod.Name})
	o.Must(err)
	ofService := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=echo"}
	upstream, err := o.Client.DiscoveryV1().EndpointSlices(pod.Namespace).Watch(ctx, ofService)
	o.Must(err)
	behind, err := kubernetes.NewForConfig(&rest.Config{Host: "http://localhost:51006", Dial: node.DialContext})
	o.Must(err)
	shown, err := behind.DiscoveryV1().EndpointSlices(pod.Namespace).Watch(ctx, ofService)
	o.Must(err)
	has := func(event watch.Event) bool { return sliceHas(event, pod.Status.PodIP) == ready }

	begin := time.Now()
	o.Must(setProbe(ctx, pod, ready))
	type hop struct {
		name string
		at   <-chan time.Duration
	}
	var passed []string
	for _, hop := range []hop{
		{"condition of the pod", since(begin, pods, func(event watch.Event) bool {
			pod, ok := event.Object.(*corev1.Pod)
			return ok && kubeadm.Ready(pod) == ready
		})},
		{"slice at kube-apiserver", since(begin, upstream, has)},
		{"slice at the wrapper", since(begin, shown, has)},
		{"rules", ruleSince(ctx, begin, node, pod.Status.PodIP, ready)},
	} {
		at, ok := <-hop.at
		if !ok {
			o.Fatalf("node0's pod is to be ready: %v. From %s the change was not seen at the hop %q; before: %v", ready,
				from, hop.name, passed)
		}
		passed = append(passed, fmt.Sprintf("%s %.0f ms", hop.name, at.Seconds()*1000))
	}
	o.Logf("ready: %v, from %s: %s", ready, from, strings.Join(passed, ", "))
}

// echoOn is the echo pod on a node.
func (o *operator) echoOn(node string) *corev1.Pod {
	o.Helper()
	pods, err := o.Client.CoreV1().Pods(metav1.NamespaceDefault).List(o.Context(), metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: workload.Labels("echo")}),
		FieldSelector: "spec.nodeName=" + node,
	})
	o.Must(err)
	if len(pods.Items) != 1 {
		o.Fatalf("%d echo pods are on %s", len(pods.Items), node)
	}
	return &pods.Items[0]
}

// setProbe has the pod answer its readiness probe so: see test/cmd/pod.
func setProbe(ctx context.Context, pod *corev1.Pod, ready bool) error {
	_, container, found := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	if !found {
		return fmt.Errorf("pod %s has the container %q", pod.Name, pod.Status.ContainerStatuses[0].ContainerID)
	}
	command := "touch"
	if ready {
		command = "rm"
	}
	_, err := shared.Node(pod.Spec.NodeName).Run(ctx, command,
		"/run/containerd/io.containerd.runtime.v2.task/k8s.io/"+container+"/rootfs/tmp/unready")
	return err
}

// since tells how long after begin an event first matched. The channel is closed without a value if the watch ends
// before.
func since(begin time.Time, watcher watch.Interface, match func(watch.Event) bool) <-chan time.Duration {
	at := make(chan time.Duration, 1)
	go func() {
		defer close(at)
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			if match(event) {
				at <- time.Since(begin)
				return
			}
		}
	}()
	return at
}

// sliceHas reports whether the slice has a ready endpoint with this address.
func sliceHas(event watch.Event, address string) bool {
	slice, ok := event.Object.(*discoveryv1.EndpointSlice)
	return ok && shownReady(slice, address)
}

// shownReady reports whether a slice has an address that is ready.
func shownReady(slice *discoveryv1.EndpointSlice, address string) bool {
	for _, endpoint := range slice.Endpoints {
		if endpoint.Addresses[0] == address {
			return endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
		}
	}
	return false
}

// ruleSince looks at the node's rules until they lead to the address, or do not any more.
func ruleSince(ctx context.Context, begin time.Time, node *kubeadm.Node, address string,
	present bool) <-chan time.Duration {
	at := make(chan time.Duration, 1)
	go func() {
		defer close(at)
		for ; ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
			rules, err := node.Run(ctx, "iptables-save", "-t", "nat") // kubeadm's default mode
			if err == nil && strings.Contains(rules, "--to-destination "+address+":") == present {
				at <- time.Since(begin)
				return
			}
		}
	}()
	return at
}
