package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/test/cluster"
	"github.com/application-grid/application-grid/test/workload"
)

const (
	gate = corev1.PodConditionType("application-grid.test/traffic")
	// kubeletPodIP is the address of every pod of a kubelet over the fake runtime.
	kubeletPodIP = "192.168.192.168"
)

// TestKubelet follows readiness from where it comes from, a real kubelet's status manager, to kube-proxy's
// rules, and prints when it passed each hop. kube-proxy writes rules at most once a second: of changes in quick
// succession the last hop shows this wait.
func TestKubelet(t *testing.T) {
	f := newFixture(t)
	node := f.AddNode(cluster.NodeSpec{Name: "k1", Labels: map[string]string{siteLabel: siteA}, Kubelet: true})
	f.service("gated", workload.ServiceOptions{TopologyKeys: []string{siteLabel}})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "gated", Namespace: f.namespace, Labels: workload.Labels("gated")},
		Spec:       workload.PodSpec(),
	}
	grace := int64(1)
	pod.Spec.TerminationGracePeriodSeconds = &grace
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "k1"}
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: gate}}
	_, err := f.client.CoreV1().Pods(f.namespace).Create(f.ctx, pod, metav1.CreateOptions{})
	f.Must(err)
	f.Eventually("the kubelet runs the pod's containers", func() error {
		pod, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, "gated", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if conditionOf(pod, corev1.ContainersReady) != corev1.ConditionTrue {
			return fmt.Errorf("phase %s, conditions %v", pod.Status.Phase, pod.Status.Conditions)
		}
		if conditionOf(pod, corev1.PodReady) == corev1.ConditionTrue {
			return fmt.Errorf("it is Ready although its gate is closed")
		}
		return nil
	})

	setGate := func(status corev1.ConditionStatus) func() error {
		return func() error {
			return workload.In(f.client, f.namespace).SetPodCondition(f.ctx, "gated", gate, status)
		}
	}
	for round := 1; round <= 2; round++ {
		f.followHops(fmt.Sprintf("gate opened (%d)", round), node, true, setGate(corev1.ConditionTrue))
		if f.hasRule("b1", kubeletPodIP) {
			t.Errorf("b1, of another site, has a rule for the pod")
		}
		f.followHops(fmt.Sprintf("gate closed (%d)", round), node, false, setGate(corev1.ConditionFalse))
	}
	f.followHops("gate opened (3)", node, true, setGate(corev1.ConditionTrue))
	f.followHops("pod deleted", node, false, func() error {
		return f.client.CoreV1().Pods(f.namespace).Delete(f.ctx, "gated", metav1.DeleteOptions{})
	})
	// A pod that outlives its kubelet keeps its namespace until it is garbage-collected, a minute or two later.
	f.Eventually("the kubelet has ended the pod", func() error {
		_, err := f.client.CoreV1().Pods(f.namespace).Get(f.ctx, "gated", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is there: %w", err)
		}
		return nil
	})
}

// followHops triggers a change and waits until it has passed every hop: the pod's condition Ready, the slice at
// kube-apiserver, the slice at the node's wrapper, the rule in the node's nftables.
func (f *fixture) followHops(what string, node *cluster.Node, serving bool, trigger func() error) {
	f.Helper()
	ctx, cancel := context.WithTimeout(f.ctx, deadline)
	defer cancel()
	behind, err := kubernetes.NewForConfig(node.WrapperConfig(cluster.RoleKubeProxy))
	f.Must(err)
	pods, err := f.client.CoreV1().Pods(f.namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=gated"})
	f.Must(err)
	defer pods.Stop()
	ofService := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=gated"}
	upstream, err := f.client.DiscoveryV1().EndpointSlices(f.namespace).Watch(ctx, ofService)
	f.Must(err)
	defer upstream.Stop()
	pruned, err := behind.DiscoveryV1().EndpointSlices(f.namespace).Watch(ctx, ofService)
	f.Must(err)
	defer pruned.Stop()

	begin := time.Now()
	hops := []struct {
		name string
		at   <-chan time.Duration
	}{
		{"pod condition", passed(ctx, begin, pods, func(event watch.Event) bool {
			pod, ok := event.Object.(*corev1.Pod)
			ready := ok && event.Type != watch.Deleted && conditionOf(pod, corev1.PodReady) == corev1.ConditionTrue
			return ok && ready == serving
		})},
		{"slice at kube-apiserver", passed(ctx, begin, upstream, sliceServes(serving))},
		{"slice at the wrapper", passed(ctx, begin, pruned, sliceServes(serving))},
		{"nft rule", f.ruleChanged(ctx, begin, node, serving)},
	}
	f.Must(trigger())
	called := time.Since(begin)
	var times []string
	for _, hop := range hops {
		at, ok := <-hop.at
		if !ok {
			f.Fatalf("%s: it has not passed the hop %q within %s (before: %s)", what, hop.name, deadline,
				strings.Join(times, ", "))
		}
		times = append(times, fmt.Sprintf("%s %.1fms", hop.name, float64(at.Microseconds())/1000))
	}
	f.Logf("%-16s call %.1fms → %s", what, float64(called.Microseconds())/1000, strings.Join(times, " → "))
}

// passed tells how long after begin an event first matched. The channel is closed without a value if the
// watch or ctx ends before.
func passed(ctx context.Context, begin time.Time, watcher watch.Interface,
	match func(watch.Event) bool) <-chan time.Duration {
	at := make(chan time.Duration, 1)
	go func() {
		defer close(at)
		for {
			select {
			case <-ctx.Done():
				return
			case event, ok := <-watcher.ResultChan():
				if !ok {
					return
				}
				if match(event) {
					at <- time.Since(begin)
					return
				}
			}
		}
	}()
	return at
}

// sliceServes matches the slice of the Service as soon as it has a ready endpoint or, otherwise, none that
// kube-proxy could use.
func sliceServes(serving bool) func(watch.Event) bool {
	return func(event watch.Event) bool {
		slice, ok := event.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			return false
		}
		usable := false
		for i := range slice.Endpoints {
			conditions := slice.Endpoints[i].Conditions
			// Without a ready one kube-proxy falls back to those that serve while they terminate.
			usable = usable || isReady(&slice.Endpoints[i]) ||
				(isTrue(conditions.Serving) && isTrue(conditions.Terminating))
		}
		return usable == serving
	}
}

func isTrue(value *bool) bool { return value != nil && *value }

// ruleChanged polls the node's nftables until they contain the pod's address or do not any more.
func (f *fixture) ruleChanged(ctx context.Context, begin time.Time, node *cluster.Node,
	present bool) <-chan time.Duration {
	at := make(chan time.Duration, 1)
	go func() {
		defer close(at)
		for ctx.Err() == nil {
			rules, err := node.Run(ctx, "nft", "list", "table", "ip", "kube-proxy")
			if err == nil && strings.Contains(rules, kubeletPodIP) == present {
				at <- time.Since(begin)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	return at
}

func (f *fixture) hasRule(name, address string) bool {
	f.Helper()
	node := f.Node(name)
	rules, err := node.Run(f.ctx, "nft", "list", "table", "ip", "kube-proxy")
	f.Must(err)
	return strings.Contains(rules, address)
}

func conditionOf(pod *corev1.Pod, name corev1.PodConditionType) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == name {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}
