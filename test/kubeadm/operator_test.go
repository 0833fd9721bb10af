package kubeadm_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/application-grid/application-grid/test/kubeadm"
	"github.com/application-grid/application-grid/test/kubeadm/operate"
)

// operator is who follows the pages.
type operator struct{ *operate.Operator }

// kubeProxies are the uids of the kube-proxy pods by node, kubeadm's and ours, without those that are ending.
func (o *operator) kubeProxies() (kubeadms, ours map[string]string) {
	o.Helper()
	return o.uids("k8s-app=kube-proxy"), o.uids("app=kube-proxy-edge")
}

func (o *operator) uids(selector string) map[string]string {
	o.Helper()
	pods, err := o.Client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
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
		pods, err := o.Client.CoreV1().Pods(metav1.NamespaceSystem).List(o.Context(),
			metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return err
		}
		on := map[string]bool{}
		for _, pod := range pods.Items {
			if !kubeadm.Ready(&pod) {
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

// listPods are the pods that the API server has of a node, in a namespace or, for "", in all.
func (o *operator) listPods(namespace, node string) ([]corev1.Pod, error) {
	pods, err := o.Client.CoreV1().Pods(namespace).List(o.Context(), metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// podsOn are the names of all pods that the API server has of a node.
func (o *operator) podsOn(node string) []string {
	o.Helper()
	pods, err := o.listPods("", node)
	o.Must(err)
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	return names
}
