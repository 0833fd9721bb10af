package prove

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/application-grid/application-grid/pkg/kubectlgrid/cluster"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/output"
	"github.com/application-grid/application-grid/pkg/kubectlgrid/probe"
	"github.com/application-grid/application-grid/pkg/program/pages"
)

// The label of the pods that are made. No other pods have it.
const (
	labelName  = "app.kubernetes.io/name"
	labelValue = "kubectl-grid-prove"
)

// wrapper is the name of the wrapper's container, and the value of the label app of its pods.
const wrapper = "application-grid-wrapper"

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

// pods runs probes by making a pod for each node.
type pods struct {
	Options

	api client.Client
	// images are the images of the wrappers' pods by node, with the secrets to pull them. That of "" is for nodes
	// without one.
	images map[string]image
}

type image struct {
	name    string
	secrets []corev1.LocalObjectReference
}

// newPods reads the images, and removes pods of earlier runs.
func newPods(ctx context.Context, c cluster.Cluster, o Options) (*pods, error) {
	r := &pods{Options: o, api: c.API, images: map[string]image{}}
	err := pages.Each(ctx, c.API, &corev1.PodList{}, func(p *corev1.Pod) {
		if p.Spec.NodeName == "" || p.DeletionTimestamp != nil || len(p.Spec.Containers) == 0 {
			return
		}
		container := slices.IndexFunc(p.Spec.Containers, func(c corev1.Container) bool { return c.Name == wrapper })
		r.images[p.Spec.NodeName] = image{p.Spec.Containers[max(container, 0)].Image, p.Spec.ImagePullSecrets}
	}, client.MatchingLabels{"app": wrapper})
	nodes := slices.Sorted(maps.Keys(r.images))
	switch {
	case o.Image == "" && err != nil:
		return nil, fmt.Errorf("asking for the wrappers' pods: %w", err)
	case len(nodes) > 0:
		r.images[""] = r.images[nodes[0]]
	case o.Image == "":
		return nil, errors.New("no wrapper runs in this cluster whose image could be used: name an image with --image")
	}
	if err := r.removeLeftovers(ctx); err != nil {
		c.Warn("pods that an earlier run may have left in %s are not removed: %s", o.PodNamespace, output.WhyNot(err))
	}
	return r, nil
}

// run runs a probe on a node. It always removes the pod before it returns.
func (r *pods) run(ctx context.Context, node string, target netip.AddrPort) (probe.Result, error) {
	pod := r.pod(node, target)
	if err := r.create(ctx, pod); err != nil {
		if apierrors.IsForbidden(err) {
			return probe.Result{}, fmt.Errorf("a pod may not be created in namespace %s: %w; --pod-namespace names "+
				"another", r.PodNamespace, err)
		}
		return probe.Result{}, fmt.Errorf("making a pod: %w", err)
	}
	defer r.remove(ctx, pod)
	why, result := errors.New("it was not started"), probe.Result{}
	err := wait.PollUntilContextCancel(ctx, between, false, func(ctx context.Context) (done bool, err error) {
		switch err := r.api.Get(ctx, client.ObjectKeyFromObject(pod), pod); {
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
func (r *pods) create(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), creating)
	defer cancel()
	return r.api.Create(ctx, pod)
}

// remove removes a pod, even after ctx has ended.
func (r *pods) remove(ctx context.Context, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
	defer cancel()
	_ = wait.PollUntilContextCancel(ctx, between, true, func(ctx context.Context) (bool, error) {
		return client.IgnoreNotFound(r.api.Delete(ctx, pod, client.GracePeriodSeconds(0))) == nil, nil
	})
}

// removeLeftovers removes pods of runs that were killed before they could.
func (r *pods) removeLeftovers(ctx context.Context) error {
	list := &corev1.PodList{}
	err := r.api.List(ctx, list, client.InNamespace(r.PodNamespace), client.MatchingLabels{labelName: labelValue})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if phase := list.Items[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			continue // another run's
		}
		if err := r.api.Delete(ctx, &list.Items[i]); err != nil && !apierrors.IsNotFound(err) {
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
			err = json.Unmarshal([]byte(ended.Message), &result)
			switch {
			case err == nil:
			case ended.ExitCode == 2:
				err = errors.New("the image has no probe: it is of an older application-grid-wrapper; --image names " +
					"another")
			default:
				err = fmt.Errorf("the probe ended with code %d: %s %s", ended.ExitCode, ended.Reason, ended.Message)
			}
			return result, true, err
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

// pod returns the pod that runs the probe on a node. It bypasses the scheduler, so that taints do not matter.
func (r *pods) pod(node string, target netip.AddrPort) *corev1.Pod {
	image, ok := r.images[node]
	if !ok {
		image = r.images[""]
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: labelValue + "-", Namespace: r.PodNamespace,
			Labels: map[string]string{labelName: labelValue},
		},
		Spec: corev1.PodSpec{
			NodeName:                      node,
			HostNetwork:                   true, // there the kernel knows where kube-proxy's rules sent a connection
			DNSPolicy:                     corev1.DNSDefault,
			RestartPolicy:                 corev1.RestartPolicyNever,
			ActiveDeadlineSeconds:         new(int64(math.Ceil(r.Timeout.Seconds()))),
			TerminationGracePeriodSeconds: new(int64(0)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			ImagePullSecrets:              image.secrets,
			SecurityContext: &corev1.PodSecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "probe", Image: cmp.Or(r.Image, image.name), ImagePullPolicy: corev1.PullIfNotPresent,
				Args: []string{
					"probe", target.String(), "--requests=" + strconv.Itoa(r.Requests),
					"--timeout=" + r.ConnectTimeout.String(), "--output=" + terminationLog,
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
