package workload

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Probes has the pods of kubectl grid prove run on kwok's nodes, which run nothing.
type Probes struct {
	Client kubernetes.Interface
	// Dir is a directory for the pods' termination messages.
	Dir string
	// Execute runs the wrapper in the network of a node.
	Execute func(ctx context.Context, node string, args ...string) error
}

// Run runs the program of each pod, with the arguments that the pod has, and writes into the pod's status what a
// kubelet would, until ctx is done.
func (p Probes) Run(ctx context.Context) {
	started := map[types.UID]bool{}
	for ctx.Err() == nil {
		pods, err := p.Client.CoreV1().Pods("kube-system").List(ctx,
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=kubectl-grid-prove"})
		if err == nil {
			for _, pod := range pods.Items {
				if pod.Status.StartTime != nil && !started[pod.UID] { // kwok says that it runs
					started[pod.UID] = true
					go p.probe(ctx, &pod)
				}
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (p Probes) probe(ctx context.Context, pod *corev1.Pod) {
	log := filepath.Join(p.Dir, pod.Name)
	args := slices.Clone(pod.Spec.Containers[0].Args)
	for i := range args {
		args[i] = strings.Replace(args[i], "/dev/termination-log", log, 1)
	}
	code := int32(0)
	if err := p.Execute(ctx, pod.Spec.NodeName, args...); err != nil {
		code = 1
	}
	message, _ := os.ReadFile(log) //nolint:gosec // in the test's directory
	patch, err := json.Marshal(map[string]any{"status": corev1.PodStatus{Phase: corev1.PodSucceeded,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code,
				Message: string(message)}},
		}}}})
	if err == nil {
		_, _ = p.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch,
			metav1.PatchOptions{}, "status")
	}
}
