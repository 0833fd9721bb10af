package lite

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
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

// needs are what a pod names.
type needs struct {
	scopes map[scope]struct{}
	tokens map[tokenRequest]struct{}
}

func newNeeds() needs { return needs{map[scope]struct{}{}, map[tokenRequest]struct{}{}} }

// add adds what a pod needs to start again. A pod that has ended does not start again.
func (n needs) add(pod *corev1.Pod) {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
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
	// Ephemeral containers are not started again.
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
		}
		if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.named(configMaps, ref.Name)
		}
	}
}

func (r referrer) volume(v *corev1.Volume) {
	if v.Secret != nil {
		r.named(secrets, v.Secret.SecretName)
	}
	if v.ConfigMap != nil {
		r.named(configMaps, v.ConfigMap.Name)
	}
	if v.PersistentVolumeClaim != nil {
		r.named(claims, v.PersistentVolumeClaim.ClaimName)
	}
	if v.Ephemeral != nil {
		r.named(claims, r.pod.Name+"-"+v.Name) // k8s.io/component-helpers/storage/ephemeral
	}
	if v.Projected != nil {
		for i := range v.Projected.Sources {
			r.projection(&v.Projected.Sources[i])
		}
	}
	if v.CSI != nil {
		r.secret(v.CSI.NodePublishSecretRef)
	}
	if v.AzureFile != nil {
		r.named(secrets, v.AzureFile.SecretName)
	}
	if v.CephFS != nil {
		r.secret(v.CephFS.SecretRef)
	}
	if v.Cinder != nil {
		r.secret(v.Cinder.SecretRef)
	}
	if v.FlexVolume != nil {
		r.secret(v.FlexVolume.SecretRef)
	}
	if v.RBD != nil {
		r.secret(v.RBD.SecretRef)
	}
	if v.ScaleIO != nil {
		r.secret(v.ScaleIO.SecretRef)
	}
	if v.ISCSI != nil {
		r.secret(v.ISCSI.SecretRef)
	}
	if v.StorageOS != nil {
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
		expiration := int64(3600)
		if token.ExpirationSeconds != nil {
			expiration = *token.ExpirationSeconds
		}
		r.tokens[tokenRequest{
			Namespace: r.pod.Namespace, ServiceAccount: cmp.Or(r.pod.Spec.ServiceAccountName, "default"),
			Pod: r.pod.Name, PodUID: r.pod.UID, Audience: token.Audience, ExpirationSeconds: expiration,
		}] = struct{}{}
	}
}
