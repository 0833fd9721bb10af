package prove

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
)

// The label of the pods that are made. No other pods have it.
const (
	labelName  = "app.kubernetes.io/name"
	labelValue = "kubectl-grid-prove"
)

const (
	// between is the pause between two reads of a pod.
	between = 500 * time.Millisecond
	// creating is how long making a pod may take. A pod that appears later is ended by its own deadline.
	creating = 20 * time.Second
	// cleaning is how long removing a pod may take after everything else is over.
	cleaning = 20 * time.Second
	// terminationLog is the file whose first 4 KiB the kubelet puts into the pod's status.
	terminationLog = "/dev/termination-log"
)

// Probe configures the probe on one node.
type Probe struct {
	Requests int
	// Timeout limits one connection.
	Timeout time.Duration
}

// Pods is a Runner that makes a pod for each node.
type Pods struct {
	API client.Client
	// Namespace is the namespace of the pods. It must allow pods in the node's network with the capability NET_ADMIN.
	Namespace string
	Probe     Probe
	// ImageOn is the image of application-grid-wrapper for a node, and the secrets to pull it with.
	ImageOn func(node string) (image string, secrets []corev1.LocalObjectReference)
	// Alive limits the life of a pod, in case the command that made it ends without removing it.
	Alive time.Duration
}

// Run implements Runner. It always removes the pod before it returns.
func (r *Pods) Run(ctx context.Context, node string, target netip.AddrPort) (probe.Result, error) {
	pod := r.pod(node, target)
	if err := r.create(ctx, pod); err != nil {
		if apierrors.IsForbidden(err) {
			return probe.Result{}, fmt.Errorf("a pod may not be created in namespace %s: %w; --pod-namespace names "+
				"another", r.Namespace, err)
		}
		return probe.Result{}, fmt.Errorf("making a pod: %w", err)
	}
	defer r.remove(ctx, pod)
	why, result := errors.New("it was not started"), probe.Result{}
	err := wait.PollUntilContextCancel(ctx, between, false, func(ctx context.Context) (done bool, err error) {
		switch err := r.API.Get(ctx, client.ObjectKeyFromObject(pod), pod); {
		case apierrors.IsNotFound(err):
			return false, fmt.Errorf("somebody removed pod %s", pod.Name)
		case err != nil:
			why = err
			return false, nil //nolint:nilerr // the next read may succeed
		}
		if result, done, err = outcome(pod); !done && err != nil {
			why, err = err, nil
		}
		return done, err
	})
	switch {
	case wait.Interrupted(err) && errors.Is(ctx.Err(), context.DeadlineExceeded):
		return probe.Result{}, fmt.Errorf("pod %s did not end in time: %w", pod.Name, why)
	case wait.Interrupted(err):
		return probe.Result{}, errors.New("it was interrupted")
	}
	return result, err
}

// create makes a pod, even if ctx ends meanwhile: an abandoned request may still succeed, and then the name of the pod
// would be lost.
func (r *Pods) create(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), creating)
	defer cancel()
	return r.API.Create(ctx, pod)
}

// remove removes a pod, even after ctx has ended.
func (r *Pods) remove(ctx context.Context, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, between, true, func(ctx context.Context) (bool, error) {
		return client.IgnoreNotFound(r.API.Delete(ctx, pod, client.GracePeriodSeconds(0))) == nil, nil
	})
}

// RemoveLeftovers removes pods of runs that were killed before they could.
func (r *Pods) RemoveLeftovers(ctx context.Context) error {
	list := &corev1.PodList{}
	err := r.API.List(ctx, list, client.InNamespace(r.Namespace), client.MatchingLabels{labelName: labelValue})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if phase := list.Items[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			continue // another run's
		}
		if err := r.API.Delete(ctx, &list.Items[i]); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// hopeless are the reasons of a waiting container that will not start.
var hopeless = map[string]bool{
	"ErrImagePull": true, "ImagePullBackOff": true, "ErrImageNeverPull": true, "InvalidImageName": true,
	"CreateContainerConfigError": true, "CreateContainerError": true, "RunContainerError": true,
}

// outcome returns the result in a pod's status if the pod is done, or why it is not.
func outcome(pod *corev1.Pod) (result probe.Result, done bool, err error) {
	for _, status := range pod.Status.ContainerStatuses {
		if waiting := status.State.Waiting; waiting != nil {
			return result, hopeless[waiting.Reason], fmt.Errorf("%s: %s", waiting.Reason, waiting.Message)
		}
		if ended := status.State.Terminated; ended != nil {
			return resultOf(ended)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status == corev1.ConditionFalse && condition.Message != "" {
			err = fmt.Errorf("%s: %s", condition.Reason, condition.Message)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return result, true, fmt.Errorf("pod %s failed: %s: %s", pod.Name, pod.Status.Reason, pod.Status.Message)
	}
	return result, false, err
}

// resultOf returns the result that a probe wrote before it ended.
func resultOf(ended *corev1.ContainerStateTerminated) (result probe.Result, done bool, err error) {
	if err := json.Unmarshal([]byte(ended.Message), &result); err == nil {
		return result, true, nil
	}
	if ended.ExitCode == 2 {
		return result, true, errors.New("the image has no probe: it is of an older application-grid-wrapper; --image " +
			"names another")
	}
	return result, true, fmt.Errorf("the probe ended with code %d: %s %s", ended.ExitCode, ended.Reason, ended.Message)
}

// pod returns the pod that runs the probe on a node. It bypasses the scheduler, so that taints do not matter.
func (r *Pods) pod(node string, target netip.AddrPort) *corev1.Pod {
	image, secrets := r.ImageOn(node)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: labelValue + "-", Namespace: r.Namespace,
			Labels: map[string]string{labelName: labelValue},
		},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			HostNetwork:                   true, // there the kernel knows where kube-proxy's rules sent a connection
			DNSPolicy:                     corev1.DNSDefault,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(int64(math.Ceil(r.Alive.Seconds()))),
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			ImagePullSecrets:              secrets,
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "probe", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{
					"probe", target.String(), "--requests=" + strconv.Itoa(r.Probe.Requests), "--timeout=" +
						r.Probe.Timeout.String(),
					"--output=" + terminationLog,
				},
				SecurityContext: &corev1.SecurityContext{
					// User 0 with one capability: other users lose their capabilities when they start a program.
					RunAsUser: new(int64(0)), RunAsGroup: new(int64(0)), RunAsNonRoot: new(false),
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{
						Drop: []corev1.Capability{"ALL"},
						Add:  []corev1.Capability{"NET_ADMIN"},
					},
				},
			}},
		},
	}
}
