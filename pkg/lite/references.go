package lite

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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

// defaultExpiration is the default of ExpirationSeconds.
const defaultExpiration = 3600

type needs struct {
	// scopes are true if a pod does not start without them.
	scopes map[scope]bool
	tokens map[tokenRequest]struct{}
}

// needsOf returns the needs of pods: the objects that they, their claims' volumes and the drivers of these name. A pod
// that has ended has none, because it does not start again.
func (s *Store) needsOf(pods ...*corev1.Pod) needs {
	all := needs{map[scope]bool{}, map[tokenRequest]struct{}{}}
	for _, pod := range pods {
		if !ended(pod) {
			referrer{all, s, pod}.add()
		}
	}
	return all
}

// ended reports whether a pod has ended for good.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// claimOf returns the name of a volume's claim; "" if it has none.
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

// referrer adds the needs of one pod.
type referrer struct {
	needs

	store *Store
	pod   *corev1.Pod
}

func (r referrer) add() {
	for _, s := range r.pod.Spec.ImagePullSecrets {
		r.optional(secrets, s.Name, new(true))
	}
	for i := range r.pod.Spec.Volumes {
		r.volume(&r.pod.Spec.Volumes[i])
	}
	for i := range r.pod.Spec.InitContainers {
		r.environment(&r.pod.Spec.InitContainers[i])
	}
	for i := range r.pod.Spec.Containers {
		r.environment(&r.pod.Spec.Containers[i])
	}
	for _, claim := range r.pod.Spec.ResourceClaims {
		r.named(resourceClaims, ptr.Deref(claim.ResourceClaimName, ""))
	}
	for _, made := range r.pod.Status.ResourceClaimStatuses { // these are made from templates
		r.named(resourceClaims, ptr.Deref(made.ResourceClaimName, ""))
	}
	if made := r.pod.Status.ExtendedResourceClaimStatus; made != nil {
		r.named(resourceClaims, made.ResourceClaimName)
	}
	// Ephemeral containers are not started again.
}

func (r referrer) named(k *kind, name string) { r.optional(k, name, nil) }

// optional adds an object. If optional is true, the pod starts without it.
func (r referrer) optional(k *kind, name string, optional *bool) {
	if name != "" {
		in := named(k, r.pod.Namespace, name)
		r.scopes[in] = r.scopes[in] || !ptr.Deref(optional, false)
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
			r.optional(secrets, from.SecretRef.Name, from.SecretRef.Optional)
		}
		if from.ConfigMapRef != nil {
			r.optional(configMaps, from.ConfigMapRef.Name, from.ConfigMapRef.Optional)
		}
	}
	for _, variable := range c.Env {
		if variable.ValueFrom == nil {
			continue
		}
		if ref := variable.ValueFrom.SecretKeyRef; ref != nil {
			r.optional(secrets, ref.Name, ref.Optional)
		} else if ref := variable.ValueFrom.ConfigMapKeyRef; ref != nil {
			r.optional(configMaps, ref.Name, ref.Optional)
		}
	}
}

// volume adds the needs of a volume, which has one source.
func (r referrer) volume(v *corev1.Volume) {
	if claim := claimOf(r.pod, v); claim != "" {
		r.claim(claim)
	}
	switch {
	case v.Secret != nil:
		r.optional(secrets, v.Secret.SecretName, v.Secret.Optional)
	case v.ConfigMap != nil:
		r.optional(configMaps, v.ConfigMap.Name, v.ConfigMap.Optional)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			r.projection(&v.Projected.Sources[i])
		}
	case v.CSI != nil:
		r.driver(v.CSI.Driver)
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
		r.optional(secrets, p.Secret.Name, p.Secret.Optional)
	}
	if p.ConfigMap != nil {
		r.optional(configMaps, p.ConfigMap.Name, p.ConfigMap.Optional)
	}
	if token := p.ServiceAccountToken; token != nil {
		r.token(token.Audience, token.ExpirationSeconds)
	}
}

func (r referrer) token(audience string, seconds *int64) {
	r.tokens[tokenRequest{
		Namespace: r.pod.Namespace, ServiceAccount: cmp.Or(r.pod.Spec.ServiceAccountName, "default"),
		Pod: r.pod.Name, PodUID: r.pod.UID, Audience: audience,
		ExpirationSeconds: ptr.Deref(seconds, defaultExpiration),
	}] = struct{}{}
}

// claim adds a claim, and the needs of its volume. The Node authorizer of Kubernetes lets a node read the volume's
// Secrets.
func (r referrer) claim(name string) {
	r.named(claims, name)
	volumeName, volume := r.store.volumeOf(types.NamespacedName{Namespace: r.pod.Namespace, Name: name})
	if volumeName == "" {
		return
	}
	r.scopes[named(volumes, "", volumeName)] = true
	var refs []*corev1.SecretReference
	if csi := volume.Spec.CSI; csi != nil {
		refs = append(refs, csi.NodeStageSecretRef, csi.NodePublishSecretRef, csi.NodeExpandSecretRef)
		r.driver(csi.Driver)
	}
	if flex := volume.Spec.FlexVolume; flex != nil {
		refs = append(refs, flex.SecretRef)
	}
	if share := volume.Spec.AzureFile; share != nil {
		refs = append(refs, &corev1.SecretReference{
			Name: share.SecretName, Namespace: ptr.Deref(share.SecretNamespace, r.pod.Namespace)})
	}
	for _, ref := range refs {
		if ref != nil && ref.Name != "" {
			r.scopes[named(secrets, ref.Namespace, ref.Name)] = true
		}
	}
}

// driver adds the tokens that a CSI driver requests for a pod (pkg/volume/csi/csi_mounter.go of Kubernetes).
func (r referrer) driver(name string) {
	driver := &storagev1.CSIDriver{}
	if !r.store.decode(csiDrivers, types.NamespacedName{Name: name}, driver) {
		return
	}
	for _, request := range driver.Spec.TokenRequests {
		r.token(request.Audience, request.ExpirationSeconds)
	}
}
