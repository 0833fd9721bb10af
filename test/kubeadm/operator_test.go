package kubeadm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/application-grid/application-grid/internal/testkit/await"
	"github.com/application-grid/application-grid/test/docs/page"
	"github.com/application-grid/application-grid/test/suite"
)

// operator is who follows the pages.
type operator struct {
	*page.Reader
	client kubernetes.Interface
}

// patience is for what kubelets and controllers do on a busy machine.
var patience = await.Patience{Within: 2 * time.Minute, Between: 100 * time.Millisecond}

func newOperator(t *testing.T) *operator {
	t.Helper()
	path := t.TempDir()
	suite.Must(t, os.WriteFile(filepath.Join(path, "kubectl"),
		fmt.Appendf(nil, "#!/bin/sh\nexec '%s/components' kubectl \"$@\"\n", programs), 0o755))
	suite.Must(t, os.Symlink(filepath.Join(programs, "kubectl-grid"), filepath.Join(path, "kubectl-grid")))
	return &operator{client: shared.Client(), Reader: page.Open(suite.Test{T: t, Patience: patience}, "kubeadm.md",
		"KUBECONFIG="+shared.Kubeconfig(), "PATH="+path+":"+os.Getenv("PATH"))}
}

// kubeProxies are the uids of the kube-proxy pods by node, kubeadm's and ours, without those that are ending.
func (o *operator) kubeProxies() (kubeadms, ours map[string]string) {
	o.Helper()
	return o.uids("k8s-app=kube-proxy"), o.uids("app=kube-proxy-edge")
}

func (o *operator) uids(selector string) map[string]string {
	o.Helper()
	pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
		metav1.ListOptions{LabelSelector: selector})
	o.Must(err)
	found := map[string]string{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" {
			found[pod.Spec.NodeName] = string(pod.UID)
		}
	}
	return found
}

// expectOn waits until the pods of kube-system with this label run, ready, on exactly these nodes.
func (o *operator) expectOn(selector string, nodes ...string) {
	o.Helper()
	o.Eventually(fmt.Sprintf("%s on %v", selector, nodes), func() error {
		pods, err := o.client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
			metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		on := map[string]bool{}
		for _, pod := range pods.Items {
			if !isReady(&pod) {
				return fmt.Errorf("pod %s on %q is %s: %+v", pod.Name, pod.Spec.NodeName, pod.Status.Phase,
					pod.Status.ContainerStatuses)
			}
			on[pod.Spec.NodeName] = true
		}
		for _, node := range nodes {
			if !on[node] {
				return fmt.Errorf("there is none on %s", node)
			}
		}
		if len(pods.Items) != len(nodes) {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}

func isReady(pod *corev1.Pod) bool {
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

// podsOn are the names of all pods that the API server has of a node.
func (o *operator) podsOn(node string) []string {
	o.Helper()
	pods, err := o.client.CoreV1().Pods("").List(o.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	o.Must(err)
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}
