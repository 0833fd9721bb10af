package kubeadm

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/application-grid/application-grid/internal/testkit/await"
)

// NodeReady is nil if the node's kubelet says that it is ready.
func (c *Cluster) NodeReady(ctx context.Context, name string) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
			return fmt.Errorf("node %s is not ready: %s", name, condition.Message)
		}
	}
	return nil
}

// PodsReady is nil if there are pods with these labels, and all are ready.
func (c *Cluster) PodsReady(ctx context.Context, namespace, selector string) error {
	pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("there are no pods %s in %s", selector, namespace)
	}
	for _, pod := range pods.Items {
		if !Ready(&pod) {
			return fmt.Errorf("pod %s is not ready: %s", pod.Name, reason(&pod))
		}
	}
	return nil
}

// Ready reports whether a pod is ready, and not being deleted.
func Ready(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// reason is why a pod is not ready, as far as its status says.
func reason(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			return waiting.Reason + " " + waiting.Message
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			return condition.Message
		}
	}
	return string(pod.Status.Phase)
}

// poll calls ask until it returns no error. If that takes longer than within, the error is the last one.
func poll(ctx context.Context, within time.Duration, ask func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("not within %s", within))
	defer cancel()
	return await.NoError(ctx, 100*time.Millisecond, func(context.Context) error { return ask() })
}

func copyFile(from, to string) error {
	source, err := os.Open(from) //nolint:gosec // what the caller says
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755) //nolint:gosec // programs and archives
	if err != nil {
		return err
	}
	if _, err := io.Copy(target, source); err != nil {
		_ = target.Close()
		return fmt.Errorf("copying %s: %w", from, err)
	}
	return target.Close()
}
