package lite

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/suite"
)

// TestEtcdAway: kube-apiserver runs and has lost its etcd, and the node is started again. The kubelet gets what is on
// the disk.
func TestEtcdAway(t *testing.T) {
	namespace := suite.Namespace(t, shared, "etcd")
	m := newMachine(t, "etcd", false)
	pod := m.createRichPod(namespace, "p")
	m.start()
	secret, err := shared.Client().CoreV1().Secrets(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	m.Must(err)
	m.recorded(1, string(pod.UID), string(secret.UID))

	etcd := shared.Etcd.PID()
	m.Must(syscall.Kill(etcd, syscall.SIGSTOP))
	defer func() { m.Must(syscall.Kill(etcd, syscall.SIGCONT)) }()
	m.kill()
	m.start()
	config := m.kubeletConfig()
	config.Timeout = 10 * time.Second // as the kubelet's
	client, err := kubernetes.NewForConfig(config)
	m.Must(err)
	await.Patience{Within: 30 * time.Second, Between: time.Second}.Until(t, "the kubelet starts", func() error {
		kubelet := client.CoreV1()
		if _, err := kubelet.Nodes().Get(t.Context(), m.name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("its Node: %w", err)
		}
		if _, err := kubelet.Secrets(namespace).Get(t.Context(), pod.Name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("its pod's Secret: %w", err)
		}
		pods, err := m.pods()
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("%d pods", len(pods.Items))
		}
		return err
	})
}
