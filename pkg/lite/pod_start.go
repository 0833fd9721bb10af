package lite

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// start is a start of a pod after a boot. The Node is empty if it is not known.
type start struct {
	store *Store
	pod   *corev1.Pod
	node  *corev1.Node
	// ofTokens are the images that readImagesOfTokens returns.
	ofTokens map[string]bool
	// missing is why it would fail.
	missing []string
}

func (s *start) add(why string, args ...any) {
	s.missing = append(s.missing, fmt.Sprintf(why, args...))
}

// The following methods add why a kubelet of 1.29 to 1.37 does not start the pod, whatever answers it gets. They name
// their sources in Kubernetes, below pkg/kubelet. (references.go has a pod's needs from the API server.)

// isShutDown reports whether a graceful shutdown of the node (shutdownGracePeriod of the kubelet) has ended a pod while
// kube-apiserver was reachable, so that the kubelet could report it (nodeshutdown/nodeshutdown_manager.go).
func isShutDown(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Terminated"
}

func (s *start) checkState() {
	if isShutDown(s.pod) {
		s.add("a graceful shutdown of the node has ended it (shutdownGracePeriod of the kubelet), and a " +
			"controller in the cloud has to replace it")
	}
	// pod_workers.go: it is terminating, also after a restart.
	if s.pod.DeletionTimestamp != nil {
		s.add("the pod is being deleted, and is not started again")
	}
	// kuberuntime/kuberuntime_manager.go, computePodActions: its new sandbox would be a second one.
	if s.pod.Spec.RestartPolicy == corev1.RestartPolicyNever && len(s.pod.Status.ContainerStatuses) > 0 {
		s.add("its restartPolicy is Never, and it has run already: after a boot the kubelet does not start it " +
			"again")
	}
	// active_deadline.go
	seconds, start := s.pod.Spec.ActiveDeadlineSeconds, s.pod.Status.StartTime
	if seconds != nil && start != nil && time.Since(start.Time) >= time.Duration(*seconds)*time.Second {
		s.add("its activeDeadlineSeconds of %d are over", *seconds)
	}
}

// containersOf returns the containers that are started again: ephemeral ones are not.
func containersOf(pod *corev1.Pod) []corev1.Container {
	return slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
}

// withoutImage are the reasons for which a container waits that has not got its image (images/types.go, and errors of
// cri-client). Its ImageID may be that of an image which it had before.
var withoutImage = []string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName",
	"RegistryUnavailable", "SignatureValidationFailed"}

// imageUse is an image that a container or a volume of a pod needs.
type imageUse struct {
	user, image string
	policy      corev1.PullPolicy
	// pulled is set if a container has run with it.
	pulled bool
}

func imagesOf(pod *corev1.Pod) (uses []imageUse) {
	pulled := map[string]bool{}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waits := ptr.Deref(status.State.Waiting, corev1.ContainerStateWaiting{})
		pulled[status.Name] = status.ImageID != "" && !slices.Contains(withoutImage, waits.Reason)
	}
	for _, c := range containersOf(pod) {
		uses = append(uses, imageUse{"container " + c.Name, c.Image, c.ImagePullPolicy, pulled[c.Name]})
	}
	ran := slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
		return s.ImageID != ""
	})
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			uses = append(uses, imageUse{"volume " + v.Name, v.Image.Reference, v.Image.PullPolicy, ran})
		}
	}
	return uses
}

// checkImages is about images that may not be on the node (images/image_manager.go, EnsureImageExists; for volumes
// kubelet_pods.go and kuberuntime_manager.go).
func (s *start) checkImages() {
	for _, use := range imagesOf(s.pod) {
		name, _, _ := strings.Cut(use.image, "@")
		if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
			name = name[:at]
		}
		if use.policy == corev1.PullAlways {
			s.add("the image of %s is asked for at every start (pull policy Always)", use.user)
		} else if !use.pulled {
			s.add("the image of %s may not be on the node: no container has run with it", use.user)
		}
		if s.ofTokens[name] {
			s.add("the image of %s was pulled with a token of the pod's ServiceAccount: at each start the kubelet "+
				"gets a new one from kube-apiserver, to verify that the pod may use the image", use.user)
		}
	}
}

