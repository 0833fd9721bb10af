package kubeadm

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/application-grid/application-grid/test/workload"
)

// EchoDaemonSet runs a pod of EchoImage on every node: a real container with an address of the CNI, the endpoint of a
// Service "echo" of package workload.
func EchoDaemonSet() *appsv1.DaemonSet {
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	labels := workload.Labels("echo")
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "echo", Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				AutomountServiceAccountToken: ptr.To(false),
				Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				Containers: []corev1.Container{{
					Name: "echo", Image: EchoImage,
					Env: []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: field("spec.nodeName")},
						{Name: "POD_NAME", ValueFrom: field("metadata.name")}},
					ReadinessProbe: &corev1.Probe{
						ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/readyz",
							Port: intstr.FromInt32(workload.Port)}},
						PeriodSeconds: 1, FailureThreshold: 1,
					},
				}},
			}},
		},
	}
}
