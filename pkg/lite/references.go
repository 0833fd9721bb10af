package lite

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// tokenRequest is a request for a token of a pod, as the kubelet makes it for a volume
// (pkg/volume/projected/projected.go of Kubernetes).
type tokenRequest struct {
	Namespace, ServiceAccount string
	Pod                       string
	PodUID                    types.UID
	// Audience is "" for the API server's own.
	Audience          string
	ExpirationSeconds int64
}

// defaultExpiration is the ExpirationSeconds of a token for which none are given.
const defaultExpiration = 3600

// needs are what a pod names.
type needs struct {
	scopes map[scope]struct{}
	tokens map[tokenRequest]struct{}
}

func newNeeds() needs { return needs{map[scope]struct{}{}, map[tokenRequest]struct{}{}} }

// add adds what a pod needs to start again. A pod that has ended does not start again.
func (n needs) add(pod *corev1.Pod) {
	if ended(pod) {
		return
	}
	r := referrer{n, pod}
	for _, s := range pod.Spec.ImagePullSecrets {
		r.named(secrets, s.Name)
	}
	for i := range pod.Spec.Volumes {
		r.volume(&pod.Spec.Volumes[i])
	}
	for i := range pod.Spec.InitContainers {
		r.environment(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		r.environment(&pod.Spec.Containers[i])
	}
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			r.named(resourceClaims, *claim.ResourceClaimName)
		}
	}
	for _, made := range pod.Status.ResourceClaimStatuses { // those that are made from templates
		if made.ResourceClaimName != nil {
			r.named(resourceClaims, *made.ResourceClaimName)
		}
	}
	// Ephemeral containers are not started again.
}

// ended reports whether a pod has ended for good.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// claimOf is the name of the claim that a volume stands for; "" if it is none.
func claimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name // k8s.io/component-helpers/storage/ephemeral
	default:
		return ""
	}
}

// referrer adds what one pod needs.
type referrer struct {
	needs

	pod *corev1.Pod
}

func (r referrer) named(k *kind, name string) {
	if name != "" {
		r.scopes[named(k, r.pod.Namespace, name)] = struct{}{}
	}
}

func (r referrer) secret(ref *corev1.LocalObjectReference) {
	if ref != nil {
		r.named(secrets, ref.Name)
	}
}

func (r referrer) environment(c *corev1.Container) {
	for _, from := range c.EnvFrom {
		if from.SecretRef != nil {
			r.named(secrets, from.SecretRef.Name)
		}
		if from.ConfigMapRef != nil {
			r.named(configMaps, from.ConfigMapRef.Name)
		}
	}
	for _, variable := range c.Env {
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil {
			r.named(secrets, ref.Name)
		} else if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.named(configMaps, ref.Name)
		}
	}
}

// volume adds what a volume needs, which has one source.
func (r referrer) volume(v *corev1.Volume) {
	r.named(claims, claimOf(r.pod, v))
	switch {
	case v.Secret != nil:
		r.named(secrets, v.Secret.SecretName)
	case v.ConfigMap != nil:
		r.named(configMaps, v.ConfigMap.Name)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			r.projection(&v.Projected.Sources[i])
		}
	case v.CSI != nil:
		r.secret(v.CSI.NodePublishSecretRef)
	case v.AzureFile != nil:
		r.named(secrets, v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.secret(v.CephFS.SecretRef)
	case v.Cinder != nil:
		r.secret(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		r.secret(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		r.secret(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		r.secret(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		r.secret(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		r.secret(v.StorageOS.SecretRef)
	}
}

func (r referrer) projection(p *corev1.VolumeProjection) {
	if p.Secret != nil {
		r.named(secrets, p.Secret.Name)
	}
	if p.ConfigMap != nil {
		r.named(configMaps, p.ConfigMap.Name)
	}
	if token := p.ServiceAccountToken; token != nil {
		r.tokens[tokenRequest{
			Namespace: r.pod.Namespace, ServiceAccount: cmp.Or(r.pod.Spec.ServiceAccountName, "default"),
			Pod: r.pod.Name, PodUID: r.pod.UID, Audience: token.Audience,
			ExpirationSeconds: ptr.Deref(token.ExpirationSeconds, defaultExpiration),
		}] = struct{}{}
	}
}