// checkClock is about containers that the kubelet will not call ready while the machine's clock is behind the time of
// their last start: of several containers of a name it uses the one with the latest creation time, and that is a dead
// one (container/helpers.go and container/runtime.go, FindContainerStatusByName).
func (s *start) checkClock() {
	for _, status := range slices.Concat(s.pod.Status.InitContainerStatuses, s.pod.Status.ContainerStatuses) {
		if running := status.State.Running; running != nil && time.Now().Before(running.StartedAt.Time) {
			s.add("container %s started last at %s, which is still to come by this node's clock: the kubelet "+
				"starts it again and takes it for the dead one, not ready, until the clock is right or crictl rm "+
				"--all has removed the dead one", status.Name, running.StartedAt.UTC().Format(time.RFC3339))
		}
	}
}

// checkProjections is about what comes from the API server for each start (volume/projected of pkg/volume).
func (s *start) checkProjections() {
	for _, v := range s.pod.Spec.Volumes {
		for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
			if source.PodCertificate != nil {
				s.add("volume %s wants a new certificate (podCertificate)", v.Name)
			}
			if source.ClusterTrustBundle != nil {
				s.add("volume %s wants a ClusterTrustBundle, which is not kept", v.Name)
			}
		}
	}
}

// checkPlacement is about pods that would no longer be scheduled to the node, because its labels or taints have
// changed. The kubelet checks that again for each pod after a restart, and fails them for good (lifecycle/predicate.go,
// generalFilter).
func (s *start) checkPlacement() {
	if s.node.Name == "" {
		return
	}
	if fits, err := nodeaffinity.GetRequiredNodeAffinity(s.pod).Match(s.node); !fits || err != nil {
		s.add("its nodeSelector or required node affinity does not match the Node's labels any longer, so that " +
			"the kubelet fails it after a restart")
	}
	evicts := func(t *corev1.Taint) bool { return t.Effect == corev1.TaintEffectNoExecute }
	taint, found := helpers.FindMatchingUntoleratedTaint(klog.Logger{}, s.node.Spec.Taints, s.pod.Spec.Tolerations,
		evicts, false)
	if found {
		s.add("it does not tolerate the Node's taint %s, so that the kubelet fails it after a restart",
			taint.ToString())
	}
}

// checkDevices is about pods with devices of device plugins. After a boot the kubelet fails them for good if the plugin
// has not registered before it gets the pods (cm/devicemanager/manager.go, devicesToAllocate). The Node's capacity has
// the resources that the kubelet knows; others are counted by the scheduler only. Resources that are allocated through
// claims do not need a plugin.
func (s *start) checkDevices() {
	claimed := map[[2]string]bool{}
	made := ptr.Deref(s.pod.Status.ExtendedResourceClaimStatus, corev1.PodExtendedResourceClaimStatus{})
	for _, m := range made.RequestMappings {
		claimed[[2]string{m.ContainerName, m.ResourceName}] = true
	}
	for _, c := range containersOf(s.pod) {
		for name := range c.Resources.Limits {
			_, known := s.node.Status.Capacity[name]
			extended := strings.Contains(string(name), "/") && !strings.Contains(string(name), "kubernetes.io/")
			if known && extended && !claimed[[2]string{c.Name, string(name)}] {
				s.add("container %s needs %s: after a boot the kubelet fails the pod, unless the device plugin "+
					"has registered before", c.Name, name)
			}
		}
	}
}

// readImagesOfTokens returns the images that were pulled only with tokens of ServiceAccounts, by name without tag and
// digest, from the kubelet's own records of the images that it has pulled (ImagePulledRecord of
// kubelet.config.k8s.io). A kubelet before 1.35 has none. A later one uses such an image only for a pod for whose
// ServiceAccount the credential provider gives a credential again. For that the kubelet needs the ServiceAccount and a
// new token from kube-apiserver, and most providers the cloud (pkg/credentialprovider/plugin and
// pkg/kubelet/images/pullmanager of Kubernetes).
func readImagesOfTokens(dir string) map[string]bool {
	images := map[string]bool{}
	paths, _ := filepath.Glob(filepath.Join(dir, "sha256-*")) // a valid pattern
	for _, path := range paths {
		var record struct {
			CredentialMapping map[string]struct {
				KubernetesSecrets, KubernetesServiceAccounts []json.RawMessage
			}
		}
		content, err := os.ReadFile(path) //nolint:gosec // in the kubelet's directory
		if err != nil || json.Unmarshal(content, &record) != nil {
			continue // the kubelet is writing it
		}
		for image, credentials := range record.CredentialMapping {
			if len(credentials.KubernetesServiceAccounts) > 0 && len(credentials.KubernetesSecrets) == 0 {
				images[image] = true
			}
		}
	}
	return images
}
