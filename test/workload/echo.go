package workload

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// TopologyKeys is the annotation that closes a Service's loop: a JSON array of node label keys.
	TopologyKeys = "topologyKeys"
	// Port is the port of every echo pod and Service.
	Port = 8080

	appLabel = "app"
	// image is never pulled: kwok only pretends to run it.
	image = "echo"
)

// Namespace is where echo workloads are.
type Namespace struct {
	client kubernetes.Interface
	name   string
}

// In is a namespace of the client's cluster.
func In(client kubernetes.Interface, namespace string) Namespace { return Namespace{client, namespace} }

// Labels are the labels of the pods of the echo workload with this name.
func Labels(name string) map[string]string { return map[string]string{appLabel: name} }

// PodSpec is the spec of an echo pod.
func PodSpec() corev1.PodSpec {
	automount := false
	grace := int64(0)
	return corev1.PodSpec{
		AutomountServiceAccountToken:  &automount,
		TerminationGracePeriodSeconds: &grace,
		Containers: []corev1.Container{{
			Name:  "echo",
			Image: image,
			Ports: []corev1.ContainerPort{{ContainerPort: Port}},
		}},
	}
}

// CreateDaemonSet creates an echo workload with one pod on every node.
func (in Namespace) CreateDaemonSet(ctx context.Context, name string) error {
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: Labels(name)},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: Labels(name)}, Spec: PodSpec()},
		},
	}
	if _, err := in.client.AppsV1().DaemonSets(in.name).Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating DaemonSet %s/%s: %w", in.name, name, err)
	}
	return nil
}

// CreateDeployment creates an echo workload with this many pods on nodes that match the selector; an empty
// selector matches all.
func (in Namespace) CreateDeployment(ctx context.Context, name string, replicas int32,
	nodes map[string]string) error {
	spec := PodSpec()
	spec.NodeSelector = nodes
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: Labels(name)},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: Labels(name)}, Spec: spec},
		},
	}
	if _, err := in.client.AppsV1().Deployments(in.name).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating Deployment %s/%s: %w", in.name, name, err)
	}
	return nil
}

// Scale sets the number of a Deployment's pods.
func (in Namespace) Scale(ctx context.Context, name string, replicas int32) error {
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := in.client.AppsV1().Deployments(in.name).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("scaling Deployment %s/%s: %w", in.name, name, err)
	}
	return nil
}

// ServiceOptions say how CreateService makes a Service.
type ServiceOptions struct {
	// Headless leaves the Service without a cluster IP.
	Headless bool
	// TopologyKeys, if any, go into the annotation.
	TopologyKeys []string
	// Workload is the echo workload; that of the Service's name, if it is empty.
	Workload string
}

// CreateService creates a Service for an echo workload.
func (in Namespace) CreateService(ctx context.Context, name string, options ServiceOptions) (*corev1.Service, error) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.name},
		Spec: corev1.ServiceSpec{
			Selector: Labels(cmp.Or(options.Workload, name)),
			Ports:    []corev1.ServicePort{{Name: "http", Port: Port}},
		},
	}
	if options.Headless {
		service.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if len(options.TopologyKeys) > 0 {
		value, err := json.Marshal(options.TopologyKeys)
		if err != nil {
			return nil, fmt.Errorf("encoding topology keys: %w", err)
		}
		service.Annotations = map[string]string{TopologyKeys: string(value)}
	}
	created, err := in.client.CoreV1().Services(in.name).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating Service %s/%s: %w", in.name, name, err)
	}
	return created, nil
}

// SetTopologyKeys sets the Service's annotation to the keys, or removes it if there are none.
func (in Namespace) SetTopologyKeys(ctx context.Context, name string, keys ...string) error {
	var annotation any
	if len(keys) > 0 {
		value, err := json.Marshal(keys)
		if err != nil {
			return fmt.Errorf("encoding topology keys: %w", err)
		}
		annotation = string(value)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{TopologyKeys: annotation}}})
	if err != nil {
		return fmt.Errorf("encoding the annotation: %w", err)
	}
	if _, err := in.client.CoreV1().Services(in.name).Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotating Service %s/%s: %w", in.name, name, err)
	}
	return nil
}

// SetPodCondition sets one condition in a pod's status, as a kubelet or the owner of a readiness gate does.
func (in Namespace) SetPodCondition(ctx context.Context, name string,
	condition corev1.PodConditionType, status corev1.ConditionStatus) error {
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{Conditions: []corev1.PodCondition{{
		Type: condition, Status: status, LastTransitionTime: metav1.Now(),
	}}}})
	if err != nil {
		return fmt.Errorf("encoding a pod condition: %w", err)
	}
	_, err = in.client.CoreV1().Pods(in.name).Patch(ctx, name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("setting condition %s of pod %s/%s: %w", condition, in.name, name, err)
	}
	return nil
}

// CreatePod creates one echo pod of the workload on a node, whatever the scheduler would say.
func (in Namespace) CreatePod(ctx context.Context, name, workload, node string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in.name, Labels: Labels(workload)},
		Spec:       PodSpec(),
	}
	pod.Spec.NodeName = node
	if _, err := in.client.CoreV1().Pods(in.name).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating pod %s/%s: %w", in.name, name, err)
	}
	return nil
}

// PodsOn returns the names of the echo workload's pods on a node.
func (in Namespace) PodsOn(ctx context.Context, name, node string) ([]string, error) {
	pods, err := in.client.CoreV1().Pods(in.name).List(ctx, metav1.ListOptions{
		LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: Labels(name)}),
		FieldSelector: "spec.nodeName=" + node,
	})
	if err != nil {
		return nil, fmt.Errorf("listing the pods of %s/%s on node %s: %w", in.name, name, node, err)
	}
	var names []string
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names, nil
}

// SetReadyOn sets the condition Ready of the echo workload's pods on a node, of which there must be one.
func (in Namespace) SetReadyOn(ctx context.Context, name, node string, status corev1.ConditionStatus) error {
	pods, err := in.PodsOn(ctx, name, node)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return fmt.Errorf("there is no pod of %s/%s on node %s", in.name, name, node)
	}
	for _, pod := range pods {
		if err := in.SetPodCondition(ctx, pod, corev1.PodReady, status); err != nil {
			return err
		}
	}
	return nil
}
